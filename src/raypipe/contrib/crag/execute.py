"""Executes call programs over a graph's tables: one SQL query per line.

Semantics (paper of db3, the winner of CRAG's contest, section 2.6):

- A call gives the first of its values: all of them with ALL, the first n with [:n] or with n before the call.
- Without a key, its values are the names of its rows.
- `sort` filters and orders the rows of the line before, and inherits that line's ALL.
- ["len"] counts the rows, or the values of a key; the items of a list count one by one.
- AVG is the mean of all values of its line.
- `*` stands for the values of the line before, `*2` for those of the second call.

Rows from after the moment of asking are invisible. A failed line carries a fault; the next lines still run.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from typing import Final

from raypipe.contrib.crag.calls import finance, movie, music, sports
from raypipe.contrib.crag.calls.core import LinkedCall, LinkedName
from raypipe.contrib.crag.graph import Fetch, GraphBackend, GraphFault, ProgramTables, RowRequest
from raypipe.contrib.crag.language import program as p
from raypipe.contrib.crag.language.time_words import MONDAY, SUNDAY, When, when
from raypipe.contrib.crag.names import typed
from raypipe.contrib.crag.records import CallResult, Link, Value
from raypipe.contrib.crag.relation import MOST_ROWS, Relation, column_values, counted, first_rows
from raypipe.contrib.crag.sentences import sentences
from raypipe.core.records import Fault
from raypipe.text.moments import Moment

MOST_AVERAGED: Final = 1_000_000  # values of one AVG
MOST_STARS: Final = 200  # most values that one `*` stands for
_ARTIST_KEYS: Final = frozenset(
    {"birth_place", "birth_date", "members", "lifespan", "music", "end_date", "group", "birthplace"}
)
_PERSON_KEYS: Final = frozenset({"birthday", "gender"})


@dataclass(frozen=True, slots=True)
class GraphCall:
    """Call: the relation that it selects over the tables, and the requests that fetch its rows.

    A relation holds nothing from after the moment of asking."""

    relation: Callable[[LinkedCall], Relation]
    fetch: Fetch


CALLS: Final[Mapping[str, GraphCall]] = {
    "person": GraphCall(movie.person, movie.fetch_person),
    "artist": GraphCall(music.artist, music.fetch_artist),
    "get_movie": GraphCall(movie.movie, movie.fetch_movie),
    "get_movie_person_cast": GraphCall(partial(movie.tied, "cast"), movie.fetch_ties),
    "get_movie_person_crew": GraphCall(partial(movie.tied, "crew"), movie.fetch_ties),
    "get_movie_person_oscar": GraphCall(partial(movie.tied, "oscar"), movie.fetch_ties),
    "get_stock_price": GraphCall(finance.price, finance.fetch_company),
    "get_stock_pe_ratio": GraphCall(partial(finance.metric, "pe_ratio"), finance.fetch_company),
    "get_stock_market_cap": GraphCall(partial(finance.metric, "market_cap"), finance.fetch_company),
    "get_stock_eps": GraphCall(partial(finance.metric, "eps"), finance.fetch_company),
    "get_stock_dividend": GraphCall(finance.dividend, finance.fetch_company),
    "get_song": GraphCall(music.song, music.fetch_song),
    "get_grammy_person": GraphCall(partial(music.grammys, "artist"), music.fetch_grammy_artist),
    "get_grammy_song": GraphCall(partial(music.grammys, "song"), music.fetch_grammy_song),
    "get_grammy_year": GraphCall(music.grammy_year, music.fetch_grammy_year),
    "get_nba_on_date": GraphCall(sports.nba, sports.fetch_nba),
    "get_soccer_on_date": GraphCall(sports.soccer, sports.fetch_soccer),
    "get_soccer_last_game": GraphCall(sports.soccer, sports.fetch_soccer),
    "get_soccer_next_game": GraphCall(sports.soccer, sports.fetch_soccer),
    "get_open": GraphCall(music.entity, music.fetch_entity),
}
PLACES: Final = {**p.KINDS, "person": ("person",), "artist": ("artist",)}
"""Call -> the kind of name of each argument. get_person runs as person or artist. Years are not linked."""
TIMES: Final = {
    **dict.fromkeys(("get_stock_price", "get_nba_on_date", "get_soccer_on_date"), "arguments"),
    "get_soccer_last_game": "last time",
    "get_soccer_next_game": "next time",
}
"""Call with a time -> "arguments" (the time follows the names), or its fixed words for a time."""


async def run(
    program: p.Program,
    graph: GraphBackend,
    now: Moment,
    domain: str = "",
    clock: Callable[[], float] = time.perf_counter,
) -> list[CallResult]:
    """Runs a program and returns the result of every line, in order.

    If the key of a get_person does not tell, `domain` ("movie", "music") decides if it means a person or an
    artist. A wrong program or an unreachable graph raises nothing: the line's result carries the fault."""
    running, out, before = _Running(graph.open(), now, domain), list[CallResult](), 0
    for line, (number, reads) in zip(program.lines, p.places(program), strict=True):
        started, sent = clock(), len(running.rows.requests)
        if number > before:
            running.calls[before], running.subject = running.last, ""
            before = number
        running.links, running.unknown = [], []
        try:
            result = await running.line(line)
        except GraphFault as e:
            result = CallResult(p.print_line(line), fault=e.fault)
        except sqlite3.OperationalError as e:
            if "interrupted" not in str(e):
                raise
            detail = "the query took longer than it may. Ask for less: name an entity or a year."
            result = CallResult(p.print_line(line), fault=Fault("kg_query", "too_slow", detail, True))
        if result.fault is not None:
            running.last = _Output()
        out.append(
            replace(
                result,
                number=number,
                reads=reads,
                subject=running.subject,
                links=tuple(running.links),
                unknown=tuple(running.unknown),
                requests=tuple(running.rows.requests[sent:]),
                ms=(clock() - started) * 1000,
            )
        )
    return out


