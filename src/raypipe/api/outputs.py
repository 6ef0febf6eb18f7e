"""The JSON that programs may rely on: keys and types of each output, as JSON Schema.

The schemas are made from the classes here, from `run_outputs` and from the records that are printed as they
are; `docs/schemas/` has them as files (`make schemas` writes them, a test compares them). Every object says
its format, which is raised when a key changes its name, type or meaning, or is removed; a new key does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NotRequired, get_type_hints

from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict

from raypipe.api.bench import BenchResult
from raypipe.api.export import Shape
from raypipe.api.finetune_outputs import Finetuned, FinetunePlan
from raypipe.api.kg_score import CallRate
from raypipe.api.machine import Finding
from raypipe.api.made_questions import QuestionsPlan
from raypipe.api.model_files import ModelNeed
from raypipe.api.previews import FileFields, FirstDocument, FirstQuestion
from raypipe.api.reproduce import PublishedNumber, Reproduction, Verdict
from raypipe.api.run_outputs import (
    STRICT,
    AssumedOutput,
    Eval,
    Interval,
    MeasureMean,
    MeasureSliceMean,
    PlanOutput,
    Reprocess,
    Score,
    SliceScore,
    StepCounts,
)
from raypipe.api.usage import TenantUsage
from raypipe.api.validate import CheckedFile, Problem
from raypipe.core.records import Fault
from raypipe.evaluation.compare import RunComparison
from raypipe.evaluation.fault_budget import RowCounts, UndoneRow
from raypipe.evaluation.fit_decide import DecideFitReport
from raypipe.evaluation.fit_fuse import FuseFitReport
from raypipe.evaluation.judge_check import JudgeCheck
from raypipe.evaluation.label_set import LabelExample, MixLine
from raypipe.evaluation.repeats import Repeats
from raypipe.evaluation.sweep import PlannedPoint, Sweep
from raypipe.evaluation.view.details import Part
from raypipe.evaluation.view.run_list import RunHeader
from raypipe.metrics.crag import CragScore, Rule
from raypipe.metrics.losses import Loss, Losses
from raypipe.metrics.ranking import MAP_CUT_20_MIN, MEASURES
from raypipe.readers import BadLine, ReadCounts
from raypipe.recipes.check import Half, LawCheck, Lock
from raypipe.report.report import JudgeLine, ReplacedRows
from raypipe.runs.explain import Explanation
from raypipe.runs.forget.records import Holding
from raypipe.runs.prune import Removal
from raypipe.runs.trial_verdict import TrialReport
from raypipe.serving.http.reply_types import AnswerResponse
from raypipe.text.made_questions import MadeKind


def _from_fields(name: str, types: dict[str, Any]) -> Any:
    """A TypedDict of keys that are declared elsewhere."""
    made: Any = TypedDict
    return with_config(STRICT)(made(name, types))


@with_config(STRICT)
class Synth(TypedDict):
    """`synth --json`."""

    format: Literal[2]
    folder: str
    questions: int
    citations: int  # search results, repeated and empty ones included
    pages: int  # distinct and not empty
    empty: int  # citations whose page is empty
    bytes: int  # of the question files
    seconds: float


@with_config(STRICT)
class SynthCollection(TypedDict):
    """`synth --papers N --json`."""

    format: Literal[2]
    folder: str
    papers: int
    questions: int
    golds: int  # judged papers of all questions
    bytes: int
    seconds: float


Ingest = _from_fields(
    "Ingest",
    {
        "format": Literal[2],
        "store": str,  # URI
        "again": bool,  # true: the same bytes had been read before
        "questions": int,
        "kind": str,  # of the data; "": read by a raypipe that had no kinds
        "read_by": str,  # one process, or how many tasks; "": a folder of documents
        **{f.name: int for f in fields(ReadCounts)},
        "reasons": dict[str, int],  # why lines and pages were omitted -> how many
        "replaced": list[ReplacedRows],  # that took the place of others with their ids
        "bad_lines": list[BadLine],  # the first lines that could not be read, or lost a page
    },
)
"""`ingest --json`: the counts of `readers.ReadCounts` among others."""


@with_config(STRICT)
class IngestPreview(TypedDict):
    """`ingest --dry-run --json`: how files would be read."""

    format: Literal[2]
    data_format: str  # crag, beir, synth, qasper, oag, warc, rows, or MODULE:NAME
    files: list[FileFields]  # of rows: role -> fields
    question: FirstQuestion | None
    document: FirstDocument | None
    bad_lines: list[BadLine]  # among the first rows


@with_config(STRICT)
class _Evidence(TypedDict):
    document: str  # id or url
    title: str
    source: str  # source id
    start: int  # of the quote, in the source's parsed text
    end: int
    quote: str


@with_config(STRICT)
class _MadeLine(TypedDict):
    id: str
    question: str
    answers: list[str]
    question_type: MadeKind
    evidence: list[_Evidence]
    made_by: str  # the model
    review: str


@with_config(STRICT)
class Questions(TypedDict):
    """`questions --json`."""

    format: Literal[2]
    plan: QuestionsPlan
    out: str | None  # null: a dry run
    questions: int
    kinds: dict[str, int]
    written: int
    rejected: dict[str, int]  # reason -> candidates
    computed: int  # calls
    cached: int
    first: list[_MadeLine]


@with_config(STRICT)
class ParseLine(TypedDict):
    """A line of `parse --json`."""

    format: Literal[2]
    file: str
    text: str | None  # null: it could not be parsed
    fault: Fault | None


@with_config(STRICT)
class Faults(TypedDict):
    """`faults --json`."""

    format: Literal[2]
    run: str  # "": of no run, but of all that was read into the store
    rows: list[RowCounts]
    faults: list[UndoneRow]


@with_config(STRICT)
class QaScoreOutput(TypedDict):
    """`score qa --json`."""

    format: Literal[2]
    lead: str  # the measure of the slices
    measures: list[MeasureMean]
    measure_slices: list[MeasureSliceMean]
    normalized: dict[str, int]  # what was normalized on reading -> how often


@with_config(STRICT)
class CragScoreOutput(Score):
    """`score crag --json`."""

    format: Literal[2]
    rule: Rule
    interval: Interval | None
    rate_intervals: dict[str, Interval]  # accuracy, hallucination, missing; none where nothing was scored
    bounds: Interval | None
    controls: dict[str, CragScore]
    slices: list[SliceScore]
    judge: JudgeLine | None  # null: none was asked now
    trim: str  # how the predictions were cut; "": not
    people: int  # verdicts that people's labels changed
    normalized: dict[str, int]  # what was normalized on reading -> how often


RankingScoreOutput = _from_fields(
    "RankingScoreOutput",
    {
        "format": Literal[2],
        **{name: float | None for name in (*MEASURES, MAP_CUT_20_MIN)},
        "queries": int,  # that are judged
        "unranked": list[str],
        "unjudged": list[str],
        "per_query": NotRequired[dict[str, dict[str, float]]],
    },
)
"""`score ranking --json`: the mean of each measure among others."""


QasperScoreOutput = _from_fields(
    "QasperScoreOutput",
    {
        "format": Literal[2],
        "Answer F1": float,
        "Answer F1 by type": dict[str, float],  # extractive, abstractive, boolean, none
        "Evidence F1": float,
        "Missing predictions": int,  # questions that count 0
    },
)
"""`score qasper --json`: the fields of QASPER's evaluator."""


