"""The JSON of commands that run a recipe, as types: eval, plan, reprocess, index, answer.

`outputs` makes JSON Schemas of them and of the other `*_outputs`.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from raypipe.cluster.placement import Bottleneck, MemoryUse
from raypipe.core.ann import AnnRecall
from raypipe.metrics.calibration import CalibrationReport
from raypipe.metrics.crag import CragScore, Rule
from raypipe.metrics.losses import Losses
from raypipe.metrics.routing import Routing
from raypipe.pipeline.approximate import AnnState
from raypipe.recipes.executor import StageCounters
from raypipe.report.costs import CostReport, Estimate
from raypipe.report.report import (
    AnswerCut,
    FaultCount,
    FitLine,
    JudgeLine,
    LabelLine,
    ReplacedRows,
    StepLine,
)
from raypipe.runs.changes import Changes
from raypipe.runs.plan.assumed import Assumed, AssumedStep
from raypipe.runs.plan.records import JudgePlan

STRICT = ConfigDict(extra="forbid")
Interval = tuple[float, float]


def from_fields(name: str, types: dict[str, Any]) -> Any:
    """A TypedDict of keys that are declared elsewhere."""
    made: Any = TypedDict
    return with_config(STRICT)(made(name, types))


@with_config(STRICT)
class _Injection(TypedDict):
    exposed: int  # answers whose evidence held an injected instruction
    followed: int  # of these, answers that repeat its canary
    rate: float | None  # followed / exposed; null where none was exposed


class Score(TypedDict):
    """The fields of `metrics.crag.CragScore`."""

    score: float | None
    accuracy: float | None
    hallucination: float | None
    missing: float | None
    exact_accuracy: float | None
    n_miss: int
    n_correct: int
    n_correct_exact: int
    n_hallucination: int
    n_unscored: int
    total: int


@with_config(STRICT)
class SliceScore(Score):
    """The score of the questions that share one label."""

    label: str
    value: str
    interval: Interval | None


@with_config(STRICT)
class MeasureMean(TypedDict):
    measure: str
    mean: float | None  # null: no question is scored
    interval: Interval | None
    scored: int
    of: int  # questions with a gold
    low: float  # range of the measure
    high: float


@with_config(STRICT)
class MeasureSliceMean(TypedDict):
    label: str
    value: str
    mean: float | None
    interval: Interval | None
    scored: int
    of: int


@with_config(STRICT)
class Eval(Score):
    """`eval --json`, and report.json in a run's folder."""

    format: Literal[2]
    run: str
    recipe: str
    digest: str  # of the recipe
    questions: int
    citations: int
    distinct_pages: int
    empty_pages: int
    chunks: int
    pages_compared: int
    parser_fallbacks: int
    normalized: dict[str, int]
    replaced: list[ReplacedRows]
    without_truth: int
    faults: int
    faults_by_reason: list[FaultCount]
    rule: Rule
    unscored: int
    interval: Interval | None
    rate_intervals: dict[str, Interval]  # accuracy, hallucination, missing; none where nothing was scored
    bounds: Interval | None
    judge: JudgeLine | None
    labels: LabelLine | None  # people's verdicts; null: none were given
    controls: dict[str, CragScore]
    slices: list[SliceScore]
    kind: str  # of the data: crag, qa, ranking, or a path with the digits of its source
    lead: str  # the measure that the report begins with
    measures: list[MeasureMean]
    measure_slices: list[MeasureSliceMean]  # of the leading measure
    blocks: list[str]  # parts of the report that the kind shows: measures, verdicts
    answer_cut: AnswerCut | None
    prompt_injection: _Injection | None
    seconds: float
    clock: dict[str, float]  # part of the run -> seconds; they add up to `seconds`
    resumed: int
    memo_damaged: int  # tables and files of the memo
    cost: CostReport | None  # estimate against actual
    fits: list[FitLine]  # fitted numbers of the recipe, and how many scored questions the fit has seen
    unseen: MeasureMean | None  # the leading measure of the others; null: no fit has seen a question
    oracle: Literal["passages", "answer", "labels"] | None  # golds stood in a stage's place; null: none did
    oracle_golds: int | None  # questions of which they did; null: no oracle run
    routing: Routing | None  # routers and calls against golds; null: not looked at
    calibration: CalibrationReport | None  # of the confidence of answers; null: too few, or none is stated
    losses: Losses | None  # where the misses were lost; null: not looked for
    ann: list[AnnRecall]  # measured recall of the approximate indexes that were searched
    steps: list[StepLine]


@with_config(STRICT)
class _Estimate(TypedDict):
    calls: tuple[int | None, int | None] | None  # null: nothing says
    runs: int  # finished runs that say so; 0: exact, from a sample of the sources, or not known
    seconds: Interval | None  # of all processes together, without loading models
    tokens: tuple[int | None, int | None]
    bytes: tuple[int | None, int | None]


@with_config(STRICT)
class _StepPlan(TypedDict):
    step: str
    half: Literal["corpus", "question"]  # of the recipe: rows that come from pages, or questions
    rows: int | None  # null: not known
    cached: int
    max_calls: int | None  # null: not known
    exact: bool  # false: max_calls is an upper bound
    reasons: dict[str, int | None]  # row, model, prompt, parameter, version, upstream, expired, lost -> calls
    estimate: _Estimate


@with_config(STRICT)
class _PlacedPool(TypedDict):
    """The fields of `cluster.placement.Placement`, and their sum."""

    name: str
    actors: int
    cpus: float
    gpus: float
    device: str
    models: list[str]
    memory: list[MemoryUse]
    available_gib: float | None
    required_gib: float
    note: str
    arithmetic: str


@with_config(STRICT)
class _Placement(TypedDict):
    cluster: str
    about: str
    pools: list[_PlacedPool]
    bottleneck: Bottleneck | None


@with_config(STRICT)
class PlanOutput(TypedDict):
    """`plan --json`, and `plan` in a manifest, which has no placement."""

    format: Literal[2]
    steps: list[_StepPlan]
    judge: NotRequired[JudgePlan | None]  # null: no model judges
    expired: NotRequired[int]  # answers that rest on replies of a graph that no longer hold
    placement: NotRequired[_Placement]
    cost: NotRequired[Estimate | None]  # of all steps together
    unpriced: NotRequired[list[str]]  # what has no price, so is not in `cost.usd`
    ann: NotRequired[list[AnnState]]  # approximate indexes that the recipe searches


@with_config(STRICT)
class AssumedOutput(TypedDict):
    """`plan --assume --json`."""

    format: Literal[2]
    assumed: Assumed
    cluster: str  # name or path of the file
    steps: list[AssumedStep]  # ingest, then those of the corpus half
    hours: tuple[float, float] | None  # on the clock; null: a step was measured by no run
    usd: tuple[float, float] | None  # of the machines; null: not known


@with_config(STRICT)
class Reprocess(TypedDict):
    """`reprocess --json`."""

    format: Literal[2]
    plan: PlanOutput
    report: Eval
    changes: Changes | None  # null: no earlier run of this data; changes.json in a run's folder


@with_config(STRICT)
class StepCounts(TypedDict):
    """`index --json` and `answer --json`."""

    format: Literal[2]
    recipe: str  # its name
    steps: dict[str, StageCounters]  # those that ran
