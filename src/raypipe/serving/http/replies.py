"""Response bodies of the HTTP API, and how an answered question fills them.

FastAPI generates the OpenAPI document from these classes. A class names the fields of a JSON object, with
meanings and examples. A field that is not set is left out of a body. The field `replies` holds the texts that
the recipe's steps wrote about the question.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from raypipe.core.records import FAULT, RANKED, Hit, ranking
from raypipe.serving.query import Evidence, QueryResult
from raypipe.text.context import Place


def says(description: str, example: Any, **more: Any) -> Any:
    """Declares a field of a body with its meaning and an example. `more` is passed to pydantic's `Field`."""
    return Field(description=description, examples=[example], **more)


SOURCE = "91774d62e0b14c6f"
RELEASE = "Id of the live release; null: a named recipe answers."
WEIGHTS = says("Name of each model -> identity of its weights.", {"all-MiniLM-L6-v2": "sha256:4740876d"})
QUOTE = "Ada Lovelace wrote the first program."
PAGE = "https://en.example.org/ada"
TOKENS = ("prompt_tokens", "cached_tokens", "generated_tokens")
ANSWER_ID = "67d2f1c09b1e5a77c0d4a1f2e3b4c5d6e7f8"


class Shape(BaseModel):
    """A JSON object with these fields and no other."""

    model_config = ConfigDict(extra="forbid")


class Located(Shape):
    """Base class of passages and quotes: a span of a source, with its address and its scores."""

    chunk: str | None = says(
        "Id of the best-ranked passage that has the whole quote; null: none has.", f"{SOURCE}:0-39"
    )
    url: str | None = says("Url of the source, or the path (with #page=N) of its file; null: none.", PAGE)
    span: tuple[int, int] = says("[start, end) in the characters of the source's parsed text.", [0, 38])
    scores: dict[str, float] = says(
        "Score of the passage by each ranker that ranked it.", {"recall": 0.86, "rerank": 0.97}
    )
    title: str = says("Title of the document; only for a file of a folder.", "Report", default="")
    page: str | None = says("Its page or pages, as printed; null: none.", "p. 7", default=None)
    section: str | None = says("Heading of its section; null: none.", "Method", default=None)


class ScoredPassage(Located):
    """A ranked passage."""

    chunk: str = says("Id of the passage: source:start-end.", f"{SOURCE}:0-39")
    text: str = says("The passage; with `passages` and in /v1/retrieve.", QUOTE, default="")


class CitedQuote(Located):
    """A quote that supports the answer: exactly the source's parsed text at `span`."""

    source: str = says("Id of the source.", SOURCE)
    quote: str = says("The text of the source at `span`.", QUOTE)
    before: str = says("Up to 300 characters of the source before the quote; with `context`.", "", default="")
    after: str = says("Up to 300 characters after the quote; with `context`.", " It ...", default="")


class Versions(Shape):
    """Which release, recipe and models answered."""

    release: str | None = says(RELEASE, "r0001-91774d62")
    recipe: str = says("Digest of the recipe.", "5c0f2c1e7d3a9b48")
    models: dict[str, str] = WEIGHTS


class ReplyFields(Shape):
    """Fields of every response to a question."""

    degraded: list[str] = says("Stages that were omitted: out of time, or their model is unavailable.", [])
    timings_ms: dict[str, float] = says(
        "Wall time of each stage, and in total, in milliseconds.", {"dense": 12.1, "total": 96.4}
    )
    versions: Versions = Field(description="Release, recipe and models that answered.")


class QuestionFields(ReplyFields):
    """Fields of a response about one question: the question, and the model calls that were made for it."""

    id: str = says("Id of the question: the stored one's, or a digest of its text.", "0f52a8d1")
    query: str = says("The question.", "who wrote the first program?")
    usage: dict[str, int] = says(
        "Texts embedded, pairs scored, chats answered and their tokens, for this request.",
        {"embedded": 1, "scored": 20, "chats": 0, **dict.fromkeys(TOKENS, 0)},
    )


class AnswerFields(ReplyFields):
    """Outcome, evidence and confidence of an answer."""

    outcome: str = says(
        "answered, abstained (i don't know), false_premise (invalid question), ranked or fault.", "answered"
    )
    confidence: float | None = says("Confidence of the answer, 0 to 1; null: no step states one.", 0.91)
    citations: list[CitedQuote] = Field(
        description="The evidence of the answer, best first; for an abstention, the closest passages found."
    )
    others: list[CitedQuote] = Field(
        default=[],
        description="Other values that other sources state for the answer, newest first.",
    )
    answer_id: str = says("Id of the answer for /v1/feedback; only if it is captured.", ANSWER_ID, default="")