@with_config(STRICT)
class ExamplePoolOutput(TypedDict):
    """`examples --json`."""

    format: Literal[2]
    out: str  # the pool
    examples: int
    unanswered: int  # questions without an answer, which are left out
    explained: int  # examples with an explanation
    unexplained: int  # examples without one, of which one was asked for


@with_config(STRICT)
class _LeadMeasure(TypedDict):
    name: str
    mean: float | None
    scored: int
    of: int


@with_config(STRICT)
class _ReleaseLine(TypedDict):
    id: str
    live: bool
    pointers: list[str]  # live, live@NAME: those that name it
    run: str
    recipe: str
    digest: str
    score: float | None
    scored: int  # questions that the score rests on
    questions: int
    measure: _LeadMeasure | None  # that the report begins with; null: released by a raypipe that had none
    seen: int  # scored questions that a fit of the recipe has seen
    gates: list[str]
    promoted: float  # seconds since the epoch


@with_config(STRICT)
class Releases(TypedDict):
    """`releases --json`, oldest first."""

    format: Literal[2]
    releases: list[_ReleaseLine]


@with_config(STRICT)
class LiveRelease(_ReleaseLine):
    """`promote --json` and `rollback --json`."""

    format: Literal[2]
    store: str  # URI of the store in which it is live


