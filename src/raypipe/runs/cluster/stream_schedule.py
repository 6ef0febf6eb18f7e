"""Which worker gets which task next, where some workers prepare tasks and others embed them.

Bounds the bytes between the two: a task is prepared only if what it may come to still fits.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from raypipe.runs.pipeline.tasks import Task

W = TypeVar("W", bound=Hashable)

Part: TypeAlias = Literal["prepare", "embed"]

DEPTH: dict[Part, int] = {"prepare": 1, "embed": 2}
"""Tasks of one worker at a time. Of two, one stores its vectors and gets its successor while the other
computes."""


@dataclass(frozen=True, slots=True)
class PreparedTask:
    task: Task
    nbytes: int
    handle: Any  # to what was prepared, wherever that is


@dataclass(frozen=True, slots=True)
class Assignment(Generic[W]):
    worker: W
    task: Task
    block: PreparedTask | None  # to embed; None: the task is to be prepared


@dataclass(slots=True)
class _Seat:
    part: Part
    doing: dict[str, Assignment[Any]] = field(default_factory=dict)  # by name of task
    retired: bool = False  # True: gets no more tasks


class StreamSchedule(Generic[W]):
    """The state of one run of tasks. Report what happens, and give each worker what `next` says."""

    def __init__(self, tasks: Sequence[Task], most_bytes: int, tries: int) -> None:
        """`most_bytes`: between the two parts; a single block may be larger. `tries`: of a task whose worker
        dies."""
        self._left, self._ready = deque(tasks), deque[PreparedTask]()
        self.most_bytes, self._tries = most_bytes, tries
        self._seats: dict[W, _Seat] = {}
        self._deaths: Counter[str] = Counter()
        self._row_bytes = 0.0  # of the largest row so far, over its block
        self.failed: list[Task] = []  # whose workers died as often as they may

    @property
    def done(self) -> bool:
        """Whether nothing is left but what has failed."""
        return not (self._left or self._ready or any(seat.doing for seat in self._seats.values()))

    @property
    def in_flight(self) -> float:
        """Bytes that are prepared and not embedded, with what is being prepared at its largest."""
        held = float(sum(block.nbytes for block in self._ready))
        for assigned in self._assigned():
            block = assigned.block
            held += self._row_bytes * assigned.task.rows if block is None else block.nbytes
        return held

    def joins(self, worker: W, part: Part) -> None:
        self._seats[worker] = _Seat(part)

    def retire(self, worker: W) -> None:
        self._seats[worker].retired = True

    def is_retired(self, worker: W) -> bool:
        return self._seats[worker].retired

    def is_empty(self, worker: W) -> bool:
        """Whether it is retired and has nothing in hand."""
        seat = self._seats[worker]
        return seat.retired and not seat.doing

    def dies(self, worker: W) -> None:
        """What it had in hand is done by others, unless workers died of it as often as they may."""
        if (seat := self._seats.pop(worker, None)) is None:
            return
        for assigned in seat.doing.values():
            task = assigned.task
            self._deaths[task.name] += 1
            if self._deaths[task.name] >= self._tries:
                self.failed.append(task)
            elif assigned.block is None:
                self._left.appendleft(task)
            else:
                self._ready.appendleft(assigned.block)

    def prepared(self, worker: W, task: Task, nbytes: int, handle: Any) -> None:
        del self._seats[worker].doing[task.name]
        self._row_bytes = max(self._row_bytes, nbytes / max(1, task.rows))
        self._ready.append(PreparedTask(task, nbytes, handle))

    def finished(self, worker: W, task: Task) -> None:
        del self._seats[worker].doing[task.name]

    def block_lost(self, worker: W, task: Task) -> None:
        """What was prepared went with its machine: the task is prepared again, and that is no fault of it."""
        del self._seats[worker].doing[task.name]
        self._left.appendleft(task)

    def next(self) -> list[Assignment[W]]:
        """What idle workers are to do now."""
        out: list[Assignment[W]] = []
        while self._ready and (worker := self._idle("embed")) is not None:
            out.append(self._assign(worker, self._ready[0].task, self._ready.popleft()))
        while self._left and self._fits(self._left[0]) and (worker := self._idle("prepare")) is not None:
            out.append(self._assign(worker, self._left.popleft(), None))
        return out

    def _assign(self, worker: W, task: Task, block: PreparedTask | None) -> Assignment[W]:
        assigned = Assignment(worker, task, block)
        self._seats[worker].doing[task.name] = assigned
        return assigned

    def _idle(self, part: Part) -> W | None:
        """The worker of a part with least in hand, that may have more."""
        room = [
            (len(seat.doing), i, worker)
            for i, (worker, seat) in enumerate(self._seats.items())
            if seat.part == part and not seat.retired and len(seat.doing) < DEPTH[part]
        ]
        return min(room)[2] if room else None

    def _fits(self, task: Task) -> bool:
        """Whether a task may be prepared. Before the first block says how large a row is, one task for each
        worker that embeds."""
        if self._row_bytes:
            held = self.in_flight
            return not held or held + self._row_bytes * task.rows <= self.most_bytes
        running = sum(1 for _ in self._assigned())
        return running < max(1, sum(seat.part == "embed" for seat in self._seats.values()))

    def _assigned(self) -> Iterable[Assignment[W]]:
        for seat in self._seats.values():
            yield from seat.doing.values()
