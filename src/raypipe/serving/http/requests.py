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
from raypipe.serving.http.validation import StrictBody, mistake
from raypipe.serving.query import QueryRequest

MAX_DOCUMENTS = 50  # in one request; CRAG's task 3 has 50
MAX_QUERIES = 16  # in one batch; the most that CRAG's own harness hands out

Include = Literal["hits", "replies", "faults", "prompts", "context", "passages"]


class DocumentBody(StrictBody):
    """One search result in CRAG's shape. A field that is missing or null is absent."""

    page_name: str | None = Field(
        default="", max_length=10_000, description="The page's title.", examples=["Ada Lovelace"]
    )
    page_url: str | None = Field(
        default="",
        max_length=10_000,
        description="Its address: cited, compared with filters, and never opened.",
        examples=["https://en.example.org/ada"],
    )
    page_snippet: str | None = Field(
        default="",
        max_length=100_000,
        description="The search engine's extract of it.",
        examples=["Ada Lovelace was a mathematician."],
    )
    page_result: str | None = Field(
        default="",
        description="The page itself, as HTML. One that is too long to parse is a fault of this page alone.",
        examples=["<p>Ada Lovelace wrote the first program.</p>"],
    )
    page_last_modified: str | None = Field(
        default="",
        max_length=100,
        description="When it was last changed, as the search engine says it.",
        examples=["2024-02-01"],
    )


class SourceFilter(StrictBody):
    """Which sources are searched. A source must match every filter that is given."""

    hosts: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(
        default=[],
        max_length=100,
        description="Hosts of the sources' urls; a parent domain stands for all of its hosts.",
        examples=[["example.org"]],
    )
    sources: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        default=[], max_length=1000, description="Ids of sources, as citations name them.", examples=[[]]
    )


class QueryOptions(StrictBody):
    """Options of a question."""

    time: str = Field(
        default="",
        max_length=100,
        description="When the question is asked: MM/DD/YYYY, HH:MM:SS PT, or YYYY-MM-DD. Empty: when the "
        "stored question was asked, or not known.",
        examples=["03/05/2024, 23:18:31 PT"],
    )
    documents: list[DocumentBody] | None = Field(
        default=None,
        max_length=MAX_DOCUMENTS,
        description="Search results that are searched for this request alone. Null: the store is searched.",
    )
    filters: SourceFilter = Field(default=SourceFilter(), description="Which sources are searched.")
    deadline_s: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Seconds for the answer. Null: 30. At most 120. Both may be configured otherwise.",
        examples=[10],
    )

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

QUERY = Field(
    max_length=10_000,
    pattern=r"\S",
    description="The question; one that is stored, in its words or by its id, has its own pages.",
    examples=["who wrote the first program?"],
)


class QueryBody(QueryOptions):
    """One question."""

    query: str = QUERY
    include: list[Include] = Field(
        default=[], max_length=6, description="Optional parts of the reply.", examples=[["hits", "context"]]
    )


class AnswerBody(QueryBody):
    """The body of /v1/answer."""

    stream: bool = Field(
        default=False,
        description="Send stages, drafts and the answer as server-sent events.",
        examples=[False],
    )


class BatchBody(StrictBody):
    """The body of /v1/answer:batch."""

    queries: list[QueryBody] = Field(
        min_length=1, max_length=MAX_QUERIES, description="The questions, each with its own options."
    )


class RetrieveBody(QueryOptions):
    """The body of /v1/retrieve."""

    query: str = QUERY
    top: int = Field(
        default=20, ge=1, le=1000, description="Passages, at most as many as the recipe ranks.", examples=[5]
    )


class FeedbackBody(StrictBody):
    """What a user says of an answer: a verdict, the right answer, or both."""

    answer_id: str = Field(
        max_length=100,
        description="The answer, as its reply names it.",
        examples=["67d2f1c09b1e5a77c0d4a1f2e3b4c5d6e7f8"],
    )
    verdict: Literal["right", "wrong"] | None = Field(
        default=None, description="Whether the answer is right. Null: not said.", examples=["wrong"]
    )
    text: str | None = Field(
        default=None,
        max_length=10_000,
        pattern=r"\S",
        description="The right answer, in the user's words. Null: not given.",
        examples=["ada lovelace"],
    )

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
    request = QueryRequest(
        question,
        filters=filters,
        include_prompts="prompts" in include,
        include_passages="passages" in include,
    )
    if options.documents is None:
        return request
    citations, sources, faults = cited(question.id, [d.model_dump() for d in options.documents])
    question = replace(question, citations=citations)
    return replace(request, question=question, sources=sources, faults=faults)
