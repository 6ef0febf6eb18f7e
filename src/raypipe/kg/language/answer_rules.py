"""Rules that make an answer of a program's results: a number, a date, a name, yes or no, a false premise.

WeKnow's post-processing. Its operands are calls, not lines: a call and the `sort` lines that filter and order
it are one operand, with one value, and a call whose value another call uses is none. Pure functions; knows
results, no graph. A rule that its operands do not fit abstains, and the web path answers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Final

from raypipe.core.kg import CallResult, Value
from raypipe.core.records import ABSTAINED, ANSWERED, IDK, INVALID, INVALID_QUESTION
from raypipe.text.replies import ParsedReply

RULES: Final[Mapping[str, str]] = {
    "value": "the last operand's value",
    "round": "the last operand's number, rounded to two decimals",
    "list": "all values of the last operand in their order",
    "count": "how many values the last operand has",
    "least": "the subject of the operand whose value is smallest",
    "most": "the subject of the operand whose value is biggest",
    "difference": "the difference between the two operands' numbers, without its sign, two decimals at most",
    "sum": "the sum of the operands' numbers",
    "mean": "the mean of the operands' numbers, two decimals at most",
    "years_between": "whole years from the earlier to the later of the two operands' dates",
    "years_since": "whole years from the last operand's date or year to the day of asking",
    "percent_change": "change from the first operand's number to the second's, in percent of the first",
    "weekday": "the weekday of the last operand's date",
    "yes_if_less": "yes if the first operand's value is less than the second's, else no",
    "yes_if_more": "yes if the first operand's value is more than the second's, else no",
    "yes_if_equal": "yes if the two operands' values are the same, else no",
    "premise": "the last operand's value; none, where every name is known, contradicts the question",
}
"""Written as dates YYYY-MM-DD, integers without separators, other numbers in their shortest form."""

NOTHING: Final = ParsedReply(IDK, ABSTAINED)
FALSE: Final = ParsedReply(INVALID_QUESTION, INVALID)


def apply_rule(rule: str, results: Sequence[CallResult], today: date) -> ParsedReply:
    """The answer that the rule makes of a program's results, or an abstention. Raises KeyError for a rule
    that is not one of RULES.

    A line that failed or a name that the graph does not know is never an answer, nor a contradiction.
    """
    if rule not in RULES:
        raise KeyError(rule)
    if not results or any(r.fault is not None or r.unknown for r in results):
        return NOTHING
    if rule == "premise" and not results[-1].values:
        return FALSE
    text = _MAKE[rule](operands(results), today)
    return NOTHING if text is None else ParsedReply(text, ANSWERED)


def operands(results: Sequence[CallResult]) -> list[CallResult]:
    """The last line of every call whose value no other call uses, in the order of the calls."""
    used = {number for r in results for number in r.reads}
    last = {r.number: r for r in results}
    return [r for number, r in last.items() if number not in used]


def plain(value: Value) -> str:
    """A value as an answer.

    >>> plain(2.50), plain(True), plain("Ann"), plain(12)
    ('2.5', 'yes', 'Ann', '12')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


Make = Callable[[Sequence[CallResult], date], str | None]

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?|-?\d{1,3}(?:,\d{3})+(?:\.\d+)?", re.ASCII)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def _number(value: Value) -> float | None:
    """A number, also where it is written as text."""
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


def _singles(results: Sequence[CallResult]) -> list[Value] | None:
    """The value of every operand; None if one has none or several: which of them is meant is not known."""
    if any(len(r.values) != 1 for r in results):
        return None
    return [r.values[0] for r in results]


def _numbers(results: Sequence[CallResult], least: int, most: int | None = None) -> list[float] | None:
    """The number of every operand; None for another count of operands, or a value that is no number."""
    singles = _singles(results)
    if singles is None or len(singles) < least or (most is not None and len(singles) > most):
        return None
    found = [_number(v) for v in singles]
    numbers = [n for n in found if n is not None]
    return numbers if len(numbers) == len(found) else None


def _short(number: float) -> str:
    return plain(round(number, 2))


def _value(results: Sequence[CallResult], today: date) -> str | None:
    """The value; a list's items all, where the graph gave several for one."""
    return ", ".join(plain(v) for v in results[-1].values) or None


