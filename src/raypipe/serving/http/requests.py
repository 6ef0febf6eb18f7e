"""Request bodies: their fields, and the query each one makes.

    {"query": "who directed the film?", "time": "03/05/2024, 23:18:31 PT", "deadline_s": 10, "include":
    ["hits"],
     "documents": [{"page_name": "...", "page_url": "...", "page_snippet": "...", "page_result": "<html>...",
                    "page_last_modified": "..."}],
     "filters": {"hosts": ["example.org"]}}

A body is read as the readers read files, so that equal pages are equal sources. An unknown field is refused:
a misspelt option must not be ignored.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from raypipe.core.errors import DataError
from raypipe.core.records import Question, digest
from raypipe.kg.language.time_words import moment
from raypipe.readers.crag import cited
from raypipe.serving.access import RequestLimits
from raypipe.serving.filters import Filters
from raypipe.serving.http.reply_types import says
from raypipe.serving.http.validation import StrictBody, mistake
from raypipe.serving.query import QueryRequest

MAX_DOCUMENTS = 50  # in one request; CRAG's task 3 has 50
MAX_QUERIES = 16  # in one batch; the most that CRAG's own harness hands out

Include = Literal["hits", "replies", "faults", "prompts", "context", "passages"]


class DocumentBody(StrictBody):
    """One search result in CRAG's shape. A field that is missing or null is absent."""

    page_name: str | None = says("The page's title.", "Ada Lovelace", default="", max_length=10_000)
    page_url: str | None = says(
        "Its address: cited, compared with filters, and never opened.", "https://en.example.org/ada",
        default="", max_length=10_000,
    )  # fmt: skip
    page_snippet: str | None = says(
        "The search engine's extract of it.",
        "Ada Lovelace was a mathematician.",
        default="",
        max_length=100_000,
    )
    page_result: str | None = says(
        "The page itself, as HTML. One that is too long to parse is a fault of this page alone.",
        "<p>Ada Lovelace wrote the first program.</p>", default="",
    )  # fmt: skip
    page_last_modified: str | None = says(
        "When it was last changed, as the search engine says it.", "2024-02-01", default="", max_length=100
    )


class SourceFilter(StrictBody):
    """Which sources are searched. A source must match every filter that is given."""

    hosts: list[Annotated[str, Field(min_length=1, max_length=253)]] = says(
        "Hosts of the sources' urls; a parent domain stands for all of its hosts.", ["example.org"],
        default=[], max_length=100,
    )  # fmt: skip
    sources: list[Annotated[str, Field(min_length=1, max_length=100)]] = says(
        "Ids of sources, as citations name them.", [], default=[], max_length=1000
    )


class QueryOptions(StrictBody):
    """Options of a question."""

    time: str = says(
        "When the question is asked: MM/DD/YYYY, HH:MM:SS PT, or YYYY-MM-DD. Empty: when the stored question "
        "was asked, or not known.", "03/05/2024, 23:18:31 PT", default="", max_length=100,
    )  # fmt: skip
    documents: list[DocumentBody] | None = Field(
        default=None,
        max_length=MAX_DOCUMENTS,
        description="Search results that are searched for this request alone. Null: the store is searched.",
    )
    filters: SourceFilter = Field(default=SourceFilter(), description="Which sources are searched.")
    deadline_s: float | None = says(
        "Seconds for the answer. Null: 30. At most 120. Both may be configured otherwise.", 10,
        default=None, gt=0, allow_inf_nan=False,
    )  # fmt: skip

    @field_validator("time")
    @classmethod
    def _time_is_one(cls, text: str) -> str:
        try:
            if text:
                moment(text)
        except DataError:
            raise mistake(TIME_ALLOWED) from None
        return text

    @field_validator("deadline_s")
    @classmethod
    def _deadline_is_allowed(cls, seconds: float | None, info: ValidationInfo) -> float | None:
        limits: RequestLimits | None = info.context
        if limits is not None and seconds is not None and seconds > limits.max_deadline_s:
            raise mistake(f"expected at most {limits.max_deadline_s:g} seconds")
        return seconds


TIME_ALLOWED = (
    "expected MM/DD/YYYY, HH:MM:SS PT (or ET), or YYYY-MM-DD with or without HH:MM:SS; leave it out where it "
    "is not known"
)

QUERY = says(
    "The question; one that is stored, in its words or by its id, has its own pages.",
    "who wrote the first program?", max_length=10_000, pattern=r"\S",
)  # fmt: skip


class QueryBody(QueryOptions):
    """One question."""

    query: str = QUERY
    include: list[Include] = says(
        "Optional parts of the reply.", ["hits", "context"], default=[], max_length=6
    )


class AnswerBody(QueryBody):
    """The body of /v1/answer."""

    stream: bool = says("Send stages, drafts and the answer as server-sent events.", False, default=False)


class BatchBody(StrictBody):
    """The body of /v1/answer:batch."""

    queries: list[QueryBody] = Field(
        min_length=1, max_length=MAX_QUERIES, description="The questions, each with its own options."
    )


class RetrieveBody(QueryOptions):
    """The body of /v1/retrieve."""

    query: str = QUERY
    top: int = says("Passages, at most as many as the recipe ranks.", 5, default=20, ge=1, le=1000)


class FeedbackBody(StrictBody):
    """What a user says of an answer: a verdict, the right answer, or both."""

    answer_id: str = says(
        "The answer, as its reply names it.", "67d2f1c09b1e5a77c0d4a1f2e3b4c5d6e7f8", max_length=100
    )
    verdict: Literal["right", "wrong"] | None = says(
        "Whether the answer is right. Null: not said.", "wrong", default=None
    )
    text: str | None = says(
        "The right answer, in the user's words. Null: not given.", "ada lovelace",
        default=None, max_length=10_000, pattern=r"\S",
    )  # fmt: skip

    @model_validator(mode="after")
    def _says_something(self) -> FeedbackBody:
        if self.verdict is None and self.text is None:
            raise mistake("expected a verdict, a text, or both")
        return self


def query_request(
    query: str, options: QueryOptions, default_deadline_s: float, include: Collection[Include] = ()
) -> QueryRequest:
    """The query that a body asks for. Its deadline starts now."""
    deadline_s = options.deadline_s or default_deadline_s
    question = Question(digest("ask", query), query, asked_at=options.time, due=time.time() + deadline_s)
    hosts = tuple(h.lower().strip(".") for h in options.filters.hosts)
    filters = Filters(hosts, tuple(options.filters.sources))
    prompts, passages = "prompts" in include, "passages" in include
    request = QueryRequest(question, filters=filters, include_prompts=prompts, include_passages=passages)
    if options.documents is None:
        return request
    citations, sources, faults = cited(question.id, [d.model_dump() for d in options.documents])
    question = replace(question, citations=citations)
    return replace(request, question=question, sources=sources, faults=faults)
