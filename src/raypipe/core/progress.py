"""Display of the progress of work that takes minutes, with the time left; also clocks.

A terminal gets a bar. Elsewhere, such as in a log, each task prints a line about every ten seconds, even
without progress.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TextIO

from raypipe.core.terminal import open_console

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

EVERY_S = 10.0  # seconds between two lines of one task in a log


class PartInHand:
    """Part of a task's rows that this process is computing, and the function that is told of its progress."""

    def __init__(self) -> None:
        self._part, self._units = "", 0
        self.listener: Callable[[str, int], None] | None = None  # gets a part, and its computed units

    @contextmanager
    def heard_by(self, listener: Callable[[str, int], None]) -> Iterator[None]:
        """Sets the listener for a block, then restores the previous one. The listener gets the name of the
        part and the units computed so far."""
        before, self.listener = self.listener, listener
        try:
            yield
        finally:
            self.listener = before

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        self._part, self._units = part, 0
        try:
            yield
        finally:
            self._part = ""

    def add(self, units: int) -> None:
        """Adds units that were just computed to the part's count, and calls the listener with the count."""
        self._units += units
        if self.listener is not None and self._part:
            self.listener(self._part, self._units)


IN_HAND = PartInHand()
"""The part that this process is computing. Models count units here and need not know the part or the
listener."""


def clock(seconds: float) -> str:
    """Formats a duration as on a clock.

    >>> clock(32.4), clock(75), clock(3725)
    ('0:32', '1:15', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def heartbeat(
    say: Callable[[str], None], phase: str, every_s: float = 5.0
) -> Iterator[Callable[[str], None]]:
    """Calls `say` every `every_s` seconds with the current phase and the time since the block began. Yields a
    function that sets the next phase. It suits work that cannot be counted."""
    phases, start, ended = [phase], time.monotonic(), threading.Event()

    def beat() -> None:
        while not ended.wait(every_s):
            say(f"{phases[-1]} ({time.monotonic() - start:.0f} s)")

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield phases.append
    finally:
        ended.set()
        thread.join()


@dataclass(slots=True)
class ProgressTask:
    """Counters of one kind of work in progress, made by `Progress.task`."""

    verb: str  # parsed, embedded, answered
    unit: str  # pages, chunks, questions
    total: int | None  # number of units; None: unknown
    started: float  # seconds on the progress's clock
    shown_by: Progress = field(repr=False)
    inside: str = ""  # unit of the counts inside parts; if it is not `unit`, it is shown next to it
    done: int = 0
    done_inside: int = 0  # units inside finished parts
    parts: dict[str, int] = field(default_factory=dict)  # unfinished part -> units inside it so far
    first: tuple[float, int] | None = None  # (seconds, count) at the first units: the ETA omits loading
    tokens: int = 0  # tokens that language models wrote since the start
    silence: float = math.inf  # seconds from the start to the first token: engines take a minute to load
    said: float = 0.0  # time of its last line in a log, seconds from the start
    bar: TaskID | None = None  # on a terminal
    ended: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.end(fine=kind is None)

    def end(self, fine: bool = True) -> None:
        """Stops the clock, once. In a log, prints the time taken. `fine` is False if the work failed."""
        if self.ended:
            return
        self.ended, bars = True, self.shown_by.bars
        if bars is not None and self.bar is not None:
            bars.stop_task(self.bar)
            return
        took = self.shown_by.now() - self.started
        end = f"in {clock(took)}" if fine else f"stopped after {clock(took)}"
        self.shown_by.say(f"{self._counted(self.done)} {end}{self.speed(took)}")

    def _counted(self, count: int) -> str:
        of = "" if self.total is None else f"/{self.total}"
        return f"{self.verb} {count}{of} {self.unit}{self.units_inside()}"

    def advance(self, units: int, part: str = "", inside: int = 0) -> None:
        """Adds finished units. `part` names the part that has ended, if any. `inside` is the number of units,
        such as chunks, that were counted inside this part."""
        self.parts.pop(part, None)
        self.done += units
        self.done_inside += inside
        self._moved()

    def within(self, part: str, units: int) -> None:
        """Sets the units computed so far inside a part that has not ended."""
        self.parts[part] = units
        self._moved()

    def reach(self, done: int) -> None:
        self.advance(done - self.done)

    @property
    def count(self) -> int:
        """Number of finished units. Includes units inside unfinished parts, if the name `inside` of these
        units is the name `unit` of the counted ones."""
        if self.inside != self.unit:
            return self.done
        now = self.done + sum(self.parts.values())
        return now if self.total is None else min(now, self.total)

    def _moved(self) -> None:
        elapsed, bars = self.shown_by.now() - self.started, self.shown_by.bars
        if bars is not None and self.bar is not None:
            bars.update(
                self.bar, completed=self.count, unit=f"{self.unit}{self.units_inside()}{self.speed(elapsed)}"
            )
            return
        if self.first is None and self.count:
            self.first = (elapsed, self.count)
        self.look(elapsed)

    def look(self, elapsed: float) -> None:
        """Prints a line if work remains and EVERY_S seconds have passed since the last line."""
        if elapsed - self.said >= EVERY_S and self.count != self.total:  # `end` writes the last line
            self.said = elapsed
            self.shown_by.say(self.line(elapsed))

    def units_inside(self) -> str:
        """Returns the count of units inside parts as text, such as ", 200 chunks". Returns "" if the count is
        0, or if these units are the task's own `unit`."""
        inside = self.done_inside + sum(self.parts.values())
        return f", {inside} {self.inside}" if inside and self.inside not in ("", self.unit) else ""

    def wrote(self, tokens: int, seconds: float) -> None:
        """Counts tokens that language models wrote within the last `seconds`."""
        if tokens:
            self.tokens += tokens
            self.silence = min(self.silence, max(0.0, self.shown_by.now() - self.started - seconds))

    def speed(self, elapsed: float) -> str:
        """Returns the tokens per second since the first token, as text; "" if there is no token."""
        writing = elapsed - self.silence
        return f", {self.tokens / writing:.0f} tokens/s" if self.tokens and writing > 0 else ""

    def line(self, elapsed: float) -> str:
        """Formats the line of a log `elapsed` seconds after the start."""
        count, text = self.count, self._counted(self.count)
        if self.total == 0:
            return text
        if self.total is not None:
            text += f", {100 * count // self.total} %{self.speed(elapsed)}"
        if self.total is None or not count:
            return f"{text}, {clock(elapsed)} so far"
        took, units = self.first or (elapsed, count)
        if count <= units:
            return text
        return f"{text}, ETA {clock((elapsed - took) * max(self.total - count, 0) / (count - units))}"