@dataclass(frozen=True, slots=True)
class _Output:
    """Output of a line, which a later `*` stands for."""

    relation: Relation | None = None
    everything: bool = False  # the line has ALL
    values: tuple[Value, ...] = ()
    keyed: bool = False  # True: values of a key; False: names of rows


@dataclass(slots=True)
class _Running:
    """State of a running program: its tables and moment, and the outputs of earlier lines."""

    rows: ProgramTables
    now: Moment
    domain: str
    last: _Output = _Output()  # of the line before
    calls: dict[int, _Output] = field(default_factory=dict)  # number of an earlier call -> its last output
    subject: str = ""  # first name in the current line's call
    links: list[Link] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    async def line(self, line: p.Line) -> CallResult:
        """Runs one line. Raises GraphFault if it cannot be answered."""
        text = p.print_line(line)
        match line:
            case p.Empty():
                self.last = _Output()
                return CallResult(text)
            case p.Bad(why=why):
                return CallResult(text, fault=Fault("kg_query", "bad_call", why, False))
            case p.Query():
                relation = await self._call(line)
                return self._selected(text, relation, line.everything, line.tail, line.lead)
            case p.Sort():
                return self._selected(text, self._sorted(line), self.last.everything, line.tail, None)
            case p.Mean(of=p.Sort() as of):
                return self._mean(text, self._sorted(of), of.tail, None)
            case p.Mean(of=p.Query() as of):
                return self._mean(text, await self._call(of), of.tail, of.lead)
        raise AssertionError(line)

    def _star(self, star: p.Star) -> _Output:
        """Returns the output that a `*` stands for. Raises GraphFault if no such call comes before."""
        if star.call and star.call not in self.calls:
            raise GraphFault("no_values", f"*{star.call}: there is no call {star.call} before this one")
        return self.calls[star.call] if star.call else self.last

    def _stars(self, where: Sequence[p.Cond]) -> dict[int, tuple[Value, ...]]:
        return {c.value.call: self._star(c.value).values for c in where if isinstance(c.value, p.Star)}

    def _sorted(self, line: p.Sort) -> Relation:
        if self.last.relation is None:
            expected = "expected a call in the line before"
            raise GraphFault("no_rows", f"sort: there are no rows before it to sort; {expected}")
        kept = self.last.relation.where(line.where, self.now, self._stars(line.where))
        return kept.sorted(line.key, line.descending)

    async def _call(self, line: p.Query) -> Relation:
        if line.name != "get_person":
            return await self._build(line.name, line)
        key = (line.tail.key or "").lower()
        artist = key in _ARTIST_KEYS or (self.domain == "music" and key not in _PERSON_KEYS)
        likelier, other = ("artist", "person") if artist else ("person", "artist")
        relation = await self._build(likelier, line)
        if not self.unknown:
            return relation
        # an unknown name may be one of the other kind, person or artist
        unknown = len(self.unknown)
        second = await self._build(other, line)
        return second if len(self.unknown) == unknown else relation

    async def _build(self, name: str, line: p.Query) -> Relation:
        kinds, how = PLACES[name], TIMES.get(name, "")
        names, times = line.args[: len(kinds)], line.args[len(kinds) :]
        written = [self._written(a, kind) for a, kind in zip(names, kinds, strict=True)]
        self.subject = next((w[0] for w in written if w), "")
        time = self._time(how, times)
        years = tuple(
            int(c.value.value) for c in line.where if c.key == "year" and isinstance(c.value, p.Number)
        )
        need = RowRequest(name, tuple(w or () for w in written), years, time, self.now)
        await self.rows.ensure(CALLS[name].fetch, need)
        linked, before = [], len(self.links)
        for arg, kind, given in zip(names, kinds, written, strict=True):
            keys = None if given is None else tuple([await self._key(name, kind) for name in given])
            linked.append(LinkedName(keys, every=isinstance(arg, p.Names)))
        if how == "arguments" and kinds == ("company",) and linked[0].keys:
            # trading days are the days for which this company has prices
            held = self.rows.tables.query(
                "SELECT date FROM price WHERE fold(ticker) = ? ORDER BY date", (linked[0].keys[0],)
            )
            if held:
                time = self._time("arguments", times, [date.fromisoformat(d) for (d,) in held])
        about = [link.name for link in self.links[before:]][:3]
        if time is not None and time.kind == "days":
            about.append(str(time.first) if time.first == time.last else f"{time.first} to {time.last}")
        stars, words = self._stars(line.where), ", ".join(about)
        call = LinkedCall(self.rows.tables, tuple(linked), line.where, stars, time, self.now, words)
        return CALLS[name].relation(call)

    def _written(self, arg: p.Arg, kind: str) -> tuple[str, ...] | None:
        """Returns the names in an argument, as written; None if the argument is empty."""
        match arg:
            case p.Nothing():
                return None
            case p.Text(value=value) | p.Number(value=value):
                return (str(value),)
            case p.Names(items=items):
                return tuple(str(i.value) for i in items)
            case p.Star():
                put = self._star(arg)
                name = put.relation.named.get(kind) if put.relation and not put.keyed else None
                column = put.relation.column(name) if put.relation and name else None
                if put.relation is None or column is None:
                    return tuple(str(v) for v in put.values[:MOST_STARS])
                limit = MOST_STARS if put.everything else 1
                return tuple(str(v) for v in column_values(put.relation, column, self.rows.tables, limit))

    async def _key(self, name: str, kind: str) -> str:
        """Links a name and returns its key. An unknown name is recorded; its key "" matches no row."""
        if kind == "year":
            year = when(name, self.now)
            return str(year.first.year) if year is not None and year.kind == "days" else name
        link = await self.rows.linker.link(name, kind)
        if link is None:
            self.unknown.append(name)
            return ""
        self.links.append(link)
        return link.key

    def _time(self, how: str, args: tuple[p.Arg, ...], sessions: list[date] | None = None) -> When | None:
        if not how:
            return None
        if how != "arguments":
            return when(how, self.now)
        times = []
        for word in [w for a in args for w in (self._written(a, "day") or ())]:
            time = when(word, self.now, sessions, SUNDAY if len(args) == 1 else MONDAY)
            if time is None:
                raise GraphFault("bad_time", f"{_DAYS}, found {word!r}")
            times.append(time)
        if not times:
            raise GraphFault("bad_time", f"{_DAYS}, found none")
        if len(times) == 1:
            return times[0]
        firsts = [date.min if t.kind == "earliest" else t.first for t in times]
        return When("days", min(firsts), max(t.last for t in times))

    def _selected(
        self, text: str, relation: Relation, everything: bool, tail: p.Tail, lead: int | None
    ) -> CallResult:
        first = _first(tail, lead)
        limit = first if first is not None else None if everything or tail.count else 1
        shown = first_rows(relation, self.rows.tables, MOST_ROWS)
        column = relation.column(tail.key or relation.default or relation.label)
        if tail.count:
            number = counted(relation, column if tail.key else None, self.rows.tables)
            number = number if limit is None else min(number, limit)
            self.last = _Output(relation, everything, (number,), True)
            told = sentences(relation, shown, tail.key, count=number)
        else:
            most = MOST_ROWS if limit is None else limit
            values = () if column is None else column_values(relation, column, self.rows.tables, most)
            keyed = tail.key is not None or relation.default is not None
            self.last = _Output(relation, everything, tuple(values), keyed)
            told = sentences(relation, shown, (tail.key or relation.default) if column else None)
        return CallResult(text, shown, self.last.values, told)

    def _mean(self, text: str, relation: Relation, tail: p.Tail, lead: int | None) -> CallResult:
        key = tail.key or relation.default
        column = None if key is None else relation.column(key)
        if tail.count or column is None or column.kind in ("text", "date", "map"):
            found = f"found {key or 'none'}; {relation.known()}"
            raise GraphFault("bad_mean", f"AVG: expected a key with numbers, {found}")
        first = _first(tail, lead)
        most = MOST_AVERAGED if first is None else first
        values = column_values(relation, column, self.rows.tables, most)
        numbers = [typed(v) if column.kind is None else v for v in values]
        for wrong in numbers:
            if not isinstance(wrong, int | float):
                raise GraphFault("bad_mean", f"AVG: expected numbers, found {wrong!r}")
        mean = (math.fsum(numbers) / len(numbers),) if numbers else ()  # type: ignore[arg-type]
        shown = first_rows(relation, self.rows.tables, MOST_ROWS)
        self.last = _Output(relation, True, mean, True)
        said = sentences(relation, shown, key, mean=mean[0] if mean else None)
        return CallResult(text, shown, mean, said)


_DAYS: Final = "expected a day, a month, a year or words for them"


def _first(tail: p.Tail, lead: int | None) -> int | None:
    return min((n for n in (tail.first, lead) if n is not None), default=None)
