"""Executes call programs over a graph's tables: one SQL query per line.

Semantics (reference, section 2.6): a call gives the first of its values, with ALL all, with [:n] or n before
it the first n; without a key its values are what names its rows. `sort` filters and orders the rows of the
line before and takes that line's ALL. ["len"] counts the rows, or the values of a key, a list's items one by
one. AVG is the mean of all values of its line. `*` is what the line before put out, `*2` what the second call
did. Nothing after the moment
of asking is seen. A line that fails carries a fault, and the next lines are still run.

Knows programs, tables and links. Does not know where rows come from (`graph.ProgramTables`), nor models.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Final

from raypipe.core.kg import CallResult, Link, Value
from raypipe.core.records import Fault
from raypipe.kg.calls.registry import FUNCTIONS, LinkedCall, LinkedName
from raypipe.kg.graph import GraphBackend, GraphFault, ProgramTables, RowRequest
from raypipe.kg.language.program import (
    Arg,
    Bad,
    Cond,
    Empty,
    Line,
    Mean,
    Names,
    Nothing,
    Number,
    Program,
    Query,
    Sort,
    Star,
    Tail,
    Text,
    places,
    print_line,
)
from raypipe.kg.language.time_words import MONDAY, SUNDAY, Moment, When, when
from raypipe.kg.normalize import typed
from raypipe.kg.projection import MOST_ROWS, column_values, counted, first_rows
from raypipe.kg.relation import Relation
from raypipe.kg.sentences import LineResult, sentences

MOST_AVERAGED: Final = 1_000_000
MOST_STARS: Final = 200  # values that one `*` stands for


@dataclass(frozen=True, slots=True)
class _Output:
    """The value of `*`: the result of the line before."""

    relation: Relation | None = None
    everything: bool = False
    values: tuple[Value, ...] = ()
    keyed: bool = False  # the values are of a key, not names of rows


@dataclass(slots=True)
class _State:
    """What the next line may build on."""

    relation: Relation | None = None
    everything: bool = False
    values: tuple[Value, ...] = ()
    keyed: bool = False  # as in _Output
    calls: dict[int, _Output] = field(default_factory=dict)  # number of an earlier call -> its last line's
    subject: str = ""  # first name of the call that the line belongs to
    links: list[Link] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def output(self) -> _Output:
        return _Output(self.relation, self.everything, self.values, self.keyed)

    def of(self, star: Star) -> _Output:
        """What `*` stands for. Raises GraphFault for a call that does not come before."""
        if star.call == 0:
            return self.output()
        if star.call not in self.calls:
            raise GraphFault("no_values", f"*{star.call}: there is no call {star.call} before this one")
        return self.calls[star.call]

    def stars(self, where: Sequence[Cond]) -> dict[int, tuple[Value, ...]]:
        """The values of every `*` that conditions name, by its number."""
        named = [c.value for c in where if isinstance(c.value, Star)]
        return {star.call: self.of(star).values for star in named}


async def run(
    program: Program,
    graph: GraphBackend,
    now: Moment,
    domain: str = "",
    clock: Callable[[], float] = time.perf_counter,
) -> list[CallResult]:
    """Runs a program: the result of every line, in order.

    `domain` ("movie", "music") decides what get_person means where its key does not. A wrong program or a
    graph that is down never raises: each is the fault of a line."""
    rows, state, out = graph.open(), _State(), list[CallResult]()
    number = 0
    for line, place in zip(program.lines, places(program), strict=True):
        started, sent = clock(), len(rows.requests)
        if place.number > number:
            number, state.subject = place.number, ""
            if number > 1:
                state.calls[number - 1] = state.output()
        state.links, state.unknown = [], []
        try:
            found = await _line(line, rows, now, domain, state)
        except GraphFault as e:
            found = CallResult(print_line(line), fault=e.fault)
        except sqlite3.OperationalError as e:
            if "interrupted" not in str(e):
                raise
            detail = "the query took longer than it may. Ask for less: name an entity or a year."
            found = CallResult(print_line(line), fault=Fault("kg_query", "too_slow", detail, True))
        if found.fault is not None:
            state.relation, state.values, state.keyed = None, (), False
        out.append(
            replace(
                found,
                number=number,
                reads=place.reads,
                subject=state.subject,
                links=tuple(state.links),
                unknown=tuple(state.unknown),
                requests=tuple(rows.requests[sent:]),
                ms=(clock() - started) * 1000,
            )
        )
    return out


async def _line(line: Line, rows: ProgramTables, now: Moment, domain: str, state: _State) -> CallResult:
    text = print_line(line)
    match line:
        case Empty():
            state.relation, state.values, state.keyed = None, (), False
            return CallResult(text)
        case Bad(why=why):
            return CallResult(text, fault=Fault("kg_query", "bad_call", why, False))
        case Query():
            state.relation = await _call(line, rows, now, domain, state)
            state.everything = line.everything
            return _taken(text, rows, state, line.tail, line.lead)
        case Sort():
            state.relation = _sorted(line, now, state)
            return _taken(text, rows, state, line.tail, None)
        case Mean(of=of):
            if isinstance(of, Sort):
                relation, tail, lead = _sorted(of, now, state), of.tail, None
            else:
                relation, tail, lead = await _call(of, rows, now, domain, state), of.tail, of.lead
            state.relation, state.everything = relation, True
            return _mean(text, rows, state, tail, lead)


def _sorted(line: Sort, now: Moment, state: _State) -> Relation:
    if state.relation is None:
        raise GraphFault(
            "no_rows", "sort: there are no rows before it to sort; expected a call in the line before"
        )
    kept = state.relation.where(line.where, now, state.stars(line.where))
    return kept.sorted(line.key, line.descending)


# ---------------------------------------------------------------- calls

_ARTIST_KEYS: Final = {
    "birth_place",
    "birth_date",
    "members",
    "lifespan",
    "music",
    "end_date",
    "group",
    "birthplace",
}
_PERSON_KEYS: Final = {"birthday", "gender"}


async def _call(line: Query, rows: ProgramTables, now: Moment, domain: str, state: _State) -> Relation:
    if line.name != "get_person":
        return await _build(line.name, line, rows, now, state)
    key = (line.tail.key or "").lower()
    artist = key in _ARTIST_KEYS or (domain == "music" and key not in _PERSON_KEYS)
    order = ("artist", "person") if artist else ("person", "artist")
    first: Relation | None = None
    for name in order:  # an unknown name is looked up among the other domain's
        links, unknown = len(state.links), len(state.unknown)
        relation = await _build(name, line, rows, now, state)
        if len(state.unknown) == unknown:
            return relation
        if first is None:
            first = relation
        elif len(state.links) == links:
            break
    assert first is not None
    return first


async def _build(name: str, line: Query, rows: ProgramTables, now: Moment, state: _State) -> Relation:
    function = FUNCTIONS[name]
    names, times = line.args[: len(function.kinds)], line.args[len(function.kinds) :]
    written = [_written(a, kind, rows, state) for a, kind in zip(names, function.kinds, strict=True)]
    state.subject = next((w[0] for w in written if w), "")
    there = _time(function.time, times, now, rows, state)
    years = tuple(int(c.value.value) for c in line.where if c.key == "year" and isinstance(c.value, Number))
    await rows.ensure(RowRequest(name, tuple(w or () for w in written), years, there, now))
    linked, before = [], len(state.links)
    for arg, kind, given in zip(names, function.kinds, written, strict=True):
        keys = None if given is None else await _linked(given, kind, rows, state, now)
        linked.append(LinkedName(keys, every=isinstance(arg, Names)))
    if function.time == "arguments" and function.kinds == ("company",):
        there = _on_sessions(times, there, linked[0], now, rows, state)
    about = [link.name for link in state.links[before:]][:3]
    if there is not None and there.kind == "days":
        about.append(str(there.first) if there.first == there.last else f"{there.first} to {there.last}")
    stars = state.stars(line.where)
    return function.build(
        LinkedCall(rows.tables, tuple(linked), line.where, stars, there, now, ", ".join(about))
    )


def _written(arg: Arg, kind: str, rows: ProgramTables, state: _State) -> tuple[str, ...] | None:
    """The names in a place, as written; None where it is free."""
    match arg:
        case Nothing():
            return None
        case Text(value=value) | Number(value=value):
            return (str(value),)
        case Names(items=items):
            return tuple(str(i.value) for i in items)
        case Star():
            put = state.of(arg)
            column = put.relation.named.get(kind) if put.relation and not put.keyed else None
            if column is None or put.relation is None:
                return tuple(str(v) for v in put.values[:MOST_STARS])
            found = put.relation.column(column)
            assert found is not None
            limit = MOST_STARS if put.everything else 1
            return tuple(str(v) for v in column_values(put.relation, found, rows.tables, limit))


async def _linked(
    given: tuple[str, ...], kind: str, rows: ProgramTables, state: _State, now: Moment
) -> tuple[str, ...]:
    """The keys of the names. An unknown name is recorded; nothing folds to the key it gets."""
    keys = []
    for name in given:
        if kind == "year":
            there = when(name, now)
            keys.append(str(there.first.year) if there is not None and there.kind == "days" else name)
            continue
        link = await rows.linker.link(name, kind)
        if link is None:
            state.unknown.append(name)
            keys.append("")
        else:
            state.links.append(link)
            keys.append(link.key)
    return tuple(keys)


# ---------------------------------------------------------------- times


def _time(
    how: str,
    args: tuple[Arg, ...],
    now: Moment,
    rows: ProgramTables,
    state: _State,
    sessions: list[date] | None = None,
) -> When | None:
    """The days of a call: one argument, or from one to the other."""
    if not how:
        return None
    if how != "arguments":
        return when(how, now)
    found = []
    for word in [w for a in args for w in (_written(a, "day", rows, state) or ())]:
        there = when(word, now, sessions, SUNDAY if len(args) == 1 else MONDAY)
        if there is None:
            raise GraphFault("bad_time", f"expected a day, a month, a year or words for them, found {word!r}")
        found.append(there)
    if not found:
        raise GraphFault("bad_time", "expected a day, a month, a year or words for them, found none")
    if len(found) == 1:
        return found[0]
    firsts = [date.min if t.kind == "earliest" else t.first for t in found]
    return When("days", min(firsts), max(t.last for t in found))


def _on_sessions(
    args: tuple[Arg, ...],
    there: When | None,
    place: LinkedName,
    now: Moment,
    rows: ProgramTables,
    state: _State,
) -> When | None:
    """The same days, where trading days are those of the company's own prices."""
    key = place.keys[0] if place.keys else None
    held = rows.tables.query("SELECT date FROM price WHERE fold(ticker) = ? ORDER BY date", (key,))
    if not held:
        return there
    return _time("arguments", args, now, rows, state, [date.fromisoformat(d) for (d,) in held])


