"""Faults of a run's rows, and the check whether their number is allowed.

A fault is an expected failure of a step on one row, kept as data. Rows are questions, sources, lines and
files. Each row is done, a dead letter (failed for good), or pending (transient trouble). If a step fails on a
row and another step answers the row, the row is done, and its fault is kept. This module reads stored rows
and faults, and deletes faults for a retry; it runs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.errors import FaultBudgetExceeded
from raypipe.core.protocols import CorpusStep, Step
from raypipe.core.records import FAULT, UNREADABLE, Question, faults_of
from raypipe.recipes.recipe import Recipe, faults_at
from raypipe.recipes.step_contract import asked_models, requested_by
from raypipe.runs.cluster.cluster_file import Budget
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.ingest_log import driving
from raypipe.runs.pipeline.recipe_tables import table_names
from raypipe.runs.prune import READS
from raypipe.store import Store
from raypipe.store.ids import filters

RowKind = Literal["lines", "files", "sources", "questions"]
SHOWN = 3  # rows in an error's message


@dataclass(frozen=True, slots=True)
class RowFault:
    """A row with a fault. It has failed for good, is tried again by the next run, or is a question that
    another step answered."""

    kind: RowKind
    id: str  # id of a source or question; file:line for a line; folder/file for a file of a folder
    step: str
    reason: str
    detail: str
    transient: bool  # True: the row is pending, and the next run tries it again
    attempts: int  # attempts in all runs
    recovered: bool = False  # True: another step answered it, so it counts as done


@dataclass(frozen=True, slots=True)
class StepFaults:
    """Counts for one step that calls a model or a graph: its rows, and the rows without a reply."""

    step: str
    rows: int
    unanswered: int  # rows without a reply
    detail: str  # the server's message for the first unanswered row


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Counts of the rows of one kind by outcome."""

    kind: RowKind
    rows: int
    done: int
    failed: int  # dead letters: only --retry-faults tries them again
    pending: int  # rows that the next run tries again

    @property
    def undone(self) -> int:
        return self.failed + self.pending


@dataclass(frozen=True, slots=True)
class RowFaults:
    """Faulty rows and counts of one run. Rows are its questions, their sources, and lines and files read."""

    rows: tuple[RowFault, ...]  # sorted by kind, step, reason and id; recovered ones last
    counts: tuple[RowCounts, ...]
    steps: tuple[StepFaults, ...] = ()  # steps that left some rows without a reply


class AnswerFaults:
    """Counter of the faults of answers. `add` takes one answer at a time."""

    def __init__(self, recipe: Recipe) -> None:
        self.causes = Counter[tuple[str, str, bool, bool]]()  # step, reason, transient, recovered
        self.details: dict[tuple[str, str, bool, bool], str] = {}  # detail of the first fault of each cause
        self.recovered: list[RowFault] = []
        self._asking = [s for s in recipe.question if _asks(s.step)]
        self._steps: dict[str, StepFaults] = {}

    def add(self, question: Question) -> None:
        """Counts the faults of an answer. An absent answer without faults counts as `not_reached`."""
        done = question.outcome not in ("", FAULT)
        for f in faults_of(question):
            fault_of = f.step, f.reason, f.detail, f.transient
            self.count(*fault_of, done)
            if done:
                self.recovered.append(RowFault("questions", question.id, *fault_of, 1, True))
        if not done and not question.faults:
            self.count("answer", "not_reached", "", True)
        for stage in self._asking:
            of = faults_at(stage, question)
            if of or (done and stage.admits(question)):
                # An unreadable reply is a reply. Most final faults of a graph come from a model's wrong call.
                lost = [f for f in of if f.reason != UNREADABLE]
                if requested_by(stage.step):
                    lost = [f for f in of if f.transient or f.reason == "bad_request"]
                fault = next(iter(lost), None)
                s = self._steps.get(stage.name, StepFaults(stage.name, 0, 0, ""))
                detail = s.detail or (f"{fault.reason}: {fault.detail}" if fault else "")
                lacks = s.unanswered + (fault is not None)
                self._steps[stage.name] = StepFaults(stage.name, s.rows + 1, lacks, detail)

    def count(self, step: str, reason: str, detail: str, transient: bool, recovered: bool = False) -> None:
        """Counts one fault by its cause."""
        cause = step, reason, transient, recovered
        self.causes[cause] += 1
        self.details.setdefault(cause, detail)

    def steps(self) -> list[StepFaults]:
        """Returns the steps that left some row without a reply."""
        return [s for s in self._steps.values() if s.unanswered]


def _asks(step: Step | CorpusStep) -> bool:
    return bool(asked_models(step) or requested_by(step))


