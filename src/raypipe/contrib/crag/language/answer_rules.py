"""Rules that turn a program's results into an answer: a number, a date, a name, yes or no, a false premise.

They are WeKnow's post-processing, as pure functions of results. An operand is a call, not a line: a call and
the `sort` lines that filter and order its rows are one operand with one value. A call whose value another
call uses is no operand. A rule abstains if its operands do not fit; then the web path answers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Final, TypeVar

from raypipe.contrib.crag.records import CallResult, Value
from raypipe.core.records import ABSTAINED, ANSWERED, IDK, INVALID, INVALID_QUESTION
from raypipe.text.replies import ParsedReply

NOTHING: Final = ParsedReply(IDK, ABSTAINED)
FALSE: Final = ParsedReply(INVALID_QUESTION, INVALID)


class Unfit(Exception):
    """Operands that do not fit a rule."""


def apply_rule(rule: str, results: Sequence[CallResult], today: date) -> ParsedReply:
    """Applies a rule to a program's results; returns its answer, or an abstention.

    A failed line, or a name that the graph lacks, gives an abstention: it is neither an answer nor a
    contradiction. Raises KeyError if the rule is not in RULES.
    """
    make = RULES[rule]
    if not results or any(r.fault is not None or r.unknown for r in results):
        return NOTHING
    if rule == "premise" and not results[-1].values:
        return FALSE
    try:
        text = make(operands(results), today)
    except Unfit:
        return NOTHING
    return NOTHING if text is None else ParsedReply(text, ANSWERED)


def operands(results: Sequence[CallResult]) -> list[CallResult]:
    """Returns the last line of every call whose value no other call uses, in the order of the calls."""
    used = {number for r in results for number in r.reads}
    last = {r.number: r for r in results}
    return [r for number, r in last.items() if number not in used]


def plain(value: Value) -> str:
    """Formats a value as an answer.

    >>> plain(2.50), plain(True), plain("Ann"), plain(12)
    ('2.5', 'yes', 'Ann', '12')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


Make = Callable[[Sequence[CallResult], date], str | None]
"""A rule's function: operands and the day of asking -> answer; None: no answer."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?|-?\d{1,3}(?:,\d{3})+(?:\.\d+)?", re.ASCII)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def _number(value: Value) -> float | None:
    """Returns a value as a number, even if it is written as text; None if it is no number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    return float(value.replace(",", "")) if _NUMBER.fullmatch(value.strip()) else None


def _day(value: Value) -> date | None:
    try:
        return date.fromisoformat(value) if isinstance(value, str) and _DAY.fullmatch(value) else None
    except ValueError:
        return None


def _singles(results: Sequence[CallResult], many: int) -> list[Value]:
    """Returns the value of every operand. Raises Unfit if there are not `many` operands (0: any number), and
    if an operand has no value or several: it is unknown which is meant."""
    if len(results) != (many or len(results)) or any(len(r.values) != 1 for r in results):
        raise Unfit
    return [r.values[0] for r in results]


T = TypeVar("T")


def _each(results: Sequence[CallResult], many: int, read: Callable[[Value], T | None]) -> list[T]:
    """Returns the value of every operand, converted by `read`. Raises Unfit if `read` returns None."""
    values = [read(v) for v in _singles(results, many)]
    if any(v is None for v in values):
        raise Unfit
    return [v for v in values if v is not None]


def _several(results: Sequence[CallResult]) -> list[float]:
    if len(results) < 2:
        raise Unfit
    return _each(results, 0, _number)


def _comparable(results: Sequence[CallResult], many: int = 0) -> list[float]:
    """Returns the operands' values as comparable numbers: the numbers, or the ordinals of days."""
    try:
        return _each(results, many, _number)
    except Unfit:
        return [float(day.toordinal()) for day in _each(results, many, _day)]


def _short(number: float) -> str:
    return plain(round(number, 2))


def _value(results: Sequence[CallResult], today: date) -> str | None:
    """Returns the last operand's value. Several values of a list are joined by commas."""
    return ", ".join(plain(v) for v in results[-1].values) or None


def _extreme(sign: int, results: Sequence[CallResult], today: date) -> str | None:
    """Names the subject with the smallest (1) or biggest (-1) value; None if subjects are equal, or if two
    share that value."""
    subjects = [r.subject for r in results]
    if len(results) < 2 or "" in subjects or len({s.casefold() for s in subjects}) < len(subjects):
        return None
    values = [sign * v for v in _comparable(results)]
    least = min(values)
    return subjects[values.index(least)] if values.count(least) == 1 else None


def _of_two(make: Callable[[float, float], str | None]) -> Make:
    return lambda results, today: make(*_each(results, 2, _number))


def _years(first: date, last: date) -> int:
    first, last = min(first, last), max(first, last)
    return last.year - first.year - ((last.month, last.day) < (first.month, first.day))


def _since(results: Sequence[CallResult], today: date) -> str | None:
    [value] = _singles(results[-1:], 1)
    if (day := _day(value)) is not None:
        return str(_years(day, today)) if day <= today else None
    year = _number(value)
    if year is None or not year.is_integer() or not 1 <= year <= today.year:
        return None
    return str(today.year - int(year))


def _yes_if(holds: Callable[[float, float], bool]) -> Make:
    return lambda results, today: plain(holds(*_comparable(results, 2)))


RULES: Final[Mapping[str, Make]] = {
    "value": _value,  # the last operand's value
    "round": lambda results, today: _short(_each(results[-1:], 1, _number)[0]),  # the last operand's number
    "list": _value,  # all values of the last operand in their order
    "count": lambda results, today: str(len(results[-1].values)) if results[-1].values else None,
    "least": partial(_extreme, 1),
    "most": partial(_extreme, -1),
    "difference": _of_two(lambda a, b: _short(abs(a - b))),  # absolute
    "sum": lambda results, today: plain(math.fsum(_several(results))),
    "mean": lambda results, today: _short(math.fsum(_several(results)) / len(results)),
    "years_between": lambda results, today: str(_years(*_each(results, 2, _day))),
    "years_since": _since,
    "percent_change": _of_two(lambda a, b: _short((b - a) / a * 100) if a else None),  # relative to the first
    "weekday": lambda results, today: f"{_each(results[-1:], 1, _day)[0]:%A}".lower(),
    "yes_if_less": _yes_if(lambda a, b: a < b),  # the first operand's value less than the second's
    "yes_if_more": _yes_if(lambda a, b: a > b),
    "yes_if_equal": lambda results, today: plain(
        len({plain(v).casefold() for v in _singles(results, 2)}) == 1
    ),
    "premise": _value,  # no value although every name is known: the premise is false
}
"""Name -> function. Dates are written YYYY-MM-DD, integers without separators, other numbers in their
shortest form. Years are whole years; `years_since` counts up to the day of asking."""
