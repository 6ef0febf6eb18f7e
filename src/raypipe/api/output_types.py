"""How the type of printed JSON is made of the records that are printed; parts of several outputs."""

from __future__ import annotations

from pathlib import Path
from types import GenericAlias
from typing import Any, Literal, get_type_hints

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from raypipe.api.kg_score import CallRate
from raypipe.api.reproduce import Verdict
from raypipe.api.trials import TrialResult
from raypipe.core.ann import AnnRecall
from raypipe.metrics.crag import CragScore
from raypipe.metrics.intervals import Interval
from raypipe.metrics.kinds.contract import MeasureSlice, MeasureSummary
from raypipe.metrics.losses import Loss
from raypipe.recipes.executor import StageCounters
from raypipe.serving.http.reply_types import AnswerResponse
from raypipe.text.made_questions import MadeKind


def record(name: str, about: str = "", of: type[Any] | None = None, /, **types: Any) -> Any:
    """The type of a JSON object: the fields of a dataclass, and `types`, which may replace some of them.
    `about` is its description."""
    hints = {**(get_type_hints(of) if of is not None else {}), **types}
    typed: Any = TypedDict
    made = typed(name, {n: str if hint is Path else hint for n, hint in hints.items()})
    made.__doc__ = about or None
    return with_config(ConfigDict(extra="forbid"))(made)


def printed(name: str, about: str = "", of: type[Any] | None = None, /, **types: Any) -> Any:
    """The type of what a command prints with --json: a `record` that says its format."""
    own = get_type_hints(of) if of is not None else {}
    return record(name, about, **{"format": Literal[2], **own, **types})


def listed(of: Any) -> Any:
    """The type of a list."""
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
    "pointers": list[str],  # live, live@NAME: those that name it
    "run": str,
    "recipe": str,
    "digest": str,
    "score": float | None,
    "scored": int,  # questions that the score rests on
    "questions": int,
    "measure": Lead | None,  # that the report begins with; null: released by a raypipe that had none
    "seen": int,  # scored questions that a fit of the recipe has seen
    "gates": list[str],
    "promoted": float,  # seconds since the epoch
}
LiveRelease = printed(
    "LiveRelease", "`promote --json` and `rollback --json`.", **ReleaseLine,
    store=str,  # URI of the store in which it is live
)  # fmt: skip
Trials = printed("Trials", "`trial --json` and `promote --canary --json`.", TrialResult)
StepCounts = printed(
    "StepCounts", "`index --json` and `answer --json`.", recipe=str, steps=dict[str, StageCounters]
)
Lost = record(
    "_LostQuestion",
    id=str,
    query=str,
    lost=Loss,
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
Number = record(
    "_NumberCheck",
    measure=str,
    by=str,  # of a ranking: the score that ranks; of files: the file's name
    expected=float,
    found=float | None,  # null: the run has no such number
    difference=float | None,
    verdict=Verdict,
)
AnnLine = record("_AnnStage", "", AnnRecall, stage=str, built=bool)  # by this command; false: it was there
