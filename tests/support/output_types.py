"""How the type of printed JSON is made of the records that are printed; parts of several outputs."""

from __future__ import annotations

from pathlib import Path
from types import GenericAlias
from typing import Any, Literal, NotRequired, get_type_hints

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from raypipe.api.reproduce import CheckedNumber
from raypipe.api.run import RunResult
from raypipe.contrib.crag.api.kg_score import CallRate
from raypipe.contrib.finetune.engine_check import EngineReplies
from raypipe.contrib.finetune.estimate import MemoryNeed, TrainingEstimate
from raypipe.contrib.finetune.finetune import FinetunePlanResult
from raypipe.contrib.finetune.loop import LookPoint, StepPoint
from raypipe.contrib.finetune.model import Device, FourBit
from raypipe.contrib.finetune.training_labels import LabelExample, LabelPath, MixLine
from raypipe.core.index import AnnRecall
from raypipe.metrics.calibration import CalibrationReport
from raypipe.metrics.certainty import Interval
from raypipe.metrics.crag import CragScore, Rule
from raypipe.metrics.kinds import MeasureSlice, MeasureSummary
from raypipe.metrics.losses import PromptInjection, places
from raypipe.runs.cluster.placement import Placement
from raypipe.runs.pipeline.recipe_tables import AnnState
from raypipe.runs.plan.records import JudgePlan
from raypipe.runs.report import Estimate, EvalReport, FaultCount
from raypipe.serving.http.reply_types import AnswerResponse
from raypipe.text.made_questions import MadeKind


def fields_of(of: type[Any] | None) -> dict[str, Any]:
    """Field -> type of a dataclass; of a Result as its JSON has them. None: none."""
    if of is None:
        return {}
    found, flat, hidden = get_type_hints(of), getattr(of, "FLAT", ""), getattr(of, "HIDDEN", "")
    own = {n: hint for n, hint in found.items() if n not in (flat, *hidden.split())}
    return fields_of(found.get(flat)) | own


def record(name: str, about: str = "", of: type[Any] | None = None, /, **types: Any) -> Any:
    """The type of a JSON object: the fields of a dataclass, and `types`, which may replace some of them.
    `about` is its description."""
    hints = {**fields_of(of), **types}
    typed: Any = TypedDict
    made = typed(name, {n: str if hint is Path else hint for n, hint in hints.items()})
    made.__doc__ = about or None
    return with_config(ConfigDict(extra="forbid"))(made)


def printed(name: str, about: str = "", of: type[Any] | None = None, /, **types: Any) -> Any:
    """The type of what a command prints with --json: a `record` that says its format."""
    return record(name, about, **{"format": Literal[2], **fields_of(of), **types})


def listed(of: Any) -> Any:
    return GenericAlias(list, (of,))


SliceScore = record(
    "SliceScore", "The score of the questions that share one label.", CragScore, label=str, value=str,
    interval=Interval | None,
)  # fmt: skip
MeasureMean = record("MeasureMean", "", MeasureSummary)
MeasureSliceMean = record("MeasureSliceMean", "", MeasureSlice)


@with_config(ConfigDict(extra="forbid"))
class Ask(AnswerResponse):
    """`ask --json`: what the endpoint responds with, and a format."""

    format: Literal[2]


Evidence = record(
    "_Evidence",
    document=str,  # id or url
    title=str,
    source=str,  # source id
    start=int,  # of the quote, in the source's parsed text
    end=int,
    quote=str,
)
MadeLine = record(
    "_MadeLine", id=str, question=str, answers=list[str], question_type=MadeKind, evidence=listed(Evidence),
    made_by=str, review=str,
)  # fmt: skip
Lead = record("_LeadMeasure", name=str, mean=float | None, scored=int, of=int)
ReleaseLine = {
    "id": str,
    "live": bool,
    "run": str,
    "recipe": str,
    "digest": str,
    "score": float | None,
    "scored": int,  # questions that the score rests on
    "questions": int,
    "measure": Lead | None,  # that the report begins with; null: released by a raypipe that had none
    "seen": int,  # scored questions that a fit or an adapter of the recipe has seen
    "gates": list[str],
    "promoted": float,  # seconds since the epoch
}
LiveRelease = printed(
    "LiveRelease", "`promote --json` and `rollback --json`.", **ReleaseLine,
    store=str,  # URI of the store in which it is live
)  # fmt: skip
StepCounts = printed("StepCounts", "`index --json` and `answer --json`.", RunResult)
Lost = record(
    "_LostQuestion",
    id=str,
    query=str,
    lost=Literal[tuple(places())],
    step=str | None,  # name of the stage in the recipe; null: before any
    golds=list[str],
    answer=str,
    verdict=str | None,  # null: no rule scores the data
)
Call = record(
    "_CallLine",
    call=str,
    rows=list[dict[str, Any]],
    values=list[Any],
    sentences=list[str],
    requests=list[str],  # to a server, each its path and body
    ms=float,
    fault=record("_CallFault", reason=str, detail=str, transient=bool) | None,
)
CallSlice = record("_CallSlice", label=str, value=str, measures=list[CallRate])
Number = record("_NumberCheck", "", CheckedNumber)
AnnLine = record("_AnnStage", "", AnnRecall, stage=str, built=bool)  # by this command; false: it was there


Whole = tuple[int | None, int | None] | None  # from, to; null: not known

