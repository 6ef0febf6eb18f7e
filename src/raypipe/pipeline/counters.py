"""Counters of a run, accumulated across restarts.

Each task's counts are in its completion record. Those go when a table is committed; what they came to is
then kept in one small file of the store until a report has said it. Knows counts; knows no table and no step.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

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

    tables: dict[str, TableCounters] = field(
        default_factory=dict
    )  # by run of one table, all attempts together
    earlier: TableCounters = field(
        default_factory=TableCounters
    )  # of that, what attempts before this one did
    store: Store | None = None  # where it is kept until it is reported; None: it is not
    name: str = ""  # of its file there
    seconds: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """Question id -> stage -> seconds: its share of the task that answered it in this run."""
    memo_damaged: int = 0  # tables and files of the memo that were damaged, in this attempt
    rows_by_worker: dict[str, dict[str, int]] = field(
        default_factory=dict
    )  # pool -> who -> rows, of this attempt

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
        before = self.earlier.counts
        return {
            name: StageCounters.of(_minus(asdict(count), asdict(before[name]))) if name in before else count
            for name, count in self.counts.items()
        }

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


def _minus(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of a tree less those of another of its form."""
    return {k: _minus(v, b[k]) if isinstance(v, dict) else v - b[k] for k, v in a.items()}


def forget_runs(store: Store, runs: Collection[str]) -> None:
    """Forgets what runs of tables counted that were given up."""
    for name in store.files.names(ATTEMPTS) if runs else ():
        tree = json.loads(store.files.read(f"{ATTEMPTS}/{name}") or b"{}")
        left = {name: counted for name, counted in tree.items() if name.partition(" ")[0] not in runs}
        if not left:
            store.files.remove(f"{ATTEMPTS}/{name}")
        elif left != tree:
            store.files.write(f"{ATTEMPTS}/{name}", json.dumps(left).encode())
