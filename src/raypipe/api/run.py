"""Runs: bring the tables of a recipe up to date, score the answers, report what changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

from raypipe import readers
from raypipe.api.captured import open_data
from raypipe.api.judges import judge_model, open_judge, read_judge
from raypipe.api.measured import keep, measured, origin
from raypipe.api.paths import Data, Fields, deliver, run_folder, several
from raypipe.api.pipelines import open_pipeline, prices_of
from raypipe.api.results import Result, as_json, outside_loop
from raypipe.api.session import Named, Place, Session
from raypipe.cluster.file import Budget
from raypipe.core.errors import DataError
from raypipe.evaluation import evaluate as evaluating
from raypipe.evaluation import fault_budget
from raypipe.evaluation.evaluate import Evaluation
from raypipe.evaluation.labels import read_labels
from raypipe.evaluation.oracle import Oracle
from raypipe.evaluation.stored_questions import questions_of, require_questions
from raypipe.memo.mend import mend_memo
from raypipe.metrics.crag import DEFAULT_RULE, Rule, rule_id
from raypipe.metrics.kinds import open_kind
from raypipe.metrics.textfile import require_writable, write_json
from raypipe.pipeline.caps import Caps
from raypipe.pipeline.counters import RunCounters
from raypipe.pipeline.ingest_log import driving
from raypipe.readers.formats import Format
from raypipe.recipes.recipe import Recipe
from raypipe.report.report import to_json
from raypipe.runs.changes import Changes, changes, compared_with
from raypipe.runs.plan.records import Plan


class EvalOptions(TypedDict, total=False):
    """How an eval runs; each field has the default of the command line."""

    format: Format | None  # of the data; None: by its looks
    kind: str | None  # of the data: crag, qa, ranking or MODULE:NAME; None: as it was read, else the format's
    fields: Fields | None  # of rows: role -> field, or "query=question"; None: found by common names
    limit: int | None  # only the first questions; None: all
    rule: Rule | None  # of scoring, for kinds that have rules; None: official
    judge: str | None  # decides what the rule leaves open: a generator of the models file, or MODULE:NAME
    labels: str | Path | None  # people's verdicts (labels.jsonl), which outrank the judge's; None: none
    fresh: bool  # answer all questions, and ask language models again
    retry_faults: bool  # try failed rows again
    refresh: bool  # recompute what rests on expired replies of a graph
    on_plan: Callable[[Plan], None]  # gets the plan before anything runs
    check: bool  # default: True; raise FaultBudgetExceeded after the report is written
    max_calls: int | None  # to models and graphs: no task begins beyond it; None: any
    max_usd: float | None  # of what has a price
    max_hours: float | None  # of wall time
    oracle: Oracle | None  # passages or answer: golds are put in the place of that stage; None: none are
    only: Sequence[str] | None  # ids of stored questions, of which alone the run is; None: all
    session: Session
    began: float  # when the command did, of the clock perf_counter; default: now


@dataclass(frozen=True, slots=True)
class RunResult(Result):
    """Counts of the steps that ran; a row for each."""

    TITLE = "{0.recipe}"
    recipe: str  # its name
    counters: RunCounters

    def rows(self) -> Iterator[Mapping[str, Any]]:
        for name, count in self.to_json()["steps"].items():
            yield {"step": name, **count}

    def to_json(self) -> dict[str, Any]:
        return as_json(recipe=self.recipe, steps=self.counters.counts)


@dataclass(frozen=True, slots=True)
class EvalResult(Result):
    """A finished eval: its report and files; its rows are the questions, in order; `verdict` is null where
    the dataset has no answer."""

    SCHEMA = "id query prediction outcome source verdict"
    evaluation: Evaluation
    budget: Budget  # faults that the cluster file allows

    @property
    def folder(self) -> Path:
        """The run's folder: report.json, predictions.jsonl, report.html, manifest.json."""
        return self.evaluation.folder.path

    @property
    def title(self) -> str:
        report = self.evaluation.report
        return f"{report.recipe}, run {report.run}: {report.questions} questions, {self.folder}"

    def rows(self) -> Iterator[Mapping[str, Any]]:
        with self.evaluation.folder.predictions.open(encoding="utf-8") as lines:
            for line in map(json.loads, lines):
                yield {name: line[name] for name in self.columns()}

    def to_json(self) -> dict[str, Any]:
        return to_json(self.evaluation.report)

    def check_faults(self) -> None:
        """Raises FaultBudgetExceeded where more rows failed than the cluster file allows."""
        fault_budget.check(self.budget, self.evaluation.undone)


@dataclass(frozen=True, slots=True)
class ReprocessResult(Result):
    """A finished eval, and how its answers differ from those of the run before; a row for each that changed:
    `step` is the first that came out differently."""

    SCHEMA = "question query step before after"
    eval: EvalResult
    changes: Changes | None  # None: no earlier run has answered any of these questions

    @property
    def title(self) -> str:
        if (found := self.changes) is None:
            return "no earlier run"
        return f"{len(found.changed)} answers changed, {found.same} the same"

    def rows(self) -> Iterator[Mapping[str, Any]]:
        for c in self.changes.changed if self.changes else ():
            named = {"question": c.question, "query": c.query, "step": c.step}
            yield {**named, "before": c.before.answer, "after": c.after.answer}

    def to_json(self) -> dict[str, Any]:
        plan = self.eval.evaluation.manifest.plan
        return as_json(plan=plan, report=self.eval.to_json(), changes=self.changes)


