"""Requests: what may stand in a body, and what is asked with it.

    {"query": "who directed the film?", "time": "03/05/2024, 23:18:31 PT", "deadline_s": 10, "include":
    ["hits"],
     "documents": [{"page_name": "...", "page_url": "...", "page_snippet": "...", "page_result": "<html>...",
                    "page_last_modified": "..."}],
     "filters": {"hosts": ["example.org"]}}

A body is read as the readers read files, so that equal pages are equal sources. What a model does not know is
refused: a misspelt field must not be a wish that nobody hears.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from raypipe.core.records import Question, digest
from raypipe.readers import Counts
from raypipe.readers.crag import cited
from raypipe.readers.lines import decode
from raypipe.readers.rows import Unusable
from raypipe.serving.answerer import Asked
from raypipe.serving.filters import Filters
from raypipe.serving.http.errors import Refused

PAGES = 50  # of one request; CRAG's task 3 has 50
BATCH = 16  # questions of one request; the most that CRAG's own harness hands out

Include = Literal["hits", "replies", "faults", "prompts", "context", "passages"]

B = TypeVar("B", bound=BaseModel)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Document(Strict):
    """One search result, as CRAG writes them. What is missing or null is not there."""

    page_name: str | None = Field(default="", max_length=10_000)
    page_url: str | None = Field(default="", max_length=10_000)
    page_snippet: str | None = Field(default="", max_length=100_000)
    page_result: str | None = ""  # HTML; longer than Limits.page_bytes: a fault of this page
    page_last_modified: str | None = Field(default="", max_length=100)


class Sieve(Strict):
    """What of the sources may be searched. A source must fit every filter that is given."""

    hosts: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(default=[], max_length=100)
    sources: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(default=[], max_length=1000)


class Beside(Strict):
    """What stands beside a question."""

    time: str = Field(default="", max_length=100)  # when it is asked; "": the stored question's, or unknown
    documents: list[Document] | None = Field(default=None, max_length=PAGES)  # None: asked of the store
    filters: Sieve = Sieve()
    deadline_s: float | None = Field(default=None, gt=0, le=3600, allow_inf_nan=False)  # None: the endpoint's


class Query(Beside):
    """One question."""

    query: str = Field(max_length=10_000, pattern=r"\S")
    include: list[Include] = Field(default=[], max_length=6)


class Streamed(Query):
    """The body of /v1/answer."""

    stream: bool = False  # stages and drafts while they come, as server-sent events


class Batch(Strict):
    """The body of /v1/answer:batch."""

    queries: list[Query] = Field(min_length=1, max_length=BATCH)


class Retrieval(Beside):
    """The body of /v1/retrieve."""

    query: str = Field(max_length=10_000, pattern=r"\S")
    top: int = Field(default=20, ge=1, le=1000)  # passages; a recipe that ranks fewer has fewer


def read(kind: type[B], body: bytes) -> B:
    """The request in a body. Raises Refused."""
    try:
        tree = decode(body, Counts())
    except Unusable as e:
        detail = f"expected one JSON object in UTF-8: {_JSON[e.fault.reason]}"
        raise Refused(HTTPStatus.BAD_REQUEST, detail) from e
    try:
        return kind.model_validate(tree)
    except ValidationError as e:
        found = e.errors(include_url=False, include_context=False, include_input=False)
        errors = [{"at": _path(f["loc"], f["type"]), "problem": f["msg"]} for f in found[:20]]
        raise Refused(HTTPStatus.BAD_REQUEST, "the request has not the expected form", errors) from e


_JSON = {
    "bad_json": "it cannot be parsed",
    "not_utf8": "it is not UTF-8",
    "surrogate": "a text has half a surrogate pair",
    "nul": "it has a NUL byte",
    "too_deep": "it is nested too deeply",
    "nan": "a number is not finite",
    "big_integer": "an integer has more than 64 bits",
    "duplicate_key": "a key stands twice in one object",
    "not_object": "it is something else",
}


def _path(loc: tuple[int | str, ...], kind: str) -> str:
    """Where a mistake is. The name of an unknown field is the client's own text: its parent is named."""
    known = loc[:-1] if kind == "extra_forbidden" else loc
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in known).lstrip(".") or "the object"


def asked(
    query: str, beside: Beside, deadline_s: float, longest_s: float, include: Collection[Include] = ()
) -> Asked:
    """The request as what is asked. `deadline_s` is the endpoint's own; no client gets more than
    `longest_s`."""
    within = min(beside.deadline_s or deadline_s, longest_s)
    question = Question(digest("ask", query), query, asked_at=beside.time, due=time.time() + within)
    hosts = tuple(h.lower().strip(".") for h in beside.filters.hosts)
    filters = Filters(hosts, tuple(beside.filters.sources))
    made = Asked(question, filters=filters, prompts="prompts" in include, passages="passages" in include)
    if beside.documents is None:
        return made
    citations, sources, faults = cited(question.id, [d.model_dump() for d in beside.documents])
    question = replace(question, citations=citations)
    return replace(made, question=question, sources=sources, faults=faults)
