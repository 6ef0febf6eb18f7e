"""Counters of a run over all its attempts; caps on a command's spending; a clock for parts of a run's time.

The completion record of each task has the task's counts. A commit deletes these records. So the counts are
first added up in a small file of the store, which is kept until a report contains them. Once a cap is
reached, a run begins no further task; running tasks still finish, and their cost is paid.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from pydantic import TypeAdapter

from raypipe.core.errors import CapReached, ConfError
from raypipe.core.llm import HOUR_S, JUDGE, NO_PRICES, Prices
from raypipe.recipes.executor import StageCounters
from raypipe.store import Store
from raypipe.store.files import ATTEMPTS
from raypipe.store.memo.cached import CallCounts, add_up

Counts: TypeAlias = dict[str, StageCounters]
"""Stage name -> counters."""


def summed(*counted: Mapping[str, StageCounters]) -> Counts:
    """Adds up counts by stage."""
    out: Counts = {}
    for counts in counted:
        for name, count in counts.items():
            out.setdefault(name, StageCounters()).add(count)
    return out


@dataclass(slots=True)
class TableCounters:
    """Counters of the tasks of one run over one table."""

    tasks: int = 0
    counts: Counts = field(default_factory=dict)

    def add(self, counts: Mapping[str, StageCounters], tasks: int = 1) -> None:
        self.tasks += tasks
        self.counts = summed(self.counts, counts)


_TABLES = TypeAdapter(dict[str, TableCounters])


@dataclass(slots=True)
class RunCounters:
    """Counters of a run: of this attempt, and of earlier attempts that no report contains."""

    tables: dict[str, TableCounters] = field(default_factory=dict)  # run of a table -> counts of all attempts
    earlier: TableCounters = field(default_factory=TableCounters)  # earlier attempts, summed over `tables`
    store: Store | None = None  # the counters are saved here until reported; None: they are not saved
    name: str = ""  # name of the counters' file in the store
    seconds: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """Question id -> stage -> seconds: the question's share of the task that answered it in this run."""
    memo_damaged: int = 0  # damaged tables and files of the memo, in this attempt
    rows_by_worker: dict[str, dict[str, int]] = field(default_factory=dict)  # pool -> worker -> rows

    @classmethod
    def load(cls, store: Store, what: str) -> RunCounters:
        """Loads the counters of attempts that no report contains. `what` is a digest: it names the work."""
        done = cls(store=store, name=f"{ATTEMPTS}/{what}.json")
        done.tables = _TABLES.validate_json(store.files.read(done.name) or b"{}")
        for table in done.tables.values():
            done.earlier.add(table.counts, table.tasks)
        return done

    @property
    def counts(self) -> Counts:
        """Counts of all attempts, by stage."""
        return summed(*(filled.counts for filled in self.tables.values()))

    def since(self) -> Counts:
        """Returns the counts of this attempt, by stage: all counts minus those of earlier attempts."""
        now = self.counts
        for name, before in self.earlier.counts.items():
            if name in now:
                add_up(now[name], before, -1)
        return now

    @property
    def resumed(self) -> int:
        """Number of tasks that earlier attempts finished."""
        return self.earlier.tasks

    def add(
        self, run: str, counts: Mapping[str, StageCounters], earlier: bool = False, tasks: int = 1
    ) -> None:
        """Adds the counts of one task to a table's run. `earlier` True: an earlier attempt ran the task.
        `tasks` is 0 if the task is unfinished."""
        self.tables.setdefault(run, TableCounters()).add(counts, tasks)
        if earlier:
            self.earlier.add(counts)

    def share(self, ids: Iterable[str], counts: Mapping[str, StageCounters]) -> None:
        """Gives each question an equal share of its task's seconds, as questions pass a stage together."""
        each = {s: c.seconds / (c.rows - c.skipped) for s, c in counts.items() if c.rows > c.skipped}
        self.seconds.update(dict.fromkeys(ids, each))

    def save(self, without: str = "") -> None:
        """Saves the counters. Call this before a table is committed, because the commit deletes the
        completion records. The table's run `without` is not saved, because its completion records remain."""
        if self.store is not None:
            kept = {run: filled for run, filled in self.tables.items() if run != without}
            self.store.files.write(self.name, _TABLES.dump_json(kept))

    def clear(self) -> None:
        """Deletes the saved counters. Call this once a report contains them."""
        if self.store is not None:
            self.store.files.remove(self.name)


def forget_runs(store: Store, runs: Collection[str]) -> None:
    """Deletes the saved counts of table runs that were given up, from all files of counters."""
    for name in store.files.names(ATTEMPTS) if runs else ():
        tree = json.loads(store.files.read(f"{ATTEMPTS}/{name}") or b"{}")
        kept = {name: counted for name, counted in tree.items() if name.partition(" ")[0] not in runs}
        if not kept:
            store.files.remove(f"{ATTEMPTS}/{name}")
        elif kept != tree:
            store.files.write(f"{ATTEMPTS}/{name}", json.dumps(kept).encode())


