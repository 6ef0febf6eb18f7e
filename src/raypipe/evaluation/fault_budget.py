"""Undone rows: dead letters and pending ones, why they failed, and whether a run may lose as many.

Rows in are always rows done, dead letters, and pending rows, whose trouble was transient. Knows the
pipeline and what it stored; runs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.cluster.file import Budget
from raypipe.core.errors import FaultBudgetExceeded
from raypipe.core.records import Question
from raypipe.pipeline.driver import Pipeline
from raypipe.pipeline.ingest_log import driving
from raypipe.pipeline.recipe_tables import table_names
from raypipe.runs.prune import READS
from raypipe.store import Store
from raypipe.store.ids import filters

RowKind = Literal["lines", "files", "sources", "questions"]
SHOWN = 3  # rows that an error names


@dataclass(frozen=True, slots=True)
class UndoneRow:
    """One failed row that is not done: a dead letter, or pending."""

    kind: RowKind
    id: str  # source or question; file:line, for a line; folder/file, for a file of a folder
    step: str
    reason: str
    detail: str
    transient: bool  # True: pending, the next run tries it again
    attempts: int  # over all runs


@dataclass(frozen=True, slots=True)
class RowCounts:
    """What became of the rows of one kind."""

    kind: RowKind
    rows: int
    done: int
    failed: int  # for good: only --retry-faults tries them again
    pending: int  # the next run tries them

    @property
    def undone(self) -> int:
        return self.failed + self.pending


@dataclass(frozen=True, slots=True)
class UndoneRows:
    """Failed rows among some questions, their sources and the lines that were read, and their counts."""

    rows: tuple[UndoneRow, ...]  # by kind, step, reason and id
    counts: tuple[RowCounts, ...]


def check(budget: Budget, losses: UndoneRows) -> None:
    """Raises FaultBudgetExceeded, with numbers and the first rows, where more failed than are allowed, or
    where no question was answered, whatever is allowed."""
    for t in losses.counts:
        allowed = budget.allowed(t.rows)
        if t.undone > allowed or (t.kind == "questions" and t.rows and not t.done):
            some = [x for x in losses.rows if x.kind == t.kind][:SHOWN]
            shown = "".join(f"\n  {x.id}: {x.step}, {x.reason}: {x.detail}" for x in some)
            raise FaultBudgetExceeded(
                f"{t.undone} of {t.rows} {t.kind} failed, {allowed} may fail (faults.share "
                f"{budget.share:g}, faults.rows {budget.rows} of the cluster file). All others are done and "
                f"stored. `raypipe faults DIR` lists them; --retry-faults tries them again{shown}"
            )


def undone_rows(pipeline: Pipeline, questions: Iterable[Question], lines: Mapping[str, int]) -> UndoneRows:
    """The undone rows of a run, counted. `lines`: what was read (`readers.ReadCounts`), nothing where no
    file was; then the lines of all files that the store ever read are listed and not counted. A row that is
    neither done nor a dead letter is pending."""
    wanted, tables = pipeline.sources(questions), table_names(pipeline.store, pipeline.recipe)
    evidence = pipeline.answer_sources(questions)
    keys, sources = pipeline.keys(questions, evidence), evidence.lacks.keys()
    left = {keys[k] for k in pipeline.store.missing("answers", "key", list(keys))}
    found: dict[tuple[str, str], UndoneRow] = {}
    for row in pipeline.store.scan("faults").to_pylist():
        if row["run"] in READS:
            kind = _read_as(row)
        elif row["digest"] in tables and row["id"] in sources:
            kind = "sources"
        elif row["digest"] in keys and row["id"] in left:
            kind = "questions"
        else:
            continue  # of other rows, or done since
        place = row["digest"], row["id"]
        found[place] = _undone(kind, row, found.get(place))
    shown = sorted(found.values(), key=lambda x: (x.kind, x.step, x.reason, x.id))
    counted = [_tally("sources", wanted, sources, shown), _tally("questions", keys, left, shown)]
    if lines:
        used, bad = lines["lines"] - lines["blank_lines"], lines["faults"]
        counted.insert(0, RowCounts("lines", used, used - bad, bad, 0))
    return UndoneRows(tuple(shown), tuple(counted))


def _read_as(row: Mapping[str, Any]) -> RowKind:
    return "lines" if row["run"] == "ingest" else "files"


def _undone(kind: RowKind, r: Mapping[str, Any], earlier: UndoneRow | None = None) -> UndoneRow:
    """A row of the table of faults; `earlier`: the same row, failed before."""
    transient = r["transient"] and (earlier is None or earlier.transient)
    attempts = r["attempts"] + (earlier.attempts if earlier else 0)
    return UndoneRow(kind, r["id"], r["step"], r["reason"], r["detail"], transient, attempts)


def unread_rows(store: Store) -> tuple[UndoneRow, ...]:
    """The lines and files that could not be read into a store, as they were read last."""
    rows = store.scan("faults", filter=next(filters("run", READS))).to_pylist()
    found = [_undone(_read_as(r), r) for r in rows]
    return tuple(sorted(found, key=lambda x: (x.kind, x.id)))


def _tally(
    what: RowKind, rows: Collection[str], undone: Collection[str], failed: Sequence[UndoneRow]
) -> RowCounts:
    dead = len({x.id for x in failed if x.kind == what and not x.transient})
    return RowCounts(what, len(rows), len(rows) - len(undone), dead, len(undone) - dead)


def retry(pipeline: Pipeline, questions: Iterable[Question]) -> int:
    """Deletes the faults of sources and questions, so that the next run tries them again; how many."""
    store, keys = pipeline.store, pipeline.keys(questions, pipeline.answer_sources(questions))
    wanted = [*table_names(store, pipeline.recipe), *keys]
    with driving(store, f"retry {pipeline.recipe.name}"):
        rows = store.scan("faults", ["digest"])["digest"]
        count: int = pc.sum(pc.is_in(rows, value_set=pa.array(wanted, pa.string()))).as_py() or 0
        store.forget("faults", "digest", wanted)
    return count
