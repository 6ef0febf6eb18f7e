"""Counters of a run, accumulated across restarts, and caps: what one command may spend.

Each task's counts are in its completion record. Those go when a table is committed; what they came to is
then kept in one small file of the store until a report has said it. A run stops before a task that would
begin beyond a cap. What is in flight then is still paid, and no more. Knows counts and prices; knows no table
and no step.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TypeAlias

from raypipe.core.errors import CapReached, ConfError
from raypipe.core.prices import HOUR_S, JUDGE, NO_PRICES, Prices
from raypipe.memo.counts import CallCounts, add_up
from raypipe.recipes.executor import StageCounters
from raypipe.store import Store
from raypipe.store.layout import ATTEMPTS

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
        for run, tree in json.loads(store.files.read(done.name) or b"{}").items():
            counts = {name: StageCounters.of(c) for name, c in tree["counts"].items()}
            done.tables[run] = TableCounters(tree["tasks"], counts)
            done.earlier.add(counts, tree["tasks"])
        return done

    @property
    def counts(self) -> Counts:
        """All of it, by stage."""
        whole = TableCounters()
        for filled in self.tables.values():
            whole.add(filled.counts)
        return whole.counts

    def since(self) -> Counts:
        """What this attempt did, by stage: all of it without what earlier attempts did."""
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
            tree = {run: asdict(filled) for run, filled in self.tables.items() if run != without}
            self.store.files.write(self.name, json.dumps(tree).encode())

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
        if self.usd is not None:
            self._require_prices()

    def _require_prices(self) -> None:
        models = [name for name in self.prices.unpriced if name != MACHINES]
        if self.prices.known and not models:
            return
        lacking = ", ".join(self.prices.unpriced) or "any step"
        raise ConfError(
            f"--max-usd: expected prices, found none for {lacking}. Give usd_per_mtok in the models file, or "
            "usd_per_hour of machines in the cluster file"
        )

    @property
    def any(self) -> bool:
        """Whether something is capped."""
        return any(cap is not None for cap in (self.calls, self.usd, self.hours))

    def check_judge(self, done: RunCounters, judged: CallCounts, seconds: float) -> None:
        """The same before more answers are judged; `judged`: what the judge was asked so far. A command that
        did no task judges some answers whatever that costs."""
        if not judged.computed and done.tasks_since <= 0:
            return
        if spent := self._spent(
            calls_now(done) + judged.computed,
            usd_now(done, seconds, self.prices) + self._usd_of_judge(judged),
            seconds,
        ):
            raise CapReached(spent)

    def _usd_of_judge(self, judged: CallCounts) -> float:
        price, t = self.prices.tokens.get(JUDGE), judged.tokens
        return 0.0 if price is None else price.usd(t.prompt, t.cached, t.generated)

    def check(self, done: RunCounters, seconds: float) -> None:
        """Raises CapReached where this attempt has spent as much as it may. `seconds`: since it began."""
        if spent := self.reached(done, seconds):
            raise CapReached(spent)

    def reached(self, done: RunCounters, seconds: float) -> str:
        """Which cap is reached, and what then, in words; "" for none. Each command does a task at least, so
        that as many of them as it takes come to an end."""
        if done.tasks_since <= 0:
            return ""
        return self._spent(calls_now(done), usd_now(done, seconds, self.prices), seconds)

    def _spent(self, calls: int, usd: float, seconds: float) -> str:
        if self.hours is not None and seconds >= self.hours * HOUR_S:
            return f"--max-hours {self.hours:g} is reached after {seconds / HOUR_S:.3g} hours{_THEN}"
        if self.calls is not None and calls >= self.calls:
            return f"--max-calls {self.calls} is reached after {calls} calls{_THEN}"
        if self.usd is not None and usd >= self.usd:
            return f"--max-usd {self.usd:g} is reached after about {usd:.4g} US dollars{_THEN}"
        return ""


MACHINES = "machines"
_THEN = (
    ". What was done is stored, and the same command continues from there, with the cap counted from 0 again"
)
NO_CAPS = Caps()


def calls_now(done: RunCounters) -> int:
    """Calls to models and graphs that this attempt has made."""
    return sum(c.calls.computed for c in done.since().values())


def usd_now(done: RunCounters, seconds: float, prices: Prices) -> float:
    """US dollars that this attempt has cost, of what has a price."""
    now, usd = done.since(), (prices.machines or 0.0) * seconds / HOUR_S
    for step in now.keys() & prices.tokens.keys():
        t = now[step].calls.tokens
        usd += prices.tokens[step].usd(t.prompt, t.cached, t.generated)
    return usd