@dataclass(frozen=True, slots=True)
class Caps:
    """Caps on one command. The spending of earlier attempts does not count. None: no cap."""

    calls: int | None = None  # calls to models and graphs; cached results do not count
    usd: float | None = None  # US dollars, for models and machines with a price
    hours: float | None = None  # wall time since the command began
    prices: Prices = NO_PRICES

    def __post_init__(self) -> None:
        for name in ("calls", "usd", "hours"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfError(f"--max-{name}: expected a number above 0, found {value:g}")
        models = [name for name in self.prices.unpriced if name != MACHINES]
        if self.usd is not None and (models or not self.prices.known):
            lacking = ", ".join(self.prices.unpriced) or "any step"
            raise ConfError(
                f"--max-usd: expected prices, found none for {lacking}. Give usd_per_mtok in the models "
                "file, or usd_per_hour of machines in the cluster file"
            )

    @property
    def any(self) -> bool:
        """True if at least one cap is set."""
        return any(cap is not None for cap in (self.calls, self.usd, self.hours))

    def check(self, done: RunCounters, seconds: float, judged: CallCounts | None = None) -> None:
        """Raises CapReached if this attempt has reached a cap (`reached`)."""
        if spent := self.reached(done, seconds, judged):
            raise CapReached(spent)

    def reached(self, done: RunCounters, seconds: float, judged: CallCounts | None = None) -> str:
        """Returns a message about the reached cap, or "". Before a cap stops it, each command finishes at
        least one task or judges some answers: repeating the command finishes the work."""
        judged = judged or CallCounts()
        tasks = sum(t.tasks for t in done.tables.values()) - done.earlier.tasks
        if tasks <= 0 and not judged.computed:
            return ""
        if self.hours is not None and seconds >= self.hours * HOUR_S:
            return f"--max-hours {self.hours:g} is reached after {seconds / HOUR_S:.3g} hours{_THEN}"
        calls = judged.computed + sum(c.calls.computed for c in done.since().values())
        if self.calls is not None and calls >= self.calls:
            return f"--max-calls {self.calls} is reached after {calls} calls{_THEN}"
        tokens = {JUDGE: judged.tokens, **{name: c.calls.tokens for name, c in done.since().items()}}
        priced = ((price, tokens[name]) for name, price in self.prices.tokens.items() if name in tokens)
        usd = sum(price.usd(t.prompt, t.cached, t.generated) for price, t in priced)
        usd += (self.prices.machines or 0.0) * seconds / HOUR_S
        if self.usd is not None and usd >= self.usd:
            return f"--max-usd {self.usd:g} is reached after about {usd:.4g} US dollars{_THEN}"
        return ""


MACHINES = "machines"
_THEN = ". Finished work is stored. The same command continues from there, and counts the cap from 0 again"
NO_CAPS = Caps()


PARTS = ("opening", "reading", "planning", "starting", "loading", "computing", "storing", "scoring", "rest")
"""Parts of a run's wall time. opening: start of Python, imports, reading the recipe. reading: files into the
store. planning: the plan. starting: Ray, engines and workers. loading: models in workers (imports, weights).
computing: the steps. storing: tables and cached values. scoring: answers. rest: everything else."""


class WallClock:
    """Seconds by part of a run. At any moment exactly one part is timed: an inner part pauses the outer part.

    The parts therefore add up to the wall time; time outside all named parts counts as `rest`.

    >>> moments = iter([10.0, 11.0, 14.0, 15.0, 17.0])
    >>> clock = WallClock(lambda: next(moments), began=9.0)
    >>> with clock.part("reading"):
    ...     with clock.part("starting"):
    ...         pass
    >>> clock.parts()["opening"], clock.parts()["reading"], clock.parts()["rest"]
    (1.0, 5.0, 1.0)
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter, began: float | None = None) -> None:
        """Starts the clock. `began` is the start of the run on the clock `now`; None: it starts here."""
        self._now, self._last, self._on = now, now(), ["rest"]
        self._seconds = dict.fromkeys(PARTS, 0.0)
        if began is not None:
            self._seconds["opening"] = self._last - began

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Adds the block's wall time to a part."""
        self._book()
        self._on.append(name)
        try:
            yield
        finally:
            self._book()
            self._on.pop()

    @contextmanager
    def tasks(self) -> Iterator[dict[str, dict[str, float]]]:
        """Splits the block's wall time into parts as the busiest worker spent it. Time in which that worker
        was idle counts as `starting`. The block fills the yielded dictionary: worker -> part -> seconds."""
        busy: dict[str, dict[str, float]] = {}
        self._book()
        before = self._seconds["starting"]
        try:
            with self.part("starting"):
                yield busy
        finally:
            busiest = max(busy.values(), key=lambda parts: sum(parts.values()), default={})
            worked, elapsed = sum(busiest.values()), self._seconds["starting"] - before
            share = min(1.0, elapsed / worked) if worked > 0 else 0.0  # a worker may do several tasks at once
            for name, seconds in busiest.items():
                self._seconds[name] += seconds * share
                self._seconds["starting"] -= seconds * share

    def _book(self) -> None:
        now = self._now()
        self._seconds[self._on[-1]] += now - self._last
        self._last = now

    def parts(self) -> dict[str, float]:
        """Returns the seconds of each part. The time since the last change of part is not counted yet."""
        return dict(self._seconds)

    def total(self) -> float:
        """Returns the wall time until now, in seconds, and brings `parts` up to date."""
        self._book()
        return sum(self._seconds.values())
