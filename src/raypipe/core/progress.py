"""Progress with time to go, for work that takes minutes, and clocks. Knows counts and seconds, not the work.

On a terminal a bar; elsewhere (a log, a job's driver) a plain line every ten seconds, also where nothing
moves; nothing if silent.
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

EVERY_S = 10.0  # between two plain lines of one task


class PartInHand:
    """The part that this process computes, and the listener that hears how far it is."""

    def __init__(self) -> None:
        self._part, self._units = "", 0
        self.listener: Callable[[str, int], None] | None = None  # gets a part, and units of it so far

    @contextmanager
    def heard_by(self, listener: Callable[[str, int], None]) -> Iterator[None]:
        """Lets a listener hear of the parts of a block."""
        before, self.listener = self.listener, listener
        try:
            yield
        finally:
            self.listener = before

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Names the part that a block computes."""
        self._part, self._units = part, 0
        try:
            yield
        finally:
            self._part = ""

    def add(self, units: int) -> None:
        """Counts units that were just computed."""
        self._units += units
        if self.listener is not None and self._part:
            self.listener(self._part, self._units)


IN_HAND = PartInHand()
"""The part of this process: a model knows neither the part that it computes for nor who waits for it."""


def clock(seconds: float) -> str:
    """A duration as it stands on a clock.

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
    """Says every few seconds what is under way and for how long, until the block ends. Gives the function
    that names the next phase. For work that has no count."""
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
    """A kind of work that is under way. Made by `Progress.task`."""

    verb: str  # parsed, embedded, answered: what was done to a unit
    unit: str  # pages, chunks, questions
    total: int | None  # units in all; None: not known
    started: float  # on the progress's clock, seconds
    shown_by: Progress = field(repr=False)
    inside: str = ""  # units that are counted inside parts: `unit`, or others, which are shown next to it
    done: int = 0
    done_inside: int = 0  # of finished parts
    parts: dict[str, int] = field(default_factory=dict)  # part under way -> units inside it so far
    first: tuple[float, int] | None = None  # seconds to the first units, models loaded, and their count
    tokens: int = 0  # that language models wrote meanwhile
    silence: float = math.inf  # seconds from the start to the first of these: engines take a minute to load
    said: float = 0.0  # when its last plain line was written, seconds from the start
    bar: TaskID | None = None  # on a terminal
    ended: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.end(fine=kind is None)

    def end(self, fine: bool = True) -> None:
        """Stops its clock, and says in a log how long it took; `fine`: all went well. The end of a `with`
        block over it does so."""
        if self.ended:
            return
        self.ended, bars = True, self.shown_by.bars
        if bars is not None and self.bar is not None:
            bars.stop_task(self.bar)
            return
        took = self.shown_by.now() - self.started
        count = f"{self.done}" if self.total is None else f"{self.done}/{self.total}"
        end = f"in {clock(took)}" if fine else f"stopped after {clock(took)}"
        self.shown_by.say(f"{self.verb} {count} {self.unit}{self.units_inside()} {end}{self.speed(took)}")

    def advance(self, units: int, part: str = "", inside: int = 0) -> None:
        """Shows that this many more units are done. `part`: of a part that ends, with units `inside` it."""
        self.parts.pop(part, None)
        self.done += units
        self.done_inside += inside
        self._moved()

    def within(self, part: str, units: int) -> None:
        """Shows how far a part is that has not ended."""
        self.parts[part] = units
        self._moved()

    def reach(self, done: int) -> None:
        """Sets how many units are done."""
        self.advance(done - self.done)

    @property
    def count(self) -> int:
        """Units that are done, those of parts under way among them."""
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
        """Says in a log where the work stands, if the last line is older than EVERY_S."""
        if elapsed - self.said >= EVERY_S and self.count != self.total:  # its last line is that of its end
            self.said = elapsed
            self.shown_by.say(self.line(elapsed))

    def units_inside(self) -> str:
        """Units inside the parts, where they are not those of the task."""
        inside = self.done_inside + sum(self.parts.values())
        return f", {inside} {self.inside}" if inside and self.inside not in ("", self.unit) else ""

    def wrote(self, tokens: int, seconds: float) -> None:
        """Records that language models wrote `tokens` tokens within the last `seconds`."""
        if tokens:
            self.tokens += tokens
            self.silence = min(self.silence, max(0.0, self.shown_by.now() - self.started - seconds))

    def speed(self, elapsed: float) -> str:
        """Tokens written a second since the first, where any were."""
        writing = elapsed - self.silence
        return f", {self.tokens / writing:.0f} tokens/s" if self.tokens and writing > 0 else ""

    def line(self, elapsed: float) -> str:
        """Returns where the work stands after this many seconds."""
        count = self.count
        if self.total is None:
            return f"{self.verb} {count} {self.unit}{self.units_inside()}, {clock(elapsed)} so far"
        text = f"{self.verb} {count}/{self.total} {self.unit}{self.units_inside()}"
        if not self.total:
            return text
        text += f", {100 * count // self.total} %{self.speed(elapsed)}"
        took, units = self.first or (elapsed, count)
        if not count:
            return f"{text}, {clock(elapsed)} so far"
        if count <= units:
            return text
        return f"{text}, ETA {clock((elapsed - took) * max(self.total - count, 0) / (count - units))}"


class Progress:
    """Shows the tasks made with it while its block runs.

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
        """Says in a log where work stands that does not move."""
        for task in [t for t in self._tasks if not t.ended]:
            task.look(self.now() - task.started)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._over.set()
        for task in self._tasks:
            task.end(fine=kind is None)
        if self.bars is not None:
            self.bars.stop()

    def task(self, verb: str, unit: str, total: int | None, inside: str = "") -> ProgressTask:
        """Starts showing one kind of work: `with progress.task(...) as pages:` ends it, and else the end of
        the progress does. `inside`: units that are counted inside its parts."""
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
    """Seconds that advance by a part of the wall time: one of as many as there are pieces.

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
        """Counts the block as a piece of work."""
        self()
        self._pieces += 1
        try:
            yield
        finally:
            self()
            self._pieces -= 1
