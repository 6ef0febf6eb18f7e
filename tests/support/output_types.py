"""How the type of printed JSON is made of the records that are printed; parts of several outputs."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal, get_type_hints

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from raypipe.api.plans import Placed
from raypipe.api.run import RunResult
from raypipe.api.scores import MeansResult
from raypipe.contrib.crag.api.kg_score import CallRate
from raypipe.contrib.finetune.engine_check import EngineReplies
from raypipe.contrib.finetune.estimate import MemoryNeed, TrainingEstimate
from raypipe.contrib.finetune.finetune import FinetunePlanResult
from raypipe.contrib.finetune.model import Device, FourBit
from raypipe.contrib.finetune.training_job import LookPoint, StepPoint
from raypipe.contrib.finetune.training_labels import LabelExample, LabelPath, MixLine
from raypipe.runs.plan.records import Cost, Plan, StepPlan
from raypipe.runs.release import ReleaseLine
from raypipe.serving.http.replies import AnswerResponse
from raypipe.text.made_questions import MadeKind


def fields_of(of: type[Any] | None) -> dict[str, Any]:
    """Field -> type of a dataclass. None: none."""
    if of is None:
        return {}
    hints = get_type_hints(of)
    return {f.name: hints[f.name] for f in fields(of)}


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
    return record(name, about, **{"format": Literal[1], **fields_of(of), **types})


def listed(of: Any) -> Any:
    return GenericAlias(list, (of,))


class Ask(AnswerResponse):
    """`ask --json`: what the endpoint responds with, and a format."""

    format: Literal[1]


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
    "_MadeLine",
    id=str,
    question=str,
    answers=list[str],
    question_type=MadeKind,
    evidence=listed(Evidence),
    made_by=str,
    review=str,
)
LiveRelease = printed(
    "LiveRelease",
    "`promote --json` and `rollback --json`.",
    ReleaseLine,
    store=str,  # URI of the store in which it is live
)
Means = printed("Means", "`score qasper --json` and `score ranking --json`.", MeansResult)
Known = float | None  # null: not known
StepPlanned = record(
    "_StepPlan",
    "",
    StepPlan,
    rows=Known,
    max_calls=Known,
    reasons=dict[str, Known],
    cost=record(
        "_Cost", "", Cost, tokens=tuple[Known, Known], nbytes=tuple[Known, Known], calls=tuple[Known, Known]
    ),
)
PLANNED = {**fields_of(Plan), "steps": listed(StepPlanned), "expired": int, "placement": Placed}
StepCounts = printed("StepCounts", "`eval --until index|answer --json`.", RunResult)
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


LabelledPath = record("_LabelPath", "", LabelPath)
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