@with_config(STRICT)
class Trials(TypedDict):
    """`trial --json` and `promote --canary --json`."""

    format: Literal[2]
    store: str  # URI
    running: list[TrialReport]  # the canary, then the shadow
    ended: TrialReport | None  # the last; null: none has


@with_config(STRICT)
class Prune(TypedDict):
    """`prune --json`."""

    format: Literal[2]
    dry_run: bool
    removed: list[Removal]


@with_config(STRICT)
class Usage(TypedDict):
    """`usage --json`."""

    format: Literal[2]
    tenants: list[TenantUsage]


@with_config(STRICT)
class Forget(TypedDict):
    """`forget --json`."""

    format: Literal[2]
    store: str  # URI
    target: Literal["url", "document", "source", "question"]
    name: str  # the url, or its id
    reason: str  # that its tombstone gives
    tombstone: str  # id
    dry_run: bool
    finished: bool  # a forget that was killed was finished
    holdings: list[Holding]


@with_config(STRICT)
class Ask(AnswerResponse):
    """`ask --json`: what the endpoint responds with, and a format."""

    format: Literal[2]


@with_config(STRICT)
class Doctor(TypedDict):
    """`doctor --json`."""

    format: Literal[2]
    fine: bool  # nothing is missing
    findings: list[Finding]


@with_config(STRICT)
class StepCheckOutput(TypedDict):
    """`check-step --json`."""

    format: Literal[2]
    step: str  # its path
    source: str  # digest of its source file
    half: Half
    version: int
    reads: list[str]
    writes: list[str]
    bounded: bool  # false: a plan cannot say how many calls it makes
    laws: list[LawCheck]
    lock: Lock
    lock_file: str
    holds: bool


@with_config(STRICT)
class ModelAdded(TypedDict):
    """`models add SOURCE --json`."""

    format: Literal[2]
    name: str  # in the models file
    file: str  # that it was added to
    entry: dict[str, Any]  # its fields, as conf/schemas/models.json has them
    bytes: int | None  # of the files that are read; None: not known
    memory_gib: float | None  # of its weights, once loaded; None: not known
    context_gib: float | None  # keys and values of one reply of full length
    licence: str  # as its repository says it; "": it says nothing
    gated: bool  # whether its owner admits who may download it
    get: str  # the command that downloads it; "": nothing is to be downloaded
    endpoints: dict[str, Any]  # what belongs under `endpoints` of the cluster file


@with_config(STRICT)
class ModelNeeds(TypedDict):
    """`models RECIPE --json`."""

    format: Literal[2]
    recipe: str  # its name
    models: list[ModelNeed]


@with_config(STRICT)
class Project(TypedDict):
    """`init --json`."""

    format: Literal[2]
    folder: str
    files: list[str]  # that were written, relative to the folder


@with_config(STRICT)
class StandinFolders(TypedDict):
    """`models standins DIR --json`."""

    format: Literal[2]
    chat: str
    adapters: dict[str, str]  # name -> folder
    embedder: str
    reranker: str
    instructor: str  # an embedder of the T5 shape


@with_config(STRICT)
class _CallFault(TypedDict):
    reason: str
    detail: str
    transient: bool


@with_config(STRICT)
class _CallLine(TypedDict):
    call: str
    rows: list[dict[str, Any]]
    values: list[Any]
    sentences: list[str]
    requests: list[str]  # to a server, each its path and body
    ms: float
    fault: _CallFault | None


@with_config(STRICT)
class GraphCalls(TypedDict):
    """`kg run --json`: a result for each line."""

    format: Literal[2]
    results: list[_CallLine]


@with_config(STRICT)
class _CallSlice(TypedDict):
    label: str
    value: str
    measures: list[CallRate]


@with_config(STRICT)
class KgScore(TypedDict):
    """`kg score --json`: how many written programs are the gold's."""

    format: Literal[2]
    questions: int  # golds
    missing: int  # of these, without a prediction
    extra: int  # predictions that no gold asks for
    measures: list[CallRate]
    slices: list[_CallSlice]  # by domain and question_type, where the golds have them


@with_config(STRICT)
class _Observed(TypedDict):
    pairs: int  # stored replies of one request in two periods
    changed: int  # of these, how many differ


@with_config(STRICT)
class GraphRefresh(TypedDict):
    """`kg refresh --json`: refresh periods by domain."""

    format: Literal[2]
    graph: str
    now: dict[str, str | int]
    proposed: dict[str, str | int]
    accepted: bool
    seen: dict[str, _Observed]


