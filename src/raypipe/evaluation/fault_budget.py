"""Faults of a run's rows: dead letters, pending rows, and rows that another step answered; and whether a run
may have as many.

Rows in are always rows done, dead letters, and pending rows, whose trouble was transient. A row is done, and
its fault is kept, where another step answered it. Knows the pipeline and what it stored; runs nothing.
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
from raypipe.runs.cluster.file import Budget
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.ingest_log import driving
from raypipe.runs.pipeline.recipe_tables import table_names
from raypipe.runs.prune import READS
from raypipe.store import Store
from raypipe.store.ids import filters

RowKind = Literal["lines", "files", "sources", "questions"]
SHOWN = 3  # rows that an error names


@dataclass(frozen=True, slots=True)
class RowFault:
    """A row with a fault: a dead letter, pending, or answered by another step."""

    kind: RowKind
    id: str  # source or question; file:line, for a line; folder/file, for a file of a folder
    step: str
    reason: str
    detail: str
    transient: bool  # True: pending, the next run tries it again
    attempts: int  # over all runs
    recovered: bool = False  # True: another step answered it, so it counts as done


@dataclass(frozen=True, slots=True)
class StepFaults:
    """Rows that one step asked a model or a graph about, and those of them that got no reply."""

    step: str
    rows: int
    unanswered: int
    detail: str  # of the first of them: what the server said


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Outcome of the rows of a kind."""

    kind: RowKind
    rows: int
    done: int
    failed: int  # for good: only --retry-faults tries them again
    pending: int  # the next run tries them

    @property
    def undone(self) -> int:
        return self.failed + self.pending


@dataclass(frozen=True, slots=True)
class RowFaults:
    """Rows with faults among some questions, their sources and the lines that were read, and their counts."""

    rows: tuple[RowFault, ...]  # by kind, step, reason and id, recovered ones last
    counts: tuple[RowCounts, ...]
    steps: tuple[StepFaults, ...] = ()  # with rows that got no reply


class AnswerFaults:
    """Faults of answers, gathered one answer after the other."""

    def __init__(self, recipe: Recipe) -> None:
        self.causes = Counter[tuple[str, str, bool, bool]]()  # step, reason, transient, recovered
        self.details: dict[tuple[str, str, bool, bool], str] = {}  # of the first of each
        self.recovered: list[RowFault] = []
        self._asking = [s for s in recipe.question if _asks(s.step)]
        self._steps: dict[str, StepFaults] = {}

    def add(self, question: Question) -> None:
        """Takes an answer as it is stored; one that is not stored has what stopped it as its fault."""
        done = question.outcome not in ("", FAULT)
        for f in faults_of(question):
            self.count(f.step, f.reason, f.detail, f.transient, done)
            if done:
                found = RowFault("questions", question.id, f.step, f.reason, f.detail, f.transient, 1, True)
                self.recovered.append(found)
        if not done and not question.faults:
            self.count("answer", "not_reached", "", True)
        for stage in self._asking:
            of = faults_at(stage, question)
            if of or (done and stage.admits(question)):
                # A reply that cannot be read came; most faults of a graph are of the call that a model wrote.
                graph = bool(requested_by(stage.step))
                lost = [f for f in of if f.transient or f.reason == "bad_request"]
                lost = lost if graph else [f for f in of if f.reason != UNREADABLE]
                fault = next(iter(lost), None)
                asked = self._steps.get(stage.name, StepFaults(stage.name, 0, 0, ""))
                detail = asked.detail or (f"{fault.reason}: {fault.detail}" if fault else "")
                counts = asked.rows + 1, asked.unanswered + (fault is not None)
                self._steps[stage.name] = StepFaults(stage.name, *counts, detail)

    def count(self, step: str, reason: str, detail: str, transient: bool, recovered: bool = False) -> None:
        """Counts one fault by its cause."""
        cause = step, reason, transient, recovered
        self.causes[cause] += 1
        self.details.setdefault(cause, detail)

    def steps(self) -> list[StepFaults]:
        """The steps that got no reply for some row."""
        return [s for s in self._steps.values() if s.unanswered]


def _asks(step: Step | CorpusStep) -> bool:
    return bool(asked_models(step) or requested_by(step))


def check(budget: Budget, faults: RowFaults) -> None:
    """Raises FaultBudgetExceeded, with numbers and the first rows, where a step got no reply for more rows,
    or more rows failed, than are allowed, or where no question was answered, whatever is allowed."""
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
    """The rows of a run with faults, and the rows of each kind, counted. `lines`: what was read
    (`readers.ReadCounts`), nothing where no file was; then the lines of all files that the store ever read
    are listed and not counted. A row that is neither done nor a dead letter is pending. `answers`: of these
    questions; None: the stored answers are read."""
    wanted, tables = pipeline.sources(questions), table_names(pipeline.store, pipeline.recipe)
    evidence = pipeline.answer_sources(questions)
    keys, sources = pipeline.keys(questions, evidence), evidence.lacks.keys()
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
            continue  # of other rows, or done since
        place = row["digest"], row["id"]
        found[place] = _undone(kind, row, found.get(place))
    shown = sorted(found.values(), key=lambda x: (x.kind, x.step, x.reason, x.id))
    counted = [_tally("sources", wanted, sources, shown), _tally("questions", keys, left, shown)]
    if answers is None:
        answers = AnswerFaults(pipeline.recipe)
        for answered in pipeline.answers(questions, evidence):
            answers.add(answered)
    recovered = sorted(answers.recovered, key=lambda x: (x.step, x.reason, x.id))
    steps: list[StepFaults] = []  # of the corpus half, that got nothing from their model for some source
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
    """A row of the table of faults; `earlier`: the same row, failed before."""
    transient = r["transient"] and (earlier is None or earlier.transient)
    attempts = r["attempts"] + (earlier.attempts if earlier else 0)
    return RowFault(kind, r["id"], r["step"], r["reason"], r["detail"], transient, attempts)


def unread_rows(store: Store) -> tuple[RowFault, ...]:
    """The lines and files that could not be read into a store, as they were read last."""
    rows = store.scan("faults", filter=next(filters("run", READS))).to_pylist()
    found = [_undone(_read_as(r), r) for r in rows]
    return tuple(sorted(found, key=lambda x: (x.kind, x.id)))


def _tally(
    what: RowKind, rows: Collection[str], undone: Collection[str], failed: Sequence[RowFault]
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
