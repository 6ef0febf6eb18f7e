"""Response bodies: an answered question and a ranking, as JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict

from raypipe.core.records import FAULT, RANKED, Hit
from raypipe.report.report import ranking
from raypipe.serving.http import reply_types as replies
from raypipe.serving.query import Evidence, QueryResult
from raypipe.text.places import Place, place


def answer_response(result: QueryResult, include: Collection[str]) -> replies.AnswerResponse:
    q = result.question
    reply = q.replies.get(q.origin)
    body: replies.AnswerResponse = {
        **_common(result),  # type: ignore[typeddict-item]  # it takes ** to have what may be missing
        "answer": None if q.outcome in (FAULT, RANKED) else q.answer,
        "outcome": q.outcome,
        "confidence": reply.confidence if reply else None,
        "citations": [_citation(e, "context" in include) for e in result.evidence],
    }
    if result.answer_id is not None:
        body["answer_id"] = result.answer_id
    if "hits" in include:
        body["hits"] = [_scored(h, result) for h in ranking(q)]
    if "replies" in include:
        body["replies"] = {name: asdict(r) for name, r in q.replies.items()}
    if "prompts" in include:
        body["prompts"] = [[asdict(message) for message in chat] for chat in result.prompts]
    if "faults" in include:
        body["faults"] = [asdict(f) for f in (*result.faults, *q.faults)]
    if "passages" in include:
        body["passages"] = _passages(result)
    return body


def retrieve_response(result: QueryResult, top: int) -> replies.RetrieveResponse:
    return {**_common(result), "passages": _passages(result)[:top]}


def _common(result: QueryResult) -> replies.QuestionFields:
    q = result.question
    return {
        "id": q.id,
        "query": q.text,
        "degraded": list(q.degraded),
        "timings_ms": dict(result.timings_ms),
        "usage": dict(result.usage),
        "versions": {"release": result.release, "recipe": result.recipe, "models": dict(result.models)},
    }


def _passages(result: QueryResult) -> list[replies.ScoredPassage]:
    return [{**_scored(p.hit, result), "text": p.text} for p in result.passages]


def _scored(hit: Hit, result: QueryResult) -> replies.ScoredPassage:
    layout = result.layouts.get(hit.source)
    stands = place(layout, hit.span) if layout else None
    passage: replies.ScoredPassage = {
        "chunk": hit.chunk,
        "url": stands.url if stands else result.urls.get(hit.source),
        "span": list(hit.span),
        "scores": _floats(hit.scores),
    }
    return {**passage, **_document(stands)} if stands else passage  # type: ignore[typeddict-item]


def _document(stands: Place) -> dict[str, str | None]:
    """What a document of a folder adds to a passage or a quote."""
    return {"title": stands.title, "page": stands.page or None, "section": stands.section or None}


def _citation(evidence: Evidence, context: bool) -> replies.CitedQuote:
    citation: replies.CitedQuote = {
        "source": evidence.source,
        "chunk": evidence.chunk,
        "url": evidence.url,
        "quote": evidence.quote,
        "span": list(evidence.span),
        "scores": _floats(evidence.scores),
    }
    if evidence.place:
        citation |= _document(evidence.place)  # type: ignore[typeddict-item]
    if context:
        citation["before"], citation["after"] = evidence.before, evidence.after
    return citation


def _floats(scores: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in scores.items()}
