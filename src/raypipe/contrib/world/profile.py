"""Facts about a person, film, company, artist, song, team or place: key, table row, sentence.

Every fact follows from the world's tables, so every page is true. A question's `tells` lists the keys of the
facts that give the answer away; a page without these facts does not reveal it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from typing import Any

from raypipe.contrib.world.ask.spellings import large, long_date, plain, price
from raypipe.contrib.world.ask.templates import Ref
from raypipe.contrib.world.world.film import LANGUAGES, SPOKEN, Movie, Person
from raypipe.contrib.world.world.market import SNAPSHOT, Company
from raypipe.contrib.world.world.music import COUNTRIES, Artist, Song
from raypipe.contrib.world.world.names import wording
from raypipe.contrib.world.world.places import Entity
from raypipe.contrib.world.world.sport import Team
from raypipe.contrib.world.world.world import World


@dataclass(frozen=True, slots=True)
class Fact:
    key: str
    label: str  # header of a table row
    value: str  # cell of a table row
    sentence: str


def _shown(value: Any) -> str:
    match value:
        case date():
            return long_date(value)
        case tuple():
            return ", ".join(map(str, value))
        case int() if value > 2100:  # cannot be a year
            return f"{value:,}"
    return str(value)


def _facts(section: str, row: Any, /, **words: str) -> Iterator[Fact]:
    """Yields the facts of a section of `words/profile.yaml`, filled with the row's fields and `words`."""
    if row is not None:
        words = {f.name: _shown(getattr(row, f.name)) for f in fields(row)} | words
    for parts in wording("profile")[section]:
        yield Fact(*(part.format_map(words) for part in parts))


def _movie(w: World, m: Movie) -> Iterator[Fact]:
    cast = w.film.roles_in[m.title]
    composer = next(c.person.name for c in w.film.credits_in[m.title] if c.job.endswith("Composer"))
    yield from _facts(
        "movie",
        m,
        genre=m.genres[0].lower(),
        director=w.film.director(m).name,
        composer=composer,
        stars=", ".join(r.person.name for r in cast[:3]),
        language=LANGUAGES[m.original_language],
    )
    for r in cast:
        yield from _facts("movie.role", None, person=r.person.name, character=r.character)


def _person(w: World, p: Person) -> Iterator[Fact]:
    yield from _facts("person", p)
    for r in w.film.roles_of.get(p.name, ())[-6:]:
        yield from _facts(
            "person.role", r.movie, year=str(r.movie.year), person=p.name, character=r.character
        )
    for m in w.film.directed.get(p.name, ())[-6:]:
        yield from _facts("person.film", m, year=str(m.year), person=p.name)
    for o in w.film.won.get(p.name, ()):
        yield from _facts("person.oscar", o, spoken=SPOKEN[o.category])


def _company(w: World, c: Company) -> Iterator[Fact]:
    ratio = "none" if c.pe_ratio is None else plain(c.pe_ratio)
    yield from _facts("company", c, cap=large(c.market_cap), earned=price(c.eps), ratio=ratio)
    for d in w.market.dividends[c.ticker][-4:]:
        yield from _facts("company.dividend", d, day=str(d.date), short=c.short, value=plain(d.value))
    for day in [d for d in w.market.days if d <= SNAPSHOT][-6:]:
        bar = w.market.bars[c.ticker][day]
        ends = {"open": f"{bar.open:.2f}", "close": f"{bar.close:.2f}"}
        yield from _facts("company.price", bar, opened=price(bar.open), closed=price(bar.close), **ends)


def _artist(w: World, a: Artist) -> Iterator[Fact]:
    yield from _facts("artist.group" if a.group else "artist.solo", a)
    yield from _facts("artist", a, land=COUNTRIES[a.birth_place])
    yield from _facts("artist.members" if a.members else "artist.instrument", a)
    for s in w.music.works[a.name][-8:]:
        yield from _facts("artist.song", s, year=str(s.release_date.year))
    for g in w.music.won.get(a.name, ()):
        yield from _facts("artist.grammy", g, spoken=g.category.lower())


def _song(w: World, s: Song) -> Iterator[Fact]:
    yield from _facts("song", s, land=COUNTRIES[s.release_country])
    if s.name in w.music.ranked:
        yield from _facts("song.chart", w.music.ranked[s.name][-1])


def _team(w: World, t: Team) -> Iterator[Fact]:
    yield from _facts("team", t)
    for s in [s for s in w.sport.sides[t.name] if s.date <= SNAPSHOT][-8:]:
        yield from _facts("team.game", s, day=str(s.date))


def _entity(w: World, e: Entity) -> Iterator[Fact]:
    yield from _facts("entity", e)
    for key, value in e.facts[1:]:  # the first fact is the type
        label = key.replace("_", " ")
        shown = _shown(int(value)) if value.isdigit() else value
        words = {"key": key, "label": label, "capital": label.capitalize(), "value": shown, "name": e.name}
        yield from _facts("entity.fact", None, **words)
    if e.kind in ("museum", "university"):
        yield from _facts("entity.patron", e, patron=e.patron)


class Profiles:
    """Facts about each thing of a world, computed at first use and cached for later questions."""

    def __init__(self, world: World) -> None:
        w = self._world = world
        self._made: dict[Ref, tuple[Fact, ...]] = {}
        crossing = {"basketball team", "soccer team", "company"}
        self._kinds: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
            "movie": (_movie, {m.title: m for m in w.film.movies}),
            "person": (_person, {p.name: p for p in w.film.people}),
            "company": (_company, {c.name: c for c in w.market.companies}),
            "artist": (_artist, {a.name: a for a in w.music.artists}),
            "song": (_song, {s.name: s for s in w.music.songs}),
            "team": (_team, w.sport.teams),
            "entity": (_entity, {e.name: e for e in w.places.entities if e.kind not in crossing}),
        }
        self.refs: Mapping[str, tuple[Ref, ...]] = {
            kind: tuple((kind, name) for name in rows) for kind, (_, rows) in self._kinds.items()
        }
        alike: dict[str, list[Ref]] = defaultdict(list)
        for refs in self.refs.values():
            for ref in refs:
                for part in set(ref[1].split()):
                    alike[part].append(ref)
        self._alike: Mapping[str, Sequence[Ref]] = alike

    def similar(self, ref: Ref) -> list[Ref]:
        """Returns at most thirty things whose names share a word of 4 or more letters, in a fixed order."""
        words = [p for p in ref[1].split() if len(p) > 3]
        found = dict.fromkeys(r for p in words for r in self._alike[p][:15] if r != ref)
        return list(found)[:30]

    def of(self, ref: Ref) -> tuple[Fact, ...]:
        if ref not in self._made:
            facts, rows = self._kinds[ref[0]]
            self._made[ref] = tuple(facts(self._world, rows[ref[1]]))
        return self._made[ref]
