"""Replies: what is said about an answered question."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import (
    Any,
    NotRequired,  # pydantic takes no other before Python 3.12
)

from typing_extensions import TypedDict

from raypipe.core.records import FAULT, Hit
from raypipe.report.report import ranking
from raypipe.serving.answerer import Answered, Evidence


class Scored(TypedDict):
    """A passage that was found."""

    chunk: str  # passage id: source:start-end
    url: str | None  # None: no citation brought it
    span: list[int]  # [start, end) in the source's parsed text
    scores: dict[str, float]  # by ranker
    text: NotRequired[str]  # where it was asked for


class Cited(TypedDict):
    """A quote that the answer rests on: the source's parsed text at `span`, to the character."""

    source: str
    chunk: str | None
    url: str | None
    quote: str
    span: list[int]
    scores: dict[str, float]
    before: NotRequired[str]  # include: context
    after: NotRequired[str]


class Versions(TypedDict):
    """What answered."""

    release: str | None
    recipe: str  # digest
    models: dict[str, str]  # name -> identity of the weights


class Said(TypedDict):
    """The body of an answer."""

    id: str
    query: str
    answer: str | None  # null where the outcome is fault, never empty
    outcome: str  # answered | abstained | false_premise | fault
    degraded: list[str]  # stages that were left out
    confidence: float | None
    citations: list[Cited]
    timings_ms: dict[str, float]
    usage: dict[str, int]  # what models were asked for
    versions: Versions
    hits: NotRequired[list[Scored]]
    replies: NotRequired[dict[str, Any]]
    prompts: NotRequired[list[list[dict[str, str]]]]  # every chat that a language model was asked
    faults: NotRequired[list[dict[str, Any]]]
    passages: NotRequired[list[Scored]]


class Retrieved(TypedDict):
    """The body of a ranking."""

    id: str
    query: str
    degraded: list[str]
    passages: list[Scored]
    timings_ms: dict[str, float]
    usage: dict[str, int]  # what models were asked for
    versions: Versions


def reply(answered: Answered, include: Collection[str]) -> Said:
    """The body of a reply."""
    q = answered.question
    said = q.replies.get(q.origin)
    out: Said = {
        "id": q.id,
        "query": q.text,
        "answer": None if q.outcome == FAULT else q.answer,
        "outcome": q.outcome,
        "degraded": list(q.degraded),
        "confidence": said.confidence if said else None,
        "citations": [_cited(e, "context" in include) for e in answered.evidence],
        "timings_ms": dict(answered.timings_ms),
        "usage": dict(answered.usage),
        "versions": _versions(answered),
    }
    if "hits" in include:
        out["hits"] = [_scored(h, answered.url) for h in ranking(q)]
    if "replies" in include:
        out["replies"] = {name: asdict(r) for name, r in q.replies.items()}
    if "prompts" in include:
        out["prompts"] = [[asdict(message) for message in chat] for chat in answered.prompts]
    if "faults" in include:
        out["faults"] = [asdict(f) for f in (*answered.faults, *q.faults)]
    if "passages" in include:
        out["passages"] = _passages(answered)
    return out


def retrieved(answered: Answered, top: int) -> Retrieved:
    """The best `top` passages with their texts."""
    q = answered.question
    return {
        "id": q.id,
        "query": q.text,
        "degraded": list(q.degraded),
        "passages": _passages(answered)[:top],
        "timings_ms": dict(answered.timings_ms),
        "usage": dict(answered.usage),
        "versions": _versions(answered),
    }


def _passages(answered: Answered) -> list[Scored]:
    return [{**_scored(p.hit, answered.url), "text": p.text} for p in answered.passages]


def _scored(hit: Hit, url: Mapping[str, str]) -> Scored:
    return {
        "chunk": hit.chunk,
        "url": url.get(hit.source),
        "span": list(hit.span),
        "scores": _floats(hit.scores),
    }


def _cited(evidence: Evidence, context: bool) -> Cited:
    out: Cited = {
        "source": evidence.source,
        "chunk": evidence.chunk,
        "url": evidence.url,
        "quote": evidence.quote,
        "span": list(evidence.span),
        "scores": _floats(evidence.scores),
    }
    if context:
        out["before"], out["after"] = evidence.before, evidence.after
    return out


def _floats(scores: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in scores.items()}


def _versions(answered: Answered) -> Versions:
    return {"release": answered.release, "recipe": answered.recipe, "models": dict(answered.models)}
