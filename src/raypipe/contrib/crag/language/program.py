"""Programs of the knowledge graph's call language (db3's regularised API), and their canonical text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "get_person": ("person",),
    "get_movie": ("movie",),
    "get_movie_person_cast": ("movie", "person"),
    "get_movie_person_crew": ("movie", "person"),
    "get_movie_person_oscar": ("movie", "person"),
    "get_stock_price": ("company",),
    "get_stock_pe_ratio": ("company",),
    "get_stock_market_cap": ("company",),
    "get_stock_dividend": ("company",),
    "get_stock_eps": ("company",),
    "get_song": ("song",),
    "get_grammy_person": ("artist",),
    "get_grammy_song": ("song",),
    "get_grammy_year": ("year",),
    "get_nba_on_date": ("nba",),
    "get_soccer_on_date": ("soccer",),
    "get_soccer_last_game": ("soccer",),
    "get_soccer_next_game": ("soccer",),
    "get_open": ("entity",),
}
"""Call -> the kind of name of each argument. The name in get_person may also be an artist's."""
FUNCTIONS: Final = tuple(KINDS)

Op: TypeAlias = Literal["eq", "neq", "ge", "le", "gt", "lt"]


@dataclass(frozen=True, slots=True)
class Text:
    value: str
    bare: bool = False  # written without quotes; in a condition it may then name a column


@dataclass(frozen=True, slots=True)
class Number:
    value: int | float


@dataclass(frozen=True, slots=True)
class Nothing:
    """The argument None: no constraint."""


@dataclass(frozen=True, slots=True)
class Star:
    """All values of the line before (`*`), or of an earlier call of the program (`*2`)."""

    call: int = 0  # number of a call with its `sort` lines, from 1; 0: the line before


@dataclass(frozen=True, slots=True)
class Names:
    """A list in brackets, such as two actors: selects what all of the names share."""

    items: tuple[Text | Number, ...]


Value: TypeAlias = Text | Number | Star | Nothing
Arg: TypeAlias = Value | Names


@dataclass(frozen=True, slots=True)
class Cond:
    op: Op
    key: str
    value: Value


@dataclass(frozen=True, slots=True)
class Tail:
    """Selection from the rows: `["key"]["len"][:3]`."""

    key: str | None = None
    count: bool = False
    first: int | None = None


@dataclass(frozen=True, slots=True)
class Query:
    name: str  # lower case, with "get_"
    args: tuple[Arg, ...]  # names and times
    where: tuple[Cond, ...] = ()  # all must hold
    tail: Tail = Tail()
    everything: bool = False  # the line has ALL
    lead: int | None = None  # the number n before a call: its first n values


@dataclass(frozen=True, slots=True)
class Sort:
    """Line that filters and orders the rows of the line before."""

    where: tuple[Cond, ...]
    key: str
    descending: bool = False
    tail: Tail = Tail()


@dataclass(frozen=True, slots=True)
class Mean:
    of: Query | Sort


@dataclass(frozen=True, slots=True)
class Empty:
    """The line "None": no call fits the question."""


@dataclass(frozen=True, slots=True)
class Bad:
    text: str
    why: str  # with line and column in the whole program
    at: int  # character offset in the whole program


Line: TypeAlias = Query | Sort | Mean | Empty | Bad


@dataclass(frozen=True, slots=True)
class Program:
    lines: tuple[Line, ...]


def places(program: Program) -> list[tuple[int, frozenset[int]]]:
    """Returns for each line the number of its call, from 1, and those of the earlier calls that it uses. A
    `sort` belongs to the call before; any other line is a call."""
    out: list[tuple[int, frozenset[int]]] = []
    number = 0
    for line in program.lines:
        inner = line.of if isinstance(line, Mean) else line
        before = number
        if not (isinstance(inner, Sort) and out):
            number += 1
        values: list[Arg] = []
        if isinstance(inner, Query | Sort):
            values += [c.value for c in inner.where]
        if isinstance(inner, Query):
            values += inner.args
        stars = {v.call or before for v in values if isinstance(v, Star)}
        out.append((number, frozenset(stars - {number, 0})))
    return out


def print_program(program: Program) -> str:
    """Formats a program as canonical text, a line each. Parsing the text gives the same program."""
    return "\n".join(print_line(line) for line in program.lines)


def print_line(line: Line) -> str:
    match line:
        case Empty():
            return "None"
        case Bad(text=text):
            return text
        case Mean(of=of):
            return f"AVG({print_line(of)})"
        case Sort(where, key, descending, tail):
            return f"sort({_print_where(where)}, {'-' * descending}{_print_key(key)}){_print_tail(tail)}"
        case Query():
            inside = [_print_value(a) for a in line.args]
            if line.where or line.name.startswith("get_movie_person_"):
                inside.append(_print_where(line.where))
            lead = "ALL " * line.everything + (f"{line.lead} " if line.lead else "")
            return f"{lead}{line.name}({', '.join(inside)}){_print_tail(line.tail)}"


def _print_tail(t: Tail) -> str:
    key = f"[{quoted(t.key)}]" if t.key is not None else ""
    return key + '["len"]' * t.count + (f"[:{t.first}]" if t.first is not None else "")


def _print_where(where: tuple[Cond, ...]) -> str:
    if not where:
        return "None"
    each = [f"{c.op}({_print_key(c.key)}, {_print_value(c.value)})" for c in where]
    return each[0] if len(each) == 1 else f"[{', '.join(each)}]"


def _print_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,39}", key) and key != "len" else quoted(key)


def _print_value(value: Arg) -> str:
    match value:
        case Nothing():
            return "None"
        case Star(call=call):
            return f"*{call or ''}"
        case Number(value=n):
            return f"{n:.6f}".rstrip("0") + "0" * (f"{n:.6f}".rstrip("0")[-1] == ".") if n % 1 else f"{n:.0f}"
        case Names(items=items):
            return f"[{', '.join(_print_value(i) for i in items)}]"
        case Text(value=text, bare=bare):
            return text if bare else quoted(text)


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