def check(budget: Budget, faults: RowFaults) -> None:
    """Raises FaultBudgetExceeded if a run lost too many rows: a step left too many rows without a reply, too
    many rows of one kind are failed or pending, or no question was answered. The message names some rows."""
    for s in faults.steps:
        if s.unanswered > budget.step_share * s.rows:
            raise FaultBudgetExceeded(
                f"{s.step} got no reply for {s.unanswered} of {s.rows} rows, more than the share "
                f"{budget.step_share:g} (faults.step_share of the cluster file), so the scores are not those "
                f"of this recipe. All else is done and stored. `raypipe inspect DIR --faults` lists the "
                f"rows; the same command asks for the pending ones again, --fresh for all\n  {s.detail}"
            )
    for t in faults.counts:
        allowed = budget.allowed(t.rows)
        if t.undone > allowed or (t.kind == "questions" and t.rows and not t.done):
            some = [x for x in faults.rows if x.kind == t.kind][:SHOWN]
            shown = "".join(f"\n  {x.id}: {x.step}, {x.reason}: {x.detail}" for x in some)
            raise FaultBudgetExceeded(
                f"{t.undone} of {t.rows} {t.kind} failed, {allowed} may fail (faults.share "
                f"{budget.share:g}, faults.rows {budget.rows} of the cluster file). All others are done and "
                f"stored. `raypipe inspect DIR --faults` lists them; --retry-faults tries them again{shown}"
            )


def row_faults(
    pipeline: Pipeline,
    questions: Iterable[Question],
    lines: Mapping[str, int],
    answers: AnswerFaults | None = None,
) -> RowFaults:
    """Returns the faulty rows of a run, and counts by kind. A row is pending if it is neither done nor a dead
    letter. Faulty lines and files of all reads are listed. `lines` has the counts of the files just read
    (`readers.ReadCounts`); if it is empty, lines are not counted. `answers` has the faults of the answers to
    these questions; if it is None, they are collected from the stored answers."""
    wanted, tables = pipeline.sources(questions), table_names(pipeline.store, pipeline.recipe)
    evidence = pipeline.answer_sources(questions)
    keys, sources = pipeline.keys(questions, evidence), evidence.missing.keys()
    left = {keys[k] for k in pipeline.store.missing("answers", "key", list(keys))}
    found: dict[tuple[str, str], RowFault] = {}
    for row in pipeline.store.scan("faults").to_pylist():
        if row["run"] in READS:
            kind = _read_as(row)
        elif row["digest"] in tables and row["id"] in sources:
            kind = "sources"
        elif row["digest"] in keys and row["id"] in left:
            kind = "questions"
        else:
            continue  # a row of another run, or one that is done by now
        place = row["digest"], row["id"]
        found[place] = _undone(kind, row, found.get(place))
    shown = sorted(found.values(), key=lambda x: (x.kind, x.step, x.reason, x.id))
    counted = [_tally("sources", wanted, sources, shown), _tally("questions", keys, left, shown)]
    if answers is None:
        answers = AnswerFaults(pipeline.recipe)
        for answered in pipeline.answers(questions, evidence):
            answers.add(answered)
    recovered = sorted(answers.recovered, key=lambda x: (x.step, x.reason, x.id))
    steps: list[StepFaults] = []  # corpus steps that got no reply from their model for some source
    for name in (s.name for s in pipeline.recipe.corpus if _asks(s.step)):
        if of := [x for x in shown if x.kind == "sources" and x.step == name]:
            steps.append(StepFaults(name, len(wanted), len(of), f"{of[0].reason}: {of[0].detail}"))
    if lines:
        used, bad = lines["lines"] - lines["blank_lines"], lines["faults"]
        counted.insert(0, RowCounts("lines", used, used - bad, bad, 0))
    return RowFaults((*shown, *recovered), tuple(counted), (*steps, *answers.steps()))


def _read_as(row: Mapping[str, Any]) -> RowKind:
    return "lines" if row["run"] == "ingest" else "files"


def _undone(kind: RowKind, r: Mapping[str, Any], earlier: RowFault | None = None) -> RowFault:
    """Converts a row of the table of faults. Adds the attempts of `earlier`, another fault of this row."""
    transient = r["transient"] and (earlier is None or earlier.transient)
    attempts = r["attempts"] + (earlier.attempts if earlier else 0)
    return RowFault(kind, r["id"], r["step"], r["reason"], r["detail"], transient, attempts)


def unread_rows(store: Store) -> tuple[RowFault, ...]:
    """Returns the lines and files that could not be read into the store when they were last tried."""
    rows = store.scan("faults", filter=next(filters("run", READS))).to_pylist()
    found = [_undone(_read_as(r), r) for r in rows]
    return tuple(sorted(found, key=lambda x: (x.kind, x.id)))


def _tally(
    what: RowKind, rows: Collection[str], undone: Collection[str], failed: Sequence[RowFault]
) -> RowCounts:
    dead = len({x.id for x in failed if x.kind == what and not x.transient})
    return RowCounts(what, len(rows), len(rows) - len(undone), dead, len(undone) - dead)


def retry(pipeline: Pipeline, questions: Iterable[Question]) -> int:
    """Deletes faults of the recipe's tables and these questions, for another try. Returns their number."""
    store, keys = pipeline.store, pipeline.keys(questions, pipeline.answer_sources(questions))
    wanted = [*table_names(store, pipeline.recipe), *keys]
    with driving(store, f"retry {pipeline.recipe.name}"):
        rows = store.scan("faults", ["digest"])["digest"]
        count: int = pc.sum(pc.is_in(rows, value_set=pa.array(wanted, pa.string()))).as_py() or 0
        store.forget("faults", "digest", wanted)
    return count