class AnswerResponse(QuestionFields, AnswerFields):
    """The body of /v1/answer's response."""

    answer: str | None = says("The answer, never empty; null for outcome fault or ranked.", "ada lovelace")
    hits: list[ScoredPassage] = Field(default=[], description="The ranking; with `hits`.")
    replies: dict[str, Any] = says(
        "Reply of each step; with `replies`.", {"extract": {"text": "ada lovelace"}}, default={}
    )
    prompts: list[list[dict[str, str]]] = says(
        "Every chat that a language model got; with `prompts`.",
        [[{"role": "user", "content": "..."}]],
        default=[],
    )
    faults: list[dict[str, Any]] = says(
        "Faults of its pages and stages; with `faults`.",
        [{"step": "parse", "reason": "too_large", "detail": "...", "transient": False}],
        default=[],
    )
    passages: list[ScoredPassage] = Field(default=[], description="The ranking with texts; with `passages`.")


class RetrieveResponse(QuestionFields):
    """The body of /v1/retrieve's response."""

    passages: list[ScoredPassage] = Field(description="The best passages, with their texts.")


class FieldProblem(Shape):
    """A wrong field of a request."""

    at: str = says("Path of the field or of its object.", "documents[1].page_url")
    problem: str = says("What is allowed there.", "expected a text")


class ProblemBody(Shape):
    """An error (RFC 9457). It repeats nothing of the request."""

    type: str = says("Always about:blank.", "about:blank")
    title: str = says("The status in words.", "Bad Request")
    status: int = says("The HTTP status.", 400)
    detail: str = says("What is wrong.", "Invalid request.")
    errors: list[FieldProblem] = Field(default=[], description="The wrong fields, 20 at most.")


class BatchProblem(Shape):
    """A question of a batch that could not be answered."""

    problem: ProblemBody = Field(description="Why.")


class BatchResponse(Shape):
    """The body of /v1/answer:batch's response."""

    answers: list[AnswerResponse | BatchProblem] = Field(description="One for each question, in their order.")


class StreamEvent(Shape):
    """A server-sent event."""

    event: Literal["stage", "draft", "answer", "error"] = says(
        "Kind of `data`; events of chats have none.", "stage", default="answer"
    )
    data: str = says("JSON; the last event of a chat is [DONE].", '{"stage": "dense", "ms": 12.1}')


class RecipeName(Shape):
    """Name and digest of a recipe."""

    name: str = says("Name of its file.", "local")
    digest: str = says("Digest of all that decides its answers.", "5c0f2c1e7d3a9b48")


class IndexResponse(Shape):
    """The searched tables, with the recipe and the release that answer."""

    release: str | None = says(RELEASE, "r0001-91774d62")
    recipe: RecipeName = Field(description="The recipe that answers.")
    embedders: list[str] = says("Names of its embedders.", ["all-MiniLM-L6-v2"])
    rows: dict[str, int] = says("Rows of each table that is searched.", {"texts": 55, "passages": 640})
    examples: list[str] = says("Some stored questions.", ["who wrote the first program?"])


class FeedbackResponse(Shape):
    """The body of /v1/feedback's response."""

    answer_id: str = says("The answer.", ANSWER_ID)
    kept: bool = says("Always true: it is on disk.", True)


class HealthResponse(Shape):
    """State of the endpoint: alive or ready."""

    status: str = says("alive, or ready.", "ready")
    unavailable: list[str] = says("Deployments whose stages are omitted now; of /readyz.", [], default=[])


def answer_response(result: QueryResult, include: Collection[str]) -> AnswerResponse:
    q = result.question
    reply, body = q.replies.get(q.origin), _common(result)
    body["citations"] = [_citation(e, "context" in include) for e in result.evidence]
    if result.others:
        body["others"] = [_citation(e, "context" in include) for e in result.others]
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
    return AnswerResponse(
        **body,
        answer=None if q.outcome in (FAULT, RANKED) else q.answer,
        outcome=q.outcome,
        confidence=reply.confidence if reply else None,
    )


def retrieve_response(result: QueryResult, top: int) -> RetrieveResponse:
    return RetrieveResponse(**_common(result), passages=_passages(result)[:top])


def _common(result: QueryResult) -> dict[str, Any]:
    q, asked = result.question, result.asked or result.question
    return {
        "id": q.id,
        "query": asked.text,
        "degraded": q.degraded,
        "timings_ms": result.timings_ms,
        "usage": result.usage,
        "versions": {"release": result.release, "recipe": result.recipe, "models": result.models},
    }


def _passages(result: QueryResult) -> list[Any]:
    return [{**_scored(p.hit, result), "text": p.text} for p in result.passages]


def _scored(hit: Hit, result: QueryResult) -> dict[str, Any]:
    """Builds the fields of a `ScoredPassage`."""
    url, place = result.places.of(hit.source, hit.span)
    passage = {"chunk": hit.chunk, "url": url, "span": hit.span, "scores": hit.scores}
    return {**passage, **_document(place)} if place else passage


def _document(place: Place) -> dict[str, Any]:
    """Builds the fields title, page and section, which only text from a file of an ingested folder has."""
    return {"title": place.title, "page": place.page or None, "section": place.section or None}


def _citation(e: Evidence, context: bool) -> dict[str, Any]:
    """Builds the fields of a `CitedQuote`. If `context` is true, adds the text before and after the quote."""
    quote = {n: getattr(e, n) for n in ("source", "chunk", "url", "quote", "span", "scores")}
    if e.place:
        quote |= _document(e.place)
    return {**quote, "before": e.before, "after": e.after} if context else quote
