"""The invented encyclopaedia: places, books, schools and people that the open domain asks about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from raypipe.contrib.world.world.names import NameSource, grouped, number, pick, wording

CITIES, COUNTRIES, RIVERS, MOUNTAINS, COLLEGES = 130, 12, 45, 45, 35
MUSEUMS, BRIDGES, AUTHORS, BOOKS = 35, 30, 40, 80
TOWNS = 60
"""Number of cities that other parts of the world use as headquarters, studios and film sets."""

GUILDS = ("Ropemakers", "Printers", "Glaziers", "Salters", "Weavers", "Brewers", "Cartographers")


@dataclass(frozen=True, slots=True)
class Entity:
    name: str
    kind: str  # city, river, mountain, ...
    summary: str
    facts: tuple[tuple[str, str], ...]  # key -> value, as `summary_structured` of CRAG's mock API

    def fact(self, key: str) -> str:
        return next(v for k, v in self.facts if k == key)

    def number(self, key: str) -> int:
        return int(self.fact(key))

    @property
    def patron(self) -> str:
        """Guild of the entity, computed from its name and city. On pages only, not in the graph."""
        return f"the {GUILDS[len(self.name) % len(GUILDS)]} of {self.fact('city')}"


@dataclass(frozen=True, slots=True)
class Places:
    entities: tuple[Entity, ...]
    named: Mapping[str, Entity]
    kinds: Mapping[str, tuple[Entity, ...]]  # early ones get more questions


def entity(name: str, kind: str, facts: Mapping[str, object], **words: str) -> Entity:
    summary = wording("places")[kind].format(name=name, **facts, **words)
    return Entity(name, kind, summary, (("type", kind), *((k, str(v)) for k, v in facts.items())))


def city_names(names: NameSource) -> list[str]:
    """Returns the names of all cities. They are drawn first, because teams, firms and studios need cities."""
    endings = ("ville", "port", "burg", "mouth", "ford", "by", "haven", "stad", "")
    return [names.coined(*endings) for _ in range(CITIES)]


def _cities(rng: Random, names: NameSource, cities: list[str], lands: list[str]) -> Iterator[Entity]:
    for city in cities:
        land, mayor = pick(rng, lands), names.person()
        now = int(rng.lognormvariate(11.5, 1.2)) + 2_000
        twins = rng.sample([c for c in cities if c != city], number(rng, 2, 3))
        facts = {
            "country": land,
            "population": now,
            "mayor": mayor,
            "population_2010": int(now * (0.7 + 0.4 * rng.random())),
            "founded": number(rng, 1100, 800),
            "elevation": number(rng, 2, 900),
            "twin_towns": ", ".join(twins),
        }
        yield entity(city, "city", facts)


def _land(rng: Random, names: NameSource, cities: list[str], lands: list[str]) -> Iterator[Entity]:
    for land in lands:
        capital, currency, area = pick(rng, cities), names.coined().lower(), number(rng, 4_000, 700_000)
        yield entity(land, "country", {"capital": capital, "currency": currency, "area": area})
    for _ in range(RIVERS):
        name, land, mouth = f"{names.coined()} River", pick(rng, lands), pick(rng, cities)
        yield entity(name, "river", {"country": land, "mouth": mouth, "length": number(rng, 40, 2_400)})
    for _ in range(MOUNTAINS):
        name, land, height = f"Mount {names.coined()}", pick(rng, lands), number(rng, 900, 6_500)
        facts = {"country": land, "height": height, "first_ascent": number(rng, 1790, 200)}
        yield entity(name, "mountain", facts)


def _built(rng: Random, names: NameSource, cities: list[str], rivers: list[str]) -> Iterator[Entity]:
    for i in range(COLLEGES):
        city = cities[-1 - i]
        name = f"University of {city}" if rng.random() < 0.5 else f"{names.coined()} College"
        founded, students = number(rng, 1400, 590), number(rng, 900, 40_000)
        yield entity(name, "university", {"city": city, "founded": founded, "students": students})
    for _ in range(MUSEUMS):
        city, name = pick(rng, cities), f"{names.coined()} Museum of {pick(rng, names.subjects)}"
        facts = {"city": city, "opened": number(rng, 1820, 190), "director": names.person()}
        yield entity(name, "museum", facts)
    for _ in range(BRIDGES):
        name, river, length = f"{names.coined()} Bridge", pick(rng, rivers), number(rng, 60, 3_000)
        yield entity(name, "bridge", {"river": river, "length": length, "opened": number(rng, 1850, 160)})


def _books(rng: Random, names: NameSource, cities: list[str]) -> Iterator[Entity]:
    authors = []
    for _ in range(AUTHORS):
        name, city, born = names.person(), pick(rng, cities), number(rng, 1860, 115)
        authors.append(entity(name, "author", {"birth_place": city, "birth_year": born}))
    yield from authors
    for _ in range(BOOKS):
        name, author = names.book(), pick(rng, authors)
        year, pages = author.number("birth_year") + number(rng, 22, 40), number(rng, 120, 700)
        facts = {"author": author.name, "published": year, "pages": pages, "hero": names.character()}
        yield entity(name, "book", facts)


def build_places(rng: Random, names: NameSource, cities: list[str], others: list[Entity]) -> Places:
    """Builds the encyclopaedia: its own entries and `others` (teams, executives, companies)."""
    lands = [names.coined("ia", "land", "mark", "ora") for _ in range(COUNTRIES)]
    rows = [*_cities(rng, names, cities, lands), *_land(rng, names, cities, lands)]
    rows += _built(rng, names, cities, [e.name for e in rows if e.kind == "river"])
    rows += [*_books(rng, names, cities), *others]
    return Places(tuple(rows), {e.name: e for e in rows}, grouped(rows, lambda e: e.kind))
