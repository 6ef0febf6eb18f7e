"""Progress with time to go, for work that takes minutes. Knows counts and a clock, not the work.

On a terminal a bar; elsewhere (a log, a job's driver) a plain line every ten seconds; nothing if silent.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

EVERY_S = 10.0  # between two plain lines of one task


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
    done: int = 0
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
        self.shown_by.say(f"{self.verb} {count} {self.unit} {end}{self.speed(took)}")

    def advance(self, units: int) -> None:
        """Shows that this many more units are done."""
        self.done += units
        elapsed, bars = self.shown_by.now() - self.started, self.shown_by.bars
        if bars is not None and self.bar is not None:
            bars.update(self.bar, advance=units, unit=f"{self.unit}{self.speed(elapsed)}")
            return
        if self.first is None and units:
            self.first = (elapsed, units)
        if elapsed - self.said >= EVERY_S and self.done != self.total:  # its last line is that of its end
            self.said = elapsed
            self.shown_by.say(self.line(elapsed))

    def reach(self, done: int) -> None:
        """Sets how many units are done."""
        self.advance(done - self.done)

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
        if self.total is None:
            return f"{self.verb} {self.done} {self.unit}, {clock(elapsed)} so far"
        text = f"{self.verb} {self.done}/{self.total} {self.unit}"
        if not self.total:
            return text
        text += f", {100 * self.done // self.total} %{self.speed(elapsed)}"
        took, units = self.first or (elapsed, self.done)
        if self.done <= units:
            return text
        return f"{text}, ETA {clock((elapsed - took) * max(self.total - self.done, 0) / (self.done - units))}"


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

    def __enter__(self) -> Self:
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        for task in self._tasks:
            task.end(fine=kind is None)
        if self.bars is not None:
            self.bars.stop()

    def task(self, verb: str, unit: str, total: int | None) -> ProgressTask:
        """Starts showing one kind of work: `with progress.task(...) as pages:` ends it, and else the end of
        the progress does."""
        task = ProgressTask(verb, unit, total, self.now(), self)
        if self.bars is not None:
            task.bar = self.bars.add_task(verb, total=total, unit=unit)
        self._tasks.append(task)
        return task

    def say(self, line: str) -> None:
        if not self._silent:
            print(line, file=self._stream, flush=True)


def _bars(stream: TextIO) -> RichProgress:
    from rich import progress  # only a terminal needs it
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[unit]}", markup=False),
        progress.TaskProgressColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(file=stream),
    )
