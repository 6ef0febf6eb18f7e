"""What `--json` prints of scores, fits, sweeps, labels and comparisons."""

from __future__ import annotations

from typing import Literal, NotRequired, get_type_hints

from pydantic import with_config
from typing_extensions import TypedDict

from raypipe.api.export import Shape
from raypipe.api.reproduce import PublishedNumber, Reproduction, Verdict
from raypipe.api.run_outputs import (
    STRICT,
    Interval,
    MeasureMean,
    MeasureSliceMean,
    Score,
    SliceScore,
    from_fields,
)
from raypipe.evaluation.compare import RunComparison
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
from raypipe.report.report import JudgeLine


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


RankingScoreOutput = from_fields(
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


QasperScoreOutput = from_fields(
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


JudgeCheckOutput = from_fields("JudgeCheckOutput", {"format": Literal[2], **get_type_hints(JudgeCheck)})
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


RepeatsOutput = from_fields("RepeatsOutput", {"format": Literal[2], "folder": str, **get_type_hints(Repeats)})
"""`eval --repeats K --json`: the fields of `evaluation.repeats.Repeats`."""


DecideFitOutput = from_fields(
    "DecideFitOutput", {"format": Literal[2], "file": str, **get_type_hints(DecideFitReport)}
)
"""`fit decide --json`: the fields of `evaluation.fit_decide.DecideFitReport`."""


FuseFitOutput = from_fields(
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