class Progress:
    """Display of tasks in progress, during a `with` block. `task` adds one.

    >>> import sys
    >>> seconds = iter([0.0, 10.0, 30.0, 40.0])
    >>> with Progress(sys.stdout, now=lambda: next(seconds)) as progress:
    ...     pages = progress.task("parsed", "pages", 10_000)
    ...     pages.advance(1_000)
    ...     pages.advance(4_000)
    parsed 1000/10000 pages, 10 %
    parsed 5000/10000 pages, 50 %, ETA 0:25
    parsed 5000/10000 pages in 0:40
    """

    def __init__(
        self, stream: TextIO, *, silent: bool = False, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._silent, self.now = stream, silent, now
        self._tasks: list[ProgressTask] = []
        self.bars = _bars(stream) if not silent and stream.isatty() else None
        self._over = threading.Event()

    def __enter__(self) -> Self:
        if self.bars is not None:
            self.bars.start()
        elif not self._silent:
            threading.Thread(target=self._watch, name="progress", daemon=True).start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S / 2):
            self.look()

    def look(self) -> None:
        for task in [t for t in self._tasks if not t.ended]:
            task.look(self.now() - task.started)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._over.set()
        for task in self._tasks:
            task.end(fine=kind is None)
        if self.bars is not None:
            self.bars.stop()

    def task(self, verb: str, unit: str, total: int | None, inside: str = "") -> ProgressTask:
        """Starts to show one kind of work, until the `with` block of the task or of the progress ends.
        `inside` is the unit that is counted inside parts."""
        task = ProgressTask(verb, unit, total, self.now(), self, inside)
        if self.bars is not None:
            task.bar = self.bars.add_task(verb, total=total, unit=unit)
        self._tasks.append(task)
        return task

    def say(self, line: str) -> None:
        if not self._silent:
            print(line, file=self._stream, flush=True)


def _bars(stream: TextIO) -> RichProgress:
    from rich import progress  # only a terminal needs it

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[unit]}", markup=False),
        progress.TaskProgressColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=open_console(stream),
    )


class SharedClock:
    """Clock that divides time among concurrent pieces of work: while n run, it advances at 1/n of wall time.

    >>> moments = iter([0.0, 0.0, 2.0, 2.0, 6.0, 6.0, 7.0])
    >>> clock = SharedClock(lambda: next(moments))
    >>> with clock.piece():
    ...     alone = clock()
    ...     with clock.piece():
    ...         together = clock() - alone
    >>> alone, together  # of 2 and of 4 seconds
    (2.0, 2.0)
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now, self._last = now, now()
        self._seconds, self._pieces = 0.0, 0

    def __call__(self) -> float:
        now = self._now()
        self._seconds += (now - self._last) / max(1, self._pieces)
        self._last = now
        return self._seconds

    @contextmanager
    def piece(self) -> Iterator[None]:
        self()
        self._pieces += 1
        try:
            yield
        finally:
            self()
            self._pieces -= 1
