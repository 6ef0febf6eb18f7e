"""Spellings of a value: as the answer, as other right answers, and in a sentence of a page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, slots=True)
class Spelling:
    answer: str  # lower case
    others: tuple[str, ...]  # other right answers, lower case
    spoken: str  # in a sentence of a page


def long_date(day: date) -> str:
    return f"{day:%B} {day.day}, {day.year}"


def plain(x: float) -> str:
    """Formats a number as short as possible: `2.0` -> `2`."""
    return f"{x:.10g}"


def price(x: float) -> str:
    return f"-${-x:.2f}" if x < 0 else f"${x:,.2f}"


def large(dollars: int) -> str:
    """Formats a large amount: $3.02 billion, $640 million."""
    return f"${dollars / 1e9:.2f} billion" if dollars >= 1e9 else f"${dollars / 1e6:g} million"


def named(name: str) -> Spelling:
    return Spelling(name.lower(), (), name)


def listed(names: Iterable[object]) -> Spelling:
    return named(", ".join(map(str, names)))


def also(name: str, *others: str) -> Spelling:
    return Spelling(name.lower(), tuple(o.lower() for o in others), name)


def articled(name: str) -> Spelling:
    """Spells a name that begins with an article. An answer may omit the article."""
    return also(name, name.split(" ", 1)[1])


def dated(day: date) -> Spelling:
    return Spelling(day.isoformat(), (long_date(day).lower(),), long_date(day))


def dates(days: Iterable[date]) -> Spelling:
    each = [dated(d) for d in days]
    spoken = ", ".join(d.spoken for d in each)
    return Spelling(", ".join(d.answer for d in each), (spoken.lower(),), spoken)


def counted(n: int) -> Spelling:
    return Spelling(str(n), () if n < 1000 else (f"{n:,}",), f"{n:,}")


def units(n: int | None, *names: str) -> Spelling:
    return Spelling(str(n), tuple(f"{n} {name}" for name in names), str(n))


def decimal(x: float) -> Spelling:
    return Spelling(plain(x), (f"{x:.2f}",), plain(x))


def priced(x: float) -> Spelling:
    x = round(x, 2)
    return Spelling(price(x), tuple(dict.fromkeys((f"{x:.2f}", plain(x), repr(x)))), price(x))


def per_share(x: float) -> Spelling:
    """Spells earnings per share, negative for a loss."""
    return Spelling(price(x), tuple(dict.fromkeys((plain(x), f"{x:.2f}"))), price(x))


def dollars(text: str, *others: str) -> Spelling:
    return Spelling(f"${text}", (*others, text), f"${text}")


def percent(share: float) -> Spelling:
    x = round(share * 100, 2)
    return Spelling(f"{plain(x)}%", (plain(x), f"{x:.2f}%"), f"{plain(x)}%")


def sized(dollars: int) -> Spelling:
    text = large(dollars)
    return Spelling(text, (text[1:], str(dollars), f"${dollars:,}"), text)


def years(start: date, end: date) -> int:
    return end.year - start.year - ((end.month, end.day) < (start.month, start.day))


def age(start: date, end: date) -> Spelling:
    return units(years(start, end), "years old", "years")


def apart(a: int, b: int) -> Spelling | None:
    """Spells the number of years between two years. Returns None if they are equal."""
    return units(abs(a - b), "years") if a != b else None
