"""Request bodies checked: JSON to the class of a body, and every mistake in words of our own.

A message names the place of a mistake and what is allowed there. It repeats nothing that the client sent: an
unknown field is named by its number in its object, since a key may be any text.
"""

from __future__ import annotations

import difflib
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from raypipe.readers import ReadCounts
from raypipe.readers.lines import decode
from raypipe.readers.rows import UnusableLine
from raypipe.serving.access import RequestLimits
from raypipe.serving.http.errors import RequestRefused

B = TypeVar("B", bound=BaseModel)

MOST_NAMED = 5  # mistakes of one kind that a message names
LONGEST_NAME = 40  # characters of an unknown field that is compared with the allowed ones


class StrictBody(BaseModel):
    """A JSON object that refuses unknown fields and other types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _fields_are_known(cls, tree: Any) -> Any:
        allowed = list(cls.model_fields)
        if not isinstance(tree, dict):
            raise mistake(f"expected an object; its fields: {', '.join(allowed)}")
        unknown = [(i, name) for i, name in enumerate(tree, start=1) if name not in allowed]
        found = []
        for number, name in unknown[:MOST_NAMED]:
            near = difflib.get_close_matches(name, allowed, 1) if len(name) <= LONGEST_NAME else []
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            found.append(f"field {number} is unknown{meant}")
        if found:
            raise mistake(f"{', '.join(found)}; allowed: {', '.join(allowed)}")
        return tree


def mistake(problem: str) -> PydanticCustomError:
    """What a check of a field raises: `problem` is the whole message, and repeats nothing of the request."""
    return PydanticCustomError("mistake", "{problem}", {"problem": problem})


def parse_body(kind: type[B], body: bytes, limits: RequestLimits) -> B:
    """The request in a body. Checks of fields get the limits as their context. Raises RequestRefused."""
    try:
        tree = decode(body, ReadCounts())
    except UnusableLine as e:
        detail = f"Invalid request: expected one JSON object in UTF-8, {_JSON[e.fault.reason]}."
        raise RequestRefused(HTTPStatus.BAD_REQUEST, detail) from e
    try:
        return kind.model_validate(tree, context=limits)
    except ValidationError as e:
        found = e.errors(include_url=False, include_input=False)[:20]
        errors = []
        for f in found:
            # documents[1].page_url: a type that was tried there is no part of it
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
    "too_long": "expected at most {max_length} items",
    "too_short": "expected at least {min_length} items",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than_equal": "expected at most {le}",
}
"""Pydantic's kind of error -> what was expected; the fields in braces are numbers and names of ours."""


_TRIED = frozenset({"str", "list[str]", "list[TextPart]"})
"""How pydantic names the members of a union in the place of an error."""