@with_config(STRICT)
class FactsTableOutput(TypedDict):
    """`facts build --json`."""

    format: Literal[2]
    out: str  # the table
    facts: int
    lines: int  # of the CSV, without its header
    skipped: int  # lines that lack a required column


@with_config(STRICT)
class _LostQuestion(TypedDict):
    id: str
    query: str
    lost: Loss
    step: str | None  # name of the stage in the recipe; null: before any
    golds: list[str]
    answer: str
    verdict: str | None  # null: no rule scores the data


@with_config(STRICT)
class LossesOutput(TypedDict):
    """`losses --json`."""

    format: Literal[2]
    run: str
    recipe: str
    losses: Losses
    questions: list[_LostQuestion]  # the misses, in the order of the run


@with_config(STRICT)
class Comparisons(TypedDict):
    """`compare --json`: each run against the first."""

    format: Literal[2]
    comparisons: list[RunComparison]


JudgeCheckOutput = _from_fields("JudgeCheckOutput", {"format": Literal[2], **get_type_hints(JudgeCheck)})
"""`judge check --json`: the fields of `evaluation.judge_check.JudgeCheck`."""


@with_config(STRICT)
class ToLabel(TypedDict):
    """`judge pick --json`: answers that were written for people to label."""

    format: Literal[2]
    file: str
    random: int  # drawn at random
    chosen: int  # of which two measures say the opposite


@with_config(STRICT)
class Export(TypedDict):
    """`export --json`."""

    format: Literal[2]
    file: str  # of mlflow: the address of the tracking server
    shape: Shape
    lines: NotRequired[int]  # of a file
    failed: NotRequired[int]  # questions that failed, of which a submission says "i don't know"
    params: NotRequired[int]  # of mlflow, as the next four
    metrics: NotRequired[int]
    artifacts: NotRequired[int]
    run: NotRequired[str]  # its id there
    there: NotRequired[bool]  # it was there already, and nothing was written


@with_config(STRICT)
class RunHeaders(TypedDict):
    """`view --json`: finished runs, the latest first."""

    format: Literal[2]
    runs: list[RunHeader]


@with_config(STRICT)
class WrittenView(TypedDict):
    """`view --out FILE --json`."""

    format: Literal[2]
    file: str
    bytes: int
    runs: list[str]  # ids
    without: list[Part]  # what it leaves out on purpose


RepeatsOutput = _from_fields(
    "RepeatsOutput", {"format": Literal[2], "folder": str, **get_type_hints(Repeats)}
)
"""`eval --repeats K --json`: the fields of `evaluation.repeats.Repeats`."""


DecideFitOutput = _from_fields(
    "DecideFitOutput", {"format": Literal[2], "file": str, **get_type_hints(DecideFitReport)}
)
"""`fit decide --json`: the fields of `evaluation.fit_decide.DecideFitReport`."""

FuseFitOutput = _from_fields(
    "FuseFitOutput", {"format": Literal[2], "file": str, **get_type_hints(FuseFitReport)}
)
"""`fit fuse --json`: the fields of `evaluation.fit_fuse.FuseFitReport`."""


@with_config(STRICT)
class SweepOutput(TypedDict):
    """`sweep --json`, and sweep.json in its folder."""

    format: Literal[2]
    recipe: str  # its name
    plans: list[PlannedPoint]
    sweep: Sweep | None  # null: --dry-run


@with_config(STRICT)
class _SplitCounts(TypedDict):
    train: int
    held_out: int


@with_config(STRICT)
class _LabelPath(TypedDict):
    rule: str  # "": no label
    why: str  # the reason for no label; "": there is one
    questions: int
    about: str  # how a question gets there
    label: str  # what it is labelled with; "": nothing


@with_config(STRICT)
class LabelsOutput(TypedDict):
    """`labels --json`."""

    format: Literal[2]
    out: str  # folder
    digest: str  # of the labels; "": drafts alone were written
    recipe: str  # its name
    step: str  # the reply that labels are for
    model: str  # that answered
    judge: str  # model that judged; "": none, of calls
    questions: int
    labels: int
    split: _SplitCounts
    rules: list[str]  # that gave labels
    mix: list[MixLine]  # by domain; the last is all
    paths: list[_LabelPath]
    examples: list[LabelExample]
    evaluated: int  # questions that they were held against, without a leak; 0: none were named
    planned: int | None  # calls and sources at most; null: not known
    computed: int
    cached: int
    review: str | None  # file of drafts; null: none was written