def _count(results: Sequence[CallResult], today: date) -> str | None:
    return str(len(results[-1].values)) if results[-1].values else None


def _round(results: Sequence[CallResult], today: date) -> str | None:
    numbers = _numbers(results[-1:], 1)
    return None if numbers is None else _short(numbers[0])


def _extreme(sign: int) -> Make:
    """The subject with the smallest (1) or biggest (-1) value. Equal values or subjects are no answer."""

    def make(results: Sequence[CallResult], today: date) -> str | None:
        subjects = [r.subject for r in results]
        if len(results) < 2 or "" in subjects or len({s.casefold() for s in subjects}) < len(subjects):
            return None
        if (order := _comparable(results)) is None:
            return None
        ranked = sorted(zip(order, subjects, strict=True), reverse=sign < 0, key=lambda x: x[0])
        return ranked[0][1] if ranked[0][0] != ranked[1][0] else None

    return make


def _comparable(results: Sequence[CallResult]) -> list[float] | None:
    """The values as numbers that compare as they do: numbers, or days."""
    singles = _singles(results)
    if singles is None:
        return None
    for reader in (_number, _ordinal):
        found = [reader(v) for v in singles]
        kept = [n for n in found if n is not None]
        if len(kept) == len(found):
            return kept
    return None


def _ordinal(value: Value) -> float | None:
    day = _day(value)
    return None if day is None else float(day.toordinal())


def _difference(results: Sequence[CallResult], today: date) -> str | None:
    numbers = _numbers(results, 2, 2)
    return None if numbers is None else _short(abs(numbers[0] - numbers[1]))


def _sum(results: Sequence[CallResult], today: date) -> str | None:
    numbers = _numbers(results, 2)
    return None if numbers is None else plain(math.fsum(numbers))


def _mean(results: Sequence[CallResult], today: date) -> str | None:
    numbers = _numbers(results, 2)
    return None if numbers is None else _short(math.fsum(numbers) / len(numbers))


def _percent(results: Sequence[CallResult], today: date) -> str | None:
    numbers = _numbers(results, 2, 2)
    if numbers is None or numbers[0] == 0:
        return None
    return _short((numbers[1] - numbers[0]) / numbers[0] * 100)


def _years(first: date, last: date) -> int:
    """Whole years between two days."""
    first, last = min(first, last), max(first, last)
    return last.year - first.year - ((last.month, last.day) < (first.month, first.day))


def _between(results: Sequence[CallResult], today: date) -> str | None:
    days = [_day(v) for v in _singles(results) or ()]
    if len(days) != 2 or days[0] is None or days[1] is None:
        return None
    return str(_years(days[0], days[1]))


def _since(results: Sequence[CallResult], today: date) -> str | None:
    if (singles := _singles(results[-1:])) is None:
        return None
    [value] = singles
    if (day := _day(value)) is not None:
        return str(_years(day, today)) if day <= today else None
    year = _number(value)
    if year is None or not year.is_integer() or not 1 <= year <= today.year:
        return None
    return str(today.year - int(year))


def _weekday(results: Sequence[CallResult], today: date) -> str | None:
    singles = _singles(results[-1:])
    day = None if singles is None else _day(singles[0])
    return None if day is None else f"{day:%A}".lower()


def _yes_if(holds: Callable[[float, float], bool]) -> Make:
    def make(results: Sequence[CallResult], today: date) -> str | None:
        order = _comparable(results)
        if order is None or len(order) != 2:
            return None
        return plain(holds(order[0], order[1]))

    return make


def _equal(results: Sequence[CallResult], today: date) -> str | None:
    singles = _singles(results)
    if singles is None or len(singles) != 2:
        return None
    return plain(plain(singles[0]).casefold() == plain(singles[1]).casefold())


_MAKE: Final[Mapping[str, Make]] = {
    "value": _value, "round": _round, "list": _value, "count": _count, "least": _extreme(1),
    "most": _extreme(-1), "difference": _difference, "sum": _sum, "mean": _mean, "years_between": _between,
    "years_since": _since, "percent_change": _percent, "weekday": _weekday,
    "yes_if_less": _yes_if(lambda a, b: a < b), "yes_if_more": _yes_if(lambda a, b: a > b),
    "yes_if_equal": _equal, "premise": _value,
}  # fmt: skip
