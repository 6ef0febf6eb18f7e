"""Filters of sources: hosts, ids, and a condition on fields, parsed into a small checked tree.

    team = 'hr' and (date >= '2025-01-01' or pinned = true) and title not like 'Draft%'

Conditions are a subset of LanceDB's filters, with the same meaning. If a document lacks a field, a test of
the field is neither true nor false, except `is null`. There are no functions, casts, comments or subqueries.
Errors quote nothing of a condition, and no condition is pasted into another text. This module uses no table.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from types import SimpleNamespace
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from raypipe.core.errors import ConfError

MAX_CHARS: Final = 10_000  # most characters of a condition: enough for a list of 300 ids
EXAMPLE: Final = "such as team = 'hr' and date >= '2025-01-01'"
MAX_DEPTH: Final = 20  # most levels of a condition's tree; the tests of fields are the last level
Value: TypeAlias = str | float | bool
Operator: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">=", "in", "like", "null"]

_GRAMMAR = r"""
?any: all (_OR all)*                        -> either
?all: one (_AND one)*                       -> both
?one: NOT one                               -> negation
    | "(" any ")"
    | field OP value                        -> compared
    | field _IS [NOT] _NULL                 -> null
    | field [NOT] _IN "(" values ")"        -> among
    | field [NOT] _BETWEEN value _AND value -> between
    | field [NOT] _LIKE TEXT                -> like
values: value ("," value)*
value: TEXT -> text | NUMBER -> number | TRUE -> true | FALSE -> false
field: NAME | "`" /[^`]+/ "`"
OP: "=" | "!=" | "<>" | "<=" | "<" | ">=" | ">"
TEXT: /'(?:[^']|'')*'/
NUMBER: /-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.])/
_OR.2: /or\b/i
_AND.2: /and\b/i
NOT.2: /not\b/i
_IS.2: /is\b/i
_NULL.2: /null\b/i
_IN.2: /in\b/i
_BETWEEN.2: /between\b/i
_LIKE.2: /like\b/i
TRUE.2: /true\b/i
FALSE.2: /false\b/i
NAME: /[^\W\d]\w*/
%ignore /[ \t\r\n]+/
"""


class ConditionError(ConfError, ValueError):
    """Error of a condition that is malformed or does not fit its fields. The message quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class Test:
    """Comparison of a field. `null` has no value, `in` has values of one type, all others have one value."""

    field: str
    op: Operator
    values: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Join:
    """Conditions combined by `and` or `or`, or a single negated condition."""

    op: Literal["and", "or", "not"]
    parts: tuple[Node, ...]


Node: TypeAlias = Test | Join


def _joined(op: Literal["and", "or"], *parts: Node) -> Node:
    return _checked(Join(op, parts)) if len(parts) > 1 else parts[0]


def _unless(no: str | None, part: Node) -> Node:
    """Negates a condition if `no`, the token `not`, is present (not None)."""
    return part if no is None else _checked(Join("not", (part,)))


def _compared(field: str, op: str, value: Value) -> Node:
    known: Any = "!=" if op == "<>" else str(op)
    return Test(field, known, (value,))


def _among(field: str, no: str | None, values: tuple[Value, ...]) -> Node:
    if len(set(map(type, values))) > 1:
        raise ConditionError("where: expected a list of values of one type")
    return _unless(no, Test(field, "in", values))


def _between(field: str, no: str | None, low: Value, high: Value) -> Node:
    return _unless(no, Join("and", (Test(field, ">=", (low,)), Test(field, "<=", (high,)))))


def _number(token: str) -> float:
    if not math.isfinite(number := float(token)):
        raise ConditionError("where: expected a number below 1e308")
    return number


def _text(token: str) -> str:
    return str(token)[1:-1].replace("''", "'")


def _checked(node: Join) -> Node:
    if depth(node) > MAX_DEPTH:
        raise ConditionError(f"where: expected at most {MAX_DEPTH} levels of `and`, `or` and `not`")
    return node


def depth(node: Node) -> int:
    return 1 + max(map(depth, node.parts)) if isinstance(node, Join) else 1


_MAKE: dict[str, Callable[..., Any]] = {
    "either": partial(_joined, "or"),
    "both": partial(_joined, "and"),
    "negation": _unless,
    "compared": _compared,
    "null": lambda field, no: _unless(no, Test(field, "null")),
    "among": _among,
    "between": _between,
    "like": lambda field, no, pattern: _unless(no, Test(field, "like", (_text(pattern),))),
    "values": lambda *values: values,
    "text": _text,
    "number": _number,
    "true": lambda token: True,
    "false": lambda token: False,
    "field": lambda name: field_name(str(name)),
}
"""Rule of the grammar -> function that makes its part of the tree, instead of lark's own tree."""


