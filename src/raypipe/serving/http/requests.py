"""Request bodies: their fields, their checks, and the query that each one makes.

    {"query": "who directed the film?", "time": "03/05/2024, 23:18:31 PT", "deadline_s": 10,
     "include": ["hits"], "filters": {"hosts": ["example.org"]},
     "documents": [{"page_name": "...", "page_url": "...", "page_snippet": "...", "page_result": "<html>...",
                    "page_last_modified": "..."}]}

A body is parsed as the readers parse files, so equal pages become equal sources. An unknown field is refused,
so that no misspelt option is ignored. An error message gives the place of a mistake and the allowed values,
and repeats nothing that the client sent. So it names an unknown field by its number in the object.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Collection
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from raypipe.core.errors import DataError
from raypipe.core.records import Question, Turn, digest
from raypipe.readers import ReadCounts
from raypipe.readers.crag import cited
from raypipe.readers.lines import decode
from raypipe.readers.rows import UnusableLine
from raypipe.serving.access import RequestLimits
from raypipe.serving.http.errors import RequestRefused
from raypipe.serving.http.replies import ANSWER_ID, PAGE, QUOTE, says
from raypipe.serving.query import QueryRequest
from raypipe.text.filters import MAX_CHARS, ConditionError, Filters, host_name, parse
from raypipe.text.moments import moment
from raypipe.text.turns import recent

MAX_DOCUMENTS = 50  # documents per request; CRAG's task 3 has 50
MAX_QUERIES = 16  # questions per batch; the most that CRAG's own harness sends

Include = Literal["hits", "replies", "faults", "prompts", "context", "passages"]
B = TypeVar("B", bound=BaseModel)

MOST_NAMED = 5  # most unknown fields of an object that a message names
LONGEST_NAME = 40  # most characters of an unknown field for which a message suggests an allowed one


class StrictBody(BaseModel):
    """A JSON object that refuses unknown fields and wrong types. An unknown field that is null is ignored."""

    NULL_IS_ABSENT: ClassVar[bool] = False  # True: known fields that are null are ignored, too

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _fields_are_known(cls, tree: Any) -> Any:
        allowed = list(cls.model_fields)
        if not isinstance(tree, dict):
            raise mistake(f"expected an object; its fields: {', '.join(allowed)}")
        if tree.keys() <= cls.model_fields.keys() and not (cls.NULL_IS_ABSENT and None in tree.values()):
            return tree
        kept = frozenset() if cls.NULL_IS_ABSENT else frozenset(allowed)
        given = {name: value for name, value in tree.items() if value is not None or name in kept}
        unknown = [(i, n) for i, n in enumerate(tree, start=1) if n in given and n not in allowed]
        found, absent = [], [n for n, f in cls.model_fields.items() if f.is_required() and n not in given]
        for number, name in unknown[:MOST_NAMED]:
            near = difflib.get_close_matches(name, allowed, 1) if len(name) <= LONGEST_NAME else []
            near = near or absent
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            found.append(f"field {number} is unknown{meant}")
        if found:
            lacks = f"; {absent[0]!r} is missing" if absent else ""
            raise mistake(f"{', '.join(found)}{lacks}; allowed: {', '.join(allowed)}")
        return given


def mistake(problem: str) -> PydanticCustomError:
    """Makes the error for a wrong field. `problem` is the whole message, without text of the request."""
    return PydanticCustomError("mistake", "{problem}", {"problem": problem})


class DocumentBody(StrictBody):
    """A search result in CRAG's shape. A field that is missing or null is absent."""

    page_name: str | None = says("The page's title.", "Ada Lovelace", default="", max_length=10_000)
    page_url: str | None = says(
        "Its address: cited, compared with filters, never opened.", PAGE, default="", max_length=10_000
    )
    page_snippet: str | None = says(
        "The search engine's extract of it.", "Ada Lovelace was ...", default="", max_length=100_000
    )
    page_result: str | None = says(
        "The page as HTML. A page that is too long to parse is a fault of only this page.",
        f"<p>{QUOTE}</p>",
        default="",
    )
    page_last_modified: str | None = says(
        "When it was last changed, as the search engine reports it.", "2024-02-01", default="", max_length=100
    )


class TurnBody(StrictBody):
    """An earlier turn of a conversation."""

    role: Literal["user", "assistant"] = says("Who spoke.", "user")
    text: str = says("What was said.", "who was ada lovelace?", max_length=100_000)


class SourceFilter(StrictBody):
    """Filters on the searched sources. A source must match every given one."""

    hosts: list[Annotated[str, Field(min_length=1, max_length=253)]] = says(
        "Hosts of the sources' urls; a parent domain stands for all of its hosts.",
        ["example.org"],
        default=[],
        max_length=100,
    )

    @field_validator("hosts")
    @classmethod
    def _hosts_are_some(cls, hosts: list[str]) -> list[str]:
        try:
            return list(map(host_name, hosts))
        except ValueError as e:
            raise mistake(str(e)) from None

    sources: list[Annotated[str, Field(min_length=1, max_length=100)]] = says(
        "Ids of sources, as citations name them.", [], default=[], max_length=1000
    )
    where: str = says(
        "A condition on the fields of documents, as LanceDB has them.",
        "date >= '2024-01-01'",
        default="",
        max_length=MAX_CHARS,
    )

    @field_validator("where")
    @classmethod
    def _where_is_one(cls, where: str) -> str:
        try:
            parse(where)
        except ConditionError as e:
            raise mistake(str(e).removeprefix("where: ")) from None
        return where

    def plain(self) -> Filters:
        return Filters(tuple(self.hosts), tuple(self.sources), self.where)


