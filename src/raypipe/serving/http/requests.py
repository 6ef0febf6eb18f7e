"""Request bodies: their fields, how they are parsed, and the query each one makes.

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
from http import HTTPStatus
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from raypipe.core.records import Question, digest
from raypipe.readers import ReadCounts
from raypipe.readers.crag import cited
from raypipe.readers.lines import decode
from raypipe.readers.rows import UnusableLine
from raypipe.serving.filters import Filters
from raypipe.serving.http.errors import RequestRefused
from raypipe.serving.query import QueryRequest

MAX_DOCUMENTS = 50  # in one request; CRAG's task 3 has 50
MAX_QUERIES = 16  # in one batch; the most that CRAG's own harness hands out

Include = Literal["hits", "replies", "faults", "prompts", "context", "passages"]

B = TypeVar("B", bound=BaseModel)


class StrictBody(BaseModel):
    """A JSON object that refuses unknown fields and other types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DocumentBody(StrictBody):
    """One search result in CRAG's shape. A field that is missing or null is absent."""

    page_name: str | None = Field(default="", max_length=10_000)
    page_url: str | None = Field(default="", max_length=10_000)
    page_snippet: str | None = Field(default="", max_length=100_000)
    page_result: str | None = ""  # HTML; longer than PageLimits allows: a fault of this page
    page_last_modified: str | None = Field(default="", max_length=100)


class SourceFilter(StrictBody):
    """Which sources are searched. A source must match every filter that is given."""

    hosts: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(default=[], max_length=100)
    sources: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(default=[], max_length=1000)


class QueryOptions(StrictBody):
    """Options of a question."""

    time: str = Field(default="", max_length=100)  # asked at; "": the stored question's time, or unknown
    documents: list[DocumentBody] | None = Field(default=None, max_length=MAX_DOCUMENTS)  # None: the store
    filters: SourceFilter = SourceFilter()
    deadline_s: float | None = Field(default=None, gt=0, le=3600, allow_inf_nan=False)  # None: the endpoint's


class QueryBody(QueryOptions):
    """One question."""

    query: str = Field(max_length=10_000, pattern=r"\S")
    include: list[Include] = Field(default=[], max_length=6)


class AnswerBody(QueryBody):
    """The body of /v1/answer."""

    stream: bool = False  # stages, drafts and the answer, as server-sent events


class BatchBody(StrictBody):
    """The body of /v1/answer:batch."""

    queries: list[QueryBody] = Field(min_length=1, max_length=MAX_QUERIES)


class RetrieveBody(QueryOptions):
    """The body of /v1/retrieve."""

    query: str = Field(max_length=10_000, pattern=r"\S")
    top: int = Field(default=20, ge=1, le=1000)  # passages, at most as many as the recipe ranks


def parse_body(kind: type[B], body: bytes) -> B:
    """The request in a body. Raises RequestRefused."""
    try:
        tree = decode(body, ReadCounts())
    except UnusableLine as e:
        detail = f"Invalid request: expected one JSON object in UTF-8, {_JSON[e.fault.reason]}."
        raise RequestRefused(HTTPStatus.BAD_REQUEST, detail) from e
    try:
        return kind.model_validate(tree)
    except ValidationError as e:
        found = e.errors(include_url=False, include_context=False, include_input=False)
        errors = [{"at": _path(f["loc"], f["type"]), "problem": f["msg"]} for f in found[:20]]
        raise RequestRefused(HTTPStatus.BAD_REQUEST, "Invalid request.", errors) from e


_JSON = {
    "bad_json": "but it cannot be parsed",
    "not_utf8": "but it is not UTF-8",
    "surrogate": "but a text has half a surrogate pair",
    "nul": "but it has a NUL byte",
    "too_deep": "but it is nested too deeply",
    "nan": "but a number is not finite",
    "big_integer": "but an integer has more than 64 bits",
    "duplicate_key": "but an object has a key twice",
    "not_object": "found another JSON value",
}


def _path(loc: tuple[int | str, ...], kind: str) -> str:
    """The path of a mistake. The name of an unknown field is the client's text, so its parent is named."""
    known = loc[:-1] if kind == "extra_forbidden" else loc
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in known).lstrip(".") or "the object"


def query_request(
    query: str,
    options: QueryOptions,
    default_deadline_s: float,
    max_deadline_s: float,
    include: Collection[Include] = (),
) -> QueryRequest:
    """The query that a body asks for. Its deadline starts now and is at most `max_deadline_s`."""
    deadline_s = min(options.deadline_s or default_deadline_s, max_deadline_s)
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