@cache
def _reader() -> Any:
    import lark  # imported here: it takes .05 s, and only conditions need it

    made = {name: lambda parts, make=make: make(*parts) for name, make in _MAKE.items()}
    return lark.Lark(_GRAMMAR, parser="lalr", start="any", transformer=SimpleNamespace(**made))


@lru_cache(256)
def parse(where: str) -> Node:
    """Parses a condition. Raises ConditionError if the text is no condition, too long or nested too deep. The
    message about a syntax error names the position.

    >>> parse("not (year < 2024)")
    Join(op='not', parts=(Test(field='year', op='<', values=(2024.0,)),))
    """
    if not where.strip():  # such as an unset variable, which must not select everything
        expected = f"expected a condition, {EXAMPLE}, found an empty text; leave it out for no condition"
        raise ConditionError(f"where: {expected}")
    import lark  # here for the same reason as in `_reader`

    if where.encode("utf-8", "replace").decode() != where:
        raise ConditionError("where: expected Unicode text, found half a surrogate pair")
    if len(where) > MAX_CHARS:
        raise ConditionError(f"where: expected at most {MAX_CHARS:,} characters, found {len(where):,}")
    try:
        tree: Node = _reader().parse(where)
    except lark.exceptions.UnexpectedInput as e:
        at = getattr(e, "pos_in_stream", None)
        ends = getattr(getattr(e, "token", None), "type", "") == "$END"
        place = len(where) if ends or at is None or at < 0 else at
        found = f"cannot read character {place + 1}" if place < len(where) else "found none at its end"
        found += _hint(where, place)
        raise ConditionError(f"where: expected a condition, {EXAMPLE}; {found}") from e
    return tree


def _hint(where: str, place: int) -> str:
    """Returns a hint about the usual mistake at character `place`, or "". Quotes nothing of the condition.

    >>> _hint('team = "hr"', 7), _hint("lower(team) = 'hr'", 5), _hint("team = 'hr", 7), _hint("a == 1", 3)
    (': put texts and days in single quotes', ': there are no functions', ': a quote is not closed', '')
    """
    found, before = where[place : place + 1], where[:place]
    if where.count("'") % 2:
        return ": a quote is not closed"
    if found == "(":
        return ": there are no functions"
    if where[place : place + 4].lower() == "null":
        return ": `is null` tests for null"
    is_day = found == "-" and before[-1:].isdigit()
    if is_day or found.isalpha() or found in tuple('"\u2018\u2019\u201c\u201d'):
        return ": put texts and days in single quotes"
    return ": put a list in brackets" if found == "'" and before.rstrip().lower().endswith(" in") else ""


def tests_of(node: Node) -> Iterator[Test]:
    if isinstance(node, Test):
        yield node
    else:
        for part in node.parts:
            yield from tests_of(part)


def field_name(name: str) -> str:
    """Normalises the name of a document's field to the form that conditions use.

    >>> field_name("Team Name"), field_name("2024-Status"), field_name("Größe")
    ('team_name', '_2024_status', 'grösse')
    """
    folded = re.sub(r"\W+", "_", unicodedata.normalize("NFKC", name).casefold()).strip("_")
    return f"_{folded}" if folded[:1].isdigit() else folded


@dataclass(frozen=True, slots=True)
class Filters:
    """Filter of sources. A source must meet each condition that is given."""

    hosts: tuple[str, ...] = ()  # a URL that cites the source has one of these hosts, or a subdomain
    sources: tuple[str, ...] = ()  # ids of the sources that pass
    where: str = ""  # condition on fields of documents

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", tuple(map(host_name, self.hosts)))
        if self.where:
            parse(self.where)

    def __bool__(self) -> bool:
        return bool(self.hosts or self.sources or self.where)


def host_name(text: str) -> str:
    """Normalises a host for comparison with URLs. Raises ValueError if the text cannot be a host.

    >>> host_name("En.Example.org.")
    'en.example.org'
    """
    host = text.lower().strip(".")
    if not host or host.count(":") == 1 or set(host) & set("/*@?# "):
        raise ValueError("expected a host, such as example.org, without scheme, port, path and *")
    return host


def host_matches(url: str, hosts: Collection[str]) -> bool:
    """Returns whether a URL's host is one of `hosts` or a subdomain of one; True without `hosts`.

    >>> host_matches("https://en.example.org/a", ["example.org"])
    True
    >>> host_matches("https://anexample.org/", ["example.org"])
    False
    """
    if not hosts:
        return True
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:  # pages cite malformed URLs too
        return False
    return any(host == h or host.endswith(f".{h}") for h in hosts)