# ---------------------------------------------------------------- what is taken


def _taken(text: str, rows: ProgramTables, state: _State, tail: Tail, lead: int | None) -> CallResult:
    """Rows, values and words of a line whose relation is built."""
    relation = state.relation
    assert relation is not None
    firsts = [n for n in (tail.first, lead) if n is not None]
    limit = min(firsts) if firsts else None if state.everything or tail.count else 1
    shown = first_rows(relation, rows.tables, MOST_ROWS)
    key = tail.key or relation.default or relation.label
    column = relation.column(key)
    state.keyed = tail.key is not None or relation.default is not None
    if tail.count:
        many = counted(relation, column if tail.key else None, rows.tables)
        many = many if limit is None else min(many, limit)
        state.values, state.keyed = (many,), True
        return CallResult(text, shown, (many,), sentences(LineResult(relation, shown, tail.key, count=many)))
    state.values = (
        ()
        if column is None
        else tuple(column_values(relation, column, rows.tables, MOST_ROWS if limit is None else limit))
    )
    result = LineResult(relation, shown, tail.key or relation.default, missing=column is None)
    return CallResult(text, shown, state.values, sentences(result))


def _mean(text: str, rows: ProgramTables, state: _State, tail: Tail, lead: int | None) -> CallResult:
    relation = state.relation
    assert relation is not None
    key = tail.key or relation.default
    column = None if key is None else relation.column(key)
    if tail.count or column is None or column.kind in ("text", "date", "map"):
        raise GraphFault(
            "bad_mean", f"AVG: expected a key with numbers, found {key or 'none'}; {relation.known()}"
        )
    firsts = [n for n in (tail.first, lead) if n is not None]
    found = column_values(relation, column, rows.tables, min(firsts) if firsts else MOST_AVERAGED)
    typed_values = [typed(v) if column.kind is None else v for v in found]
    numbers = [v for v in typed_values if isinstance(v, int | float)]
    if len(numbers) < len(typed_values):
        wrong = next(v for v in typed_values if not isinstance(v, int | float))
        raise GraphFault("bad_mean", f"AVG: expected numbers, found {wrong!r}")
    mean = (math.fsum(numbers) / len(numbers),) if numbers else ()
    shown = first_rows(relation, rows.tables, MOST_ROWS)
    state.values, state.keyed = mean, True
    return CallResult(
        text, shown, mean, sentences(LineResult(relation, shown, key, mean=mean[0] if mean else None))
    )