@with_config(STRICT)
class Validate(TypedDict):
    """`validate --json`."""

    format: Literal[2]
    files: list[CheckedFile]
    problems: list[Problem]


@with_config(STRICT)
class BenchOutput(TypedDict):
    """`bench --json`."""

    format: Literal[2]
    day: str  # YYYY-MM-DD
    commit: str  # of the checkout; "" outside of git
    machine: dict[str, str | int]  # processor, cores, and the limits that a row needed
    quick: bool  # sizes of a test
    results: list[BenchResult]


@with_config(STRICT)
class _AnnStage(TypedDict):
    stage: str
    built: bool  # by this command; false: its index was there
    index: str  # its name, which no other build has
    top: int
    probes: int
    refine: int
    questions: int  # on which recall was measured
    mean: float
    fifth: float  # 5 % of the questions have at most this recall
    worst: float
    worst_question: str  # its id


@with_config(STRICT)
class AnnOutput(TypedDict):
    """`ann --json`."""

    format: Literal[2]
    recipe: str
    stages: list[_AnnStage]


@with_config(STRICT)
class _NumberCheck(TypedDict):
    measure: str
    by: str  # of a ranking: the score that ranks; of files: the file's name
    expected: float
    found: float | None  # null: the run has no such number
    difference: float | None
    verdict: Verdict


@with_config(STRICT)
class ReproduceOutput(TypedDict):
    """`reproduce NAME --check --json`."""

    format: Literal[2]
    name: str
    about: str
    verdict: Verdict  # the worst of the numbers'
    numbers: list[_NumberCheck]


@with_config(STRICT)
class ReproductionsOutput(TypedDict):
    """`reproduce --json`: what can be run."""

    format: Literal[2]
    runs: dict[str, Reproduction]
    published: list[PublishedNumber]  # what papers state


OUTPUTS: Mapping[str, Any] = {
    "synth": Synth | SynthCollection,
    "ingest": Ingest | IngestPreview,
    "questions": Questions,
    "examples": ExamplePoolOutput,
    "parse": ParseLine,
    "plan": PlanOutput | AssumedOutput,
    "index": StepCounts,
    "ann": AnnOutput,
    "answer": StepCounts,
    "eval": Eval | RepeatsOutput,
    "reprocess": Reprocess,
    "sweep": SweepOutput,
    "labels": LabelsOutput | PlanOutput,
    "fit decide": DecideFitOutput,
    "fit fuse": FuseFitOutput,
    "finetune": Finetuned | FinetunePlan,
    "why": Explanation,
    "faults": Faults,
    "losses": LossesOutput,
    "compare": Comparisons,
    "view": RunHeaders | WrittenView,
    "judge check": JudgeCheckOutput,
    "judge pick": ToLabel,
    "export": Export,
    "reproduce": ReproduceOutput | ReproductionsOutput,
    "score crag": CragScoreOutput,
    "score qa": QaScoreOutput,
    "score qasper": QasperScoreOutput,
    "score ranking": RankingScoreOutput,
    "promote": LiveRelease | Trials,
    "rollback": LiveRelease,
    "releases": Releases,
    "trial": Trials,
    "prune": Prune,
    "forget": Forget,
    "usage": Usage,
    "ask": Ask,
    "doctor": Doctor,
    "init": Project,
    "check-step": StepCheckOutput,
    "validate": Validate,
    "models": ModelNeeds | StandinFolders | ModelAdded,
    "kg run": GraphCalls,
    "kg score": KgScore,
    "kg refresh": GraphRefresh,
    "facts build": FactsTableOutput,
    "bench": BenchOutput,
}
"""Command -> what its `--json` prints."""


def schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """Command -> JSON Schema of its output."""
    for name, output in OUTPUTS.items():
        made = TypeAdapter(output).json_schema(mode="serialization")
        yield name, {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def file_of(command: str) -> str:
    """The name of a schema's file.

    >>> file_of("score crag")
    'score-crag.json'
    """
    return f"{command.replace(' ', '-')}.json"


def write_schemas(folder: Path) -> None:
    """Writes one file per output."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in schemas():
        (folder / file_of(name)).write_text(json.dumps(schema, indent=1, sort_keys=True) + "\n")
