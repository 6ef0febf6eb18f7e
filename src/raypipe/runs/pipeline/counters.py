"""Counters of a run, accumulated across restarts; caps: what one command may spend; and where its time goes.

Each task's counts are in its completion record. Those go when a table is committed; what they came to is
then kept in one small file of the store until a report has said it. A run stops before a task that would
begin beyond a cap. What is in flight then is still paid, and no more. Knows counts and prices; knows no table
and no step.
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
"""By name of stage."""


@dataclass(slots=True)
class TableCounters:
    """Counters of the tasks of one run over one table."""

    tasks: int = 0
    counts: Counts = field(default_factory=dict)

    def add(self, counts: Mapping[str, StageCounters], tasks: int = 1) -> None:
        self.tasks += tasks
        for name, count in counts.items():
            self.counts.setdefault(name, StageCounters()).add(count)


_TABLES = TypeAdapter(dict[str, TableCounters])


@dataclass(slots=True)
class RunCounters:
    """Counters of a run: this attempt's, and those of earlier attempts that no report contains."""

    tables: dict[str, TableCounters] = field(default_factory=dict)  # by run of a table, of all attempts
    earlier: TableCounters = field(default_factory=TableCounters)  # of that, by attempts before this one
    store: Store | None = None  # where it is kept until it is reported; None: it is not
    name: str = ""  # of its file there
    seconds: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """Question id -> stage -> seconds: its share of the task that answered it in this run."""
    memo_damaged: int = 0  # tables and files of the memo that were damaged, in this attempt
    rows_by_worker: dict[str, dict[str, int]] = field(default_factory=dict)  # pool -> who -> rows, likewise

    @classmethod
    def load(cls, store: Store, what: str) -> RunCounters:
        """Counters of attempts that no report contains. `what` names the work: a digest."""
        done = cls(store=store, name=f"{ATTEMPTS}/{what}.json")
        done.tables = _TABLES.validate_json(store.files.read(done.name) or b"{}")
        for table in done.tables.values():
            done.earlier.add(table.counts, table.tasks)
        return done

    @property
    def counts(self) -> Counts:
        """All of it, by stage."""
        whole = TableCounters()
        for filled in self.tables.values():
            whole.add(filled.counts)
        return whole.counts

    def since(self) -> Counts:
        """Returns what this attempt did, by stage: all of it without what earlier attempts did."""
        now = self.counts
        for name, before in self.earlier.counts.items():
            if name in now:
                add_up(now[name], before, -1)
        return now

    @property
    def tasks_since(self) -> int:
        """Tasks that this attempt did."""
        return sum(t.tasks for t in self.tables.values()) - self.earlier.tasks

    @property
    def resumed(self) -> int:
        """Parts that earlier attempts did."""
        return self.earlier.tasks

    def add(
        self, run: str, counts: Mapping[str, StageCounters], earlier: bool = False, tasks: int = 1
    ) -> None:
        """Counts one task, which ran now or in an earlier attempt. `tasks` 0: one that came to nothing."""
        self.tables.setdefault(run, TableCounters()).add(counts, tasks)
        if earlier:
            self.earlier.add(counts)

    def share(self, ids: Iterable[str], counts: Mapping[str, StageCounters]) -> None:
        """Keeps what each question of a task took: questions of a task pass a stage together, so each has an
        equal share of its seconds."""
        each = {s: c.seconds / (c.rows - c.skipped) for s, c in counts.items() if c.rows > c.skipped}
        self.seconds.update(dict.fromkeys(ids, each))

    def save(self, without: str = "") -> None:
        """Keeps what was counted: before a table is committed, since its completion records go with that.
        `without`: the run of a table whose completion records stay."""
        if self.store is not None:
            kept = {run: filled for run, filled in self.tables.items() if run != without}
            self.store.files.write(self.name, _TABLES.dump_json(kept))

    def clear(self) -> None:
        """Forgets it: a report has said it."""
        if self.store is not None:
            self.store.files.remove(self.name)


def forget_runs(store: Store, runs: Collection[str]) -> None:
    """Forgets what runs of tables counted that were given up."""
    for name in store.files.names(ATTEMPTS) if runs else ():
        tree = json.loads(store.files.read(f"{ATTEMPTS}/{name}") or b"{}")
        left = {name: counted for name, counted in tree.items() if name.partition(" ")[0] not in runs}
        if not left:
            store.files.remove(f"{ATTEMPTS}/{name}")
        elif left != tree:
            store.files.write(f"{ATTEMPTS}/{name}", json.dumps(left).encode())