class QueryOptions(StrictBody):
    """Options of a question."""

    time: str = says(
        "Time of the question: MM/DD/YYYY, HH:MM:SS PT, or YYYY-MM-DD. Empty: that of the stored question, "
        "or not known.",
        "03/05/2024, 23:18:31 PT",
        default="",
        max_length=100,
    )
    documents: list[DocumentBody] | None = Field(
        default=None,
        max_length=MAX_DOCUMENTS,
        description="Search results, searched only for this request. Null: the store is searched.",
    )
    filters: SourceFilter = Field(default=SourceFilter(), description="Which sources are searched.")
    deadline_s: float | None = says(
        "Seconds for the answer. Null: 30. At most 120. Both are configurable.",
        10,
        default=None,
        gt=0,
        allow_inf_nan=False,
    )

    @field_validator("time")
    @classmethod
    def _time_is_one(cls, text: str) -> str:
        try:
            if text:
                moment(text)
        except DataError:
            expected = "MM/DD/YYYY, HH:MM:SS PT (or ET), or YYYY-MM-DD with or without HH:MM:SS"
            raise mistake(f"expected {expected}; leave it out if it is not known") from None
        return text

    @field_validator("deadline_s")
    @classmethod
    def _deadline_is_allowed(cls, seconds: float | None, info: ValidationInfo) -> float | None:
        limits: RequestLimits | None = info.context
        if limits is not None and seconds is not None and seconds > limits.max_deadline_s:
            raise mistake(f"expected at most {limits.max_deadline_s:g} seconds")
        return seconds


class QuestionBody(QueryOptions):
    """A question with its options."""

    query: str = says(
        "The question. A stored question, given by its words or its id, has its own pages.",
        "who wrote the first program?",
        max_length=10_000,
        pattern=r"\S",
    )
    turns: list[TurnBody] = Field(
        default=[],
        max_length=100,
        description="Earlier turns of the question's conversation, oldest first: the newest 20 count, and "
        "the first 2,000 characters of each. A question that needs them is rewritten to stand alone.",
    )


class QueryBody(QuestionBody):
    """A question, and the optional parts of its response."""

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


class RetrieveBody(QuestionBody):
    """The body of /v1/retrieve."""

    top: int = says("Passages, at most as many as the recipe ranks.", 5, default=20, ge=1, le=1000)


class FeedbackBody(StrictBody):
    """A user's verdict on an answer, the right answer, or both."""

    answer_id: str = says("The answer, as its reply names it.", ANSWER_ID, max_length=100)
    verdict: Literal["right", "wrong"] | None = says(
        "Whether the answer is right. Null: not said.", "wrong", default=None
    )
    text: str | None = says(
        "The right answer, in the user's words. Null: not given.",
        "ada lovelace",
        default=None,
        max_length=10_000,
        pattern=r"\S",
    )

    @model_validator(mode="after")
    def _says_something(self) -> FeedbackBody:
        if self.verdict is None and self.text is None:
            raise mistake("expected a verdict, a text, or both")
        return self


def query_request(
    options: QuestionBody, default_deadline_s: float, include: Collection[Include] = ()
) -> QueryRequest:
    """Makes the query for the answerer from a body. The time until the deadline starts with this call. If the
    body has no deadline, `default_deadline_s` counts. `include` names the optional parts of the response."""
    deadline_s, query = options.deadline_s or default_deadline_s, options.query
    turns = recent([Turn(t.role, t.text) for t in options.turns])
    id, due = digest("ask", query), time.time() + deadline_s
    question = Question(id, query, asked_at=options.time, due=due, turns=turns)
    filters = options.filters.plain()
    prompts, passages = "prompts" in include, "passages" in include
    request = QueryRequest(question, filters=filters, include_prompts=prompts, include_passages=passages)
    if options.documents is None:
        return request
    citations, sources, faults = cited(question.id, [d.model_dump() for d in options.documents])
    question = replace(question, citations=citations)
    return replace(request, question=question, sources=sources, faults=faults)


def parse_body(kind: type[B], body: bytes, limits: RequestLimits) -> B:
    """Parses a body and checks its fields, some by `limits`. Raises RequestRefused if the body is invalid."""
    try:
        tree = decode(body, ReadCounts())
    except UnusableLine as e:
        detail = f"Invalid request: expected one JSON object in UTF-8, {_JSON[e.fault.reason]}."
        raise RequestRefused(HTTPStatus.BAD_REQUEST, detail) from e
    try:
        return kind.model_validate(tree, context=limits)
    except ValidationError as e:
        errors = []
        for f in e.errors(include_url=False, include_input=False)[:20]:
            # such as documents[1].page_url; types that pydantic tried for a union are left out
            path = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in f["loc"] if k not in _TRIED)
            words = _PROBLEMS.get(f["type"])
            problem = words.format_map(f.get("ctx", {})) if words else f["msg"]
            errors.append({"at": path.lstrip(".") or "the object", "problem": problem})
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

_PROBLEMS = {
    "missing": "expected this field, found none",
    "string_type": "expected a text",
    "bool_type": "expected true or false",
    "int_type": "expected a whole number",
    "float_type": "expected a number",
    "list_type": "expected a list",
    "dict_type": "expected an object",
    "model_type": "expected an object",
    "finite_number": "expected a finite number",
    "literal_error": "expected {expected}",
    "string_pattern_mismatch": "expected a text that is not only white space",
    "string_too_long": "expected at most {max_length} characters",
    "string_too_short": "expected at least {min_length} characters",
    "too_long": "expected at most {max_length} of them",
    "too_short": "expected at least {min_length} of them",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than_equal": "expected at most {le}",
}
"""Pydantic's kind of error -> the expected value; fields in braces are our numbers and names."""

_TRIED = frozenset({"str", "list[str]", "list[TextPart]"})
"""Names by which pydantic shows members of a union in the path of an error."""
