"""What a run did, over all its attempts: one that was stopped is gone on with, and its report counts it all.

Each part's counts stand in its completion record. Those go when a table is committed; what they came to is
then kept in one small file of the store until a report has said it. Knows counts; knows no table and no step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TypeAlias

from raypipe.recipes.executor import StageCount
from raypipe.store import Store

Counts: TypeAlias = dict[str, StageCount]
"""By name of stage."""


@dataclass(slots=True)
class Filled:
    """What the parts of one run over one table came to."""

    parts: int = 0
    counts: Counts = field(default_factory=dict)

    def add(self, counts: Mapping[str, StageCount], parts: int = 1) -> None:
        self.parts += parts
        for name, count in counts.items():
            self.counts.setdefault(name, StageCount()).add(count)


@dataclass(slots=True)
class Done:
    """What was done: by this attempt, and by those before it that came to no report."""

    tables: dict[str, Filled] = field(default_factory=dict)  # by run of one table, all attempts together
    earlier: Filled = field(default_factory=Filled)  # of that, what attempts before this one did
    store: Store | None = None  # where it is kept until it is reported; None: it is not
    name: str = ""  # of its file there
    places: dict[str, dict[str, int]] = field(default_factory=dict)  # pool -> who -> rows, of this attempt

    @classmethod
    def kept(cls, store: Store, what: str) -> Done:
        """What attempts at some work did that came to no report. `what` names the work: a digest."""
        done = cls(store=store, name=f"_attempts/{what}.json")
        for run, tree in json.loads(store.files.read(done.name) or b"{}").items():
            counts = {name: StageCount.of(c) for name, c in tree["counts"].items()}
            done.tables[run] = Filled(tree["parts"], counts)
            done.earlier.add(counts, tree["parts"])
        return done

    @property
    def counts(self) -> Counts:
        """All of it, by stage."""
        whole = Filled()
        for filled in self.tables.values():
            whole.add(filled.counts)
        return whole.counts

    @property
    def resumed(self) -> int:
        """Parts that earlier attempts did."""
        return self.earlier.parts

    def add(self, run: str, counts: Mapping[str, StageCount], earlier: bool = False) -> None:
        """Counts one part, which was done now or by an earlier attempt."""
        self.tables.setdefault(run, Filled()).add(counts)
        if earlier:
            self.earlier.add(counts)

    def keep(self) -> None:
        """Keeps what was counted: before a table is committed, since its completion records go with that."""
        if self.store is not None:
            tree = {run: asdict(filled) for run, filled in self.tables.items()}
            self.store.files.write(self.name, json.dumps(tree).encode())

    def reported(self) -> None:
        """Forgets it: a report has said it."""
        if self.store is not None:
            self.store.files.remove(self.name)