@dataclass(frozen=True, slots=True)
class Caps:
    """Bounds of one command; what earlier attempts of the same work spent does not count."""

    calls: int | None = None  # to models and graphs
    usd: float | None = None  # of what has a price
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
        """True if something is capped."""
        return any(cap is not None for cap in (self.calls, self.usd, self.hours))

    def check(self, done: RunCounters, seconds: float, judged: CallCounts | None = None) -> None:
        """Raises CapReached where this attempt has spent as much as it may. `seconds`: since it began;
        `judged`: what a judge was asked so far."""
        if spent := self.reached(done, seconds, judged):
            raise CapReached(spent)

    def reached(self, done: RunCounters, seconds: float, judged: CallCounts | None = None) -> str:
        """Returns a message about the cap that is reached, or "". Each command does at least one task, or
        judges some answers, before it stops: repeating it finishes the work."""
        judged = judged or CallCounts()
        if done.tasks_since <= 0 and not judged.computed:
            return ""
        if self.hours is not None and seconds >= self.hours * HOUR_S:
            return f"--max-hours {self.hours:g} is reached after {seconds / HOUR_S:.3g} hours{_THEN}"
        calls = judged.computed + sum(c.calls.computed for c in done.since().values())
        if self.calls is not None and calls >= self.calls:
            return f"--max-calls {self.calls} is reached after {calls} calls{_THEN}"
        tokens = {JUDGE: judged.tokens, **{name: c.calls.tokens for name, c in done.since().items()}}
        asked = ((price, tokens[name]) for name, price in self.prices.tokens.items() if name in tokens)
        usd = sum(price.usd(t.prompt, t.cached, t.generated) for price, t in asked)
        usd += (self.prices.machines or 0.0) * seconds / HOUR_S
        if self.usd is not None and usd >= self.usd:
            return f"--max-usd {self.usd:g} is reached after about {usd:.4g} US dollars{_THEN}"
        return ""


MACHINES = "machines"
_THEN = (
    ". What was done is stored, and the same command continues from there, with the cap counted from 0 again"
)
NO_CAPS = Caps()


PARTS = ("opening", "reading", "planning", "starting", "loading", "computing", "storing", "scoring", "rest")
"""Python, imports and recipe; files into the store; the plan; Ray, engines and workers; imports and weights
of models in workers; the steps; tables and cached values; answers to scores; all that no other part has."""


class WallClock:
    """Seconds by part. At any moment one part is on: a part inside another takes the time from it.

    So all parts add up to the wall time, whatever is forgotten: that is `rest`.

    >>> moments = iter([10.0, 11.0, 14.0, 15.0, 17.0])
    >>> clock = WallClock(lambda: next(moments), began=9.0)
    >>> with clock.part("reading"):
    ...     with clock.part("starting"):
    ...         pass
    >>> clock.parts()["opening"], clock.parts()["reading"], clock.parts()["rest"]
    (1.0, 5.0, 1.0)
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter, began: float | None = None) -> None:
        """`began`: when the run did, by the clock `now`; None: now."""
        self._now, self._last, self._on = now, now(), ["rest"]
        self._seconds = dict.fromkeys(PARTS, 0.0)
        if began is not None:
            self._seconds["opening"] = self._last - began

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Books the time of the block on a part."""
        self._book()
        self._on.append(name)
        try:
            yield
        finally:
            self._book()
            self._on.pop()

    @contextmanager
    def tasks(self) -> Iterator[dict[str, dict[str, float]]]:
        """Books the time of tasks that workers do: what the busiest of them did on its parts, and that for
        which not even this one worked on `starting`. The block fills worker -> part -> seconds."""
        busy: dict[str, dict[str, float]] = {}
        self._book()
        before = self._seconds["starting"]
        try:
            with self.part("starting"):
                yield busy
        finally:
            busiest = max(busy.values(), key=lambda parts: sum(parts.values()), default={})
            whole, most = sum(busiest.values()), self._seconds["starting"] - before
            share = min(1.0, most / whole) if whole > 0 else 0.0  # workers may do several tasks at once
            for name, seconds in busiest.items():
                self._seconds[name] += seconds * share
                self._seconds["starting"] -= seconds * share

    def _book(self) -> None:
        now = self._now()
        self._seconds[self._on[-1]] += now - self._last
        self._last = now

    def parts(self) -> dict[str, float]:
        """Seconds of each part until the last change of part; their sum is the wall time until then."""
        return dict(self._seconds)

    def total(self) -> float:
        """The wall time until now, of which `parts` then gives the parts."""
        self._book()
        return sum(self._seconds.values())