def check_names(
    recipe: Named, data: Sequence[str | Path] = (), judge: str | None = None, rule: Rule | None = None,
    session: Session | None = None, kind: str | None = None,
) -> Recipe:  # fmt: skip
    """The recipe of an eval, once all names are found that the eval was given: of recipe, cluster file,
    judge, rule and kind. Raises ConfError or ModelMissing; reads no data and starts nothing."""
    session = session or Session()
    found = session.recipe(recipe, data)
    session.cluster_file()
    rule_id(rule or DEFAULT_RULE)
    if kind is not None:
        open_kind(kind, rule, judge is not None)
    if judge is not None:
        read_judge(session, judge, rule or DEFAULT_RULE)
    return found


@outside_loop
def index(
    recipe: Named, store: Place = None, retry_faults: bool = False, session: Session | None = None
) -> RunResult:
    """Parses, splits and embeds the sources of a store that a recipe's tables lack.

    `retry_faults` tries failed sources again. Raises ClusterTooSmall, ModelMissing, and DataError where there
    are no sources.
    """
    session = session or Session()
    opened, found = session.store(store), session.recipe(recipe)
    if not opened.count("sources"):
        raise DataError(f"{opened.uri}: no sources. `raypipe ingest PATH` reads some into a store")
    with (
        open_pipeline(session, opened, found, answers=False) as pipeline,
        driving(opened, f"index {found.name}"),
    ):
        mend_memo(opened)
        if retry_faults:
            fault_budget.retry(pipeline, ())
        return RunResult(found.name, pipeline.index(None))


@outside_loop
def answer(
    recipe: Named, store: Place = None, fresh: bool = False, retry_faults: bool = False,
    session: Session | None = None,
) -> RunResult:  # fmt: skip
    """Answers the stored questions that have no answer of this recipe yet.

    `fresh` answers all, and asks language models again; `retry_faults` tries failed questions again. Raises
    DataError where there are no questions.
    """
    session = session or Session()
    opened, found = session.store(store), session.recipe(recipe)
    with open_pipeline(session, opened, found) as pipeline, driving(opened, f"answer {found.name}"):
        mend_memo(opened)
        questions = questions_of(pipeline, None, None)
        require_questions(questions, (), opened)
        if retry_faults:
            fault_budget.retry(pipeline, questions)
        return RunResult(found.name, pipeline.answer(questions, fresh))


@outside_loop
def evaluate(
    recipe: Named, data: Data = (), store: Place = None, out: str | Path | None = None,
    **options: Unpack[EvalOptions],
) -> EvalResult:  # fmt: skip
    """Runs what is missing of a dataset, scores every answer, and writes a report.

    `data` is ingested first; none: all stored questions. `out` is the folder of the report; None: a new one
    under $RAYPIPE_HOME/runs. Raises FaultBudgetExceeded after the report is written; CapReached at a cap,
    where the same call continues; ConfError, DataError, ModelMissing and ClusterTooSmall before anything
    runs; for a name that is not known, before any file is fetched or made.
    """
    began = time.perf_counter()
    session, rule, kind = options.get("session") or Session(), options.get("rule"), options.get("kind")
    given = several(data)
    found = check_names(recipe, given, options.get("judge"), rule, session, kind)
    said = None if (file := options.get("labels")) is None else read_labels(Path(file))
    judging = judge_model(session, options.get("judge"), rule or DEFAULT_RULE)
    prices = prices_of(session, found, judging)
    caps = Caps(options.get("max_calls"), options.get("max_usd"), options.get("max_hours"), prices)
    filled, files, format = open_data(given, store, session, options.get("format"), options.get("fields"))
    if files:
        readers.check(files, format)  # a missing file or field is reported before anything starts
    folder = run_folder(out, session.settings, filled.uri, found.name)
    require_writable(folder, "--out")
    with (
        open_judge(session, options.get("judge"), rule or DEFAULT_RULE) as (judge, kit),
        open_pipeline(session, filled, found, judge=kit) as pipeline,
    ):
        done = evaluating.evaluate(
            pipeline, files, format, options.get("limit"), rule, folder, judge, options.get("fresh", False),
            options.get("retry_faults", False), origin(session.settings),
            options.get("on_plan", lambda plan: None), options.get("refresh", False),
            measured(session.settings, session.cluster_file()), options.get("began", began),
            options.get("only"), caps, kind, options.get("oracle"), said,
        )  # fmt: skip
    keep(session.settings, done.folder, done.manifest.finished)
    result = EvalResult(done, session.cluster_file().faults)
    deliver(out, folder)
    if options.get("check", True):
        result.check_faults()
    return result


@outside_loop
def reprocess(
    recipe: Named, data: Data = (), store: Place = None, out: str | Path | None = None,
    **options: Unpack[EvalOptions],
) -> ReprocessResult:  # fmt: skip
    """Recomputes only what changed, and reports which answers differ from the run before.

    Takes what `evaluate` takes, and writes changes.json next to the report.
    """
    session, check = options.get("session") or Session(), options.get("check", True)
    given = several(data)
    found = session.recipe(recipe, given)
    filled = session.store_to_fill(store) if given else session.store(store)
    folder = run_folder(out, session.settings, filled.uri, found.name)
    options["check"] = False
    done = evaluate(found, given, filled, folder, **options)
    before = compared_with(filled, done.evaluation.manifest)
    result = ReprocessResult(done, changes(filled, before, done.evaluation.manifest) if before else None)
    write_json(done.evaluation.folder.changes, result.to_json()["changes"])
    deliver(out, folder)
    if check:
        done.check_faults()
    return result