_OF_REPORT = get_type_hints(EvalReport, localns={"CalibrationReport": CalibrationReport})
Eval = printed(
    "Eval",
    "`eval --json`, and report.json in a run's folder.",
    CragScore,
    **{
        **{name: hint for name, hint in _OF_REPORT.items() if name not in ("marks", "scores")},
        "faults": int,
        "faults_by_reason": list[FaultCount],
        "prompt_injection": record("_Injection", "", PromptInjection, rate=float | None) | None,
        "unseen": MeasureMean | None,
        "oracle": Literal["passages", "answer", "labels"] | None,  # null: no oracle run
        "oracle_golds": int | None,
    },
    rule=Rule,
    unscored=int,
    interval=Interval | None,
    rate_intervals=dict[str, Interval],  # accuracy, hallucination, missing; none where nothing was scored
    bounds=Interval | None,
    answer_words=float | None,  # mean words of an answer that does not abstain; null: there is none
    controls=dict[str, CragScore],
    slices=listed(SliceScore),
    kind=str,  # of the data: crag, qa, ranking, or a path with the digits of its source
    lead=str,  # the measure that the report begins with
    measures=listed(MeasureMean),
    measure_slices=listed(MeasureSliceMean),  # of the leading measure
    blocks=list[str],  # parts of the report that the kind shows: measures, verdicts
)
StepEstimate = record(
    "_Estimate",
    calls=Whole,
    runs=int,  # finished runs that say so; 0: exact, from a sample of the sources, or not known
    seconds=Interval | None,  # of all processes together, without loading models
    tokens=tuple[int | None, int | None],
    bytes=tuple[int | None, int | None],
)
StepPlan = record(
    "_StepPlan",
    step=str,
    half=Literal["corpus", "question"],  # of the recipe: rows that come from pages, or questions
    rows=int | None,  # null: not known
    cached=int,
    max_calls=int | None,  # null: not known
    exact=bool,  # false: max_calls is an upper bound
    reasons=dict[str, int | None],  # row, model, prompt, parameter, version, upstream, expired, lost -> calls
    estimate=StepEstimate,
)
PlacedPool = record(
    "_PlacedPool",
    "The fields of `runs.cluster.placement.Placement`, and their sum.",
    Placement,
    required_gib=float,
    arithmetic=str,
)
Placed = record("_Placement", cluster=str, about=str, pools=listed(PlacedPool))
PlanOutput = printed(
    "PlanOutput",
    "`plan --json`, and `plan` in a manifest, which has no placement.",
    steps=listed(StepPlan),
    judge=NotRequired[JudgePlan | None],  # null: no model judges
    expired=NotRequired[int],  # answers that rest on replies of a graph that no longer hold
    placement=NotRequired[Placed],
    cost=NotRequired[Estimate | None],  # of all steps together
    unpriced=NotRequired[list[str]],  # what has no price, so is not in `cost.usd`
    ann=NotRequired[list[AnnState]],  # approximate indexes that the recipe searches
)
LabelledPath = record(
    "_LabelPath",
    "",
    LabelPath,
    about=str,  # how a question gets there
    label=str,  # what it is labelled with; "": nothing
)
LabelsOutput = printed(
    "LabelsOutput",
    "`labels --json`.",
    out=str,  # folder
    digest=str,  # of the labels; "": drafts alone were written
    recipe=str,  # its name
    step=str,  # the reply that labels are for
    model=str,  # that answered
    judge=str,  # model that judged; "": none, of calls
    questions=int,
    labels=int,
    split=record("_SplitCounts", train=int, held_out=int),
    rules=list[str],  # that gave labels
    mix=list[MixLine],  # by domain; the last is all
    paths=listed(LabelledPath),
    examples=list[LabelExample],
    evaluated=int,  # questions that they were held against, without a leak; 0: none were named
    planned=int | None,  # calls and sources at most; null: not known
    computed=int,
    cached=int,
    review=str | None,  # file of drafts; null: none was written
)
Training = record(
    "_Estimate",
    "",
    TrainingEstimate,
    memory=record("_Memory", "", MemoryNeed),  # of one worker
    seconds=list[float] | None,  # from, to; null: not known
)
FinetunePlan = printed(
    "FinetunePlan",
    "`finetune --plan --json`.",
    FinetunePlanResult,
    four_bit=record("_FourBit", "", FourBit),
    estimate=Training,
)
TrainedLabels = record(
    "_Labels",
    folder=str,
    digest=str,
    recipe=str,  # digest of the recipe that they were made for; "": they were imported
    data=str,  # digest of the questions and their golds
    rows=int,
    held_out=int,
    left_out=int,
    counts=dict[str, dict[str, int]],  # rule, domain and split -> value -> labels
)
Finetuned = printed(
    "Finetuned",
    "`finetune --json`.",
    adapter=str,  # as recipes call it
    identity=str,  # sha256:... of its weights and configuration
    base=str,  # identity of the base's weights
    base_name=str,
    preset=dict[str, Any],  # as conf/schemas/finetune.json has it
    preset_name=str,
    labels=TrainedLabels,
    plan=FinetunePlan,
    workers=int,
    device=Device,
    seconds=float,  # from the start of the workers to their end, of the run that finished it
    token_s=float | None,  # seconds a token read, of all workers together; null: too few steps to say it
    steps_done=int,
    step_taken=int,  # after which the adapter was as it is kept
    ended_early=bool,
    held_out_loss=float | None,  # at that step; null: nothing is held out
    steps=listed(record("_Step", "", StepPoint)),
    looks=listed(record("_Look", "", LookPoint)),
    effect=record("_Effect", base=float, adapter=float),  # log-probability a token of the first label
    engine=record("_Engine", "", EngineReplies) | None,  # null: vLLM or `engines` is not here
    folder=str,  # of the adapter
    models=str,  # the models file that was written; "": none
    entry=dict[str, Any],  # of the models file: the base with the adapter
)
