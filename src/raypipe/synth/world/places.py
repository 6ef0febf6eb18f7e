"""The invented encyclopaedia: places, books, schools and people that the open domain asks about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from raypipe.synth.world.names import SUBJECTS, NameSource, pick

CITIES, COUNTRIES, RIVERS, MOUNTAINS, COLLEGES, MUSEUMS, BRIDGES, AUTHORS, BOOKS = (
    130,
    12,
    45,
    45,
    35,
    35,
    30,
    40,
    80,
)
TOWNS = 60
"""Of the cities, those that other parts of the world name as headquarters, studios and film sets."""


@dataclass(frozen=True, slots=True)
class Entity:
    name: str
    kind: str  # city, river, mountain, ...
    summary: str
    facts: tuple[tuple[str, str], ...]  # key -> value, as `summary_structured` of the mock API

    def fact(self, key: str) -> str:
        return next(v for k, v in self.facts if k == key)

    def number(self, key: str) -> int:
        return int(self.fact(key))


@dataclass(frozen=True, slots=True)
class Places:
    entities: tuple[Entity, ...]
    named: Mapping[str, Entity]
    kinds: Mapping[str, tuple[Entity, ...]]  # most asked about first


def _entity(name: str, kind: str, summary: str, **facts: object) -> Entity:
    return Entity(name, kind, summary, (("type", kind), *((k, str(v)) for k, v in facts.items())))


def city_names(names: NameSource) -> list[str]:
    """Drawn first: teams, firms and studios stand in cities."""
    return [
        names.coined("ville", "port", "burg", "mouth", "ford", "by", "haven", "stad", "")
        for _ in range(CITIES)
    ]


def _cities(rng: Random, names: NameSource, cities: list[str], lands: list[str]) -> list[Entity]:
    rows = []
    for city in cities:
        land, mayor = pick(rng, lands), names.person()
        now = int(rng.lognormvariate(11.5, 1.2)) + 2_000
        twins = rng.sample([c for c in cities if c != city], 2 + int(rng.random() * 3))
        rows.append(
            _entity(
                city,
                "city",
                f"{city} is a city in {land}.",
                country=land,
                population=now,
                mayor=mayor,
                population_2010=int(now * (0.7 + 0.4 * rng.random())),
                founded=1100 + int(rng.random() * 800),
                elevation=2 + int(rng.random() * 900),
                twin_towns=", ".join(twins),
            )
        )
    return rows


def _land(rng: Random, names: NameSource, cities: list[str], lands: list[str]) -> list[Entity]:
    rows = []
    for land in lands:
        capital = pick(rng, cities)
        rows.append(
            _entity(
                land,
                "country",
                f"{land} is a country whose capital is {capital}.",
                capital=capital,
                currency=names.coined().lower(),
                area=4_000 + int(rng.random() * 700_000),
            )
        )
    for _ in range(RIVERS):
        name, land, mouth = f"{names.coined()} River", pick(rng, lands), pick(rng, cities)
        rows.append(
            _entity(
                name,
                "river",
                f"The {name} is a river in {land}.",
                country=land,
                mouth=mouth,
                length=40 + int(rng.random() * 2_400),
            )
        )
    for _ in range(MOUNTAINS):
        name, land = f"Mount {names.coined()}", pick(rng, lands)
        rows.append(
            _entity(
                name,
                "mountain",
                f"{name} is a mountain in {land}.",
                country=land,
                height=900 + int(rng.random() * 6_500),
                first_ascent=1790 + int(rng.random() * 200),
            )
        )
    return rows


def _built(rng: Random, names: NameSource, cities: list[str], rivers: list[str]) -> list[Entity]:
    rows = []
    for i in range(COLLEGES):
        city = cities[-1 - i]
        name = f"University of {city}" if rng.random() < 0.5 else f"{names.coined()} College"
        rows.append(
            _entity(
                name,
                "university",
                f"{name} is a university in {city}.",
                city=city,
                founded=1400 + int(rng.random() * 590),
                students=900 + int(rng.random() * 40_000),
            )
        )
    for _ in range(MUSEUMS):
        city, name = pick(rng, cities), f"{names.coined()} Museum of {pick(rng, SUBJECTS)}"
        rows.append(
            _entity(
                name,
                "museum",
                f"The {name} is a museum in {city}.",
                city=city,
                opened=1820 + int(rng.random() * 190),
                director=names.person(),
            )
        )
    for _ in range(BRIDGES):
        name, river = f"{names.coined()} Bridge", pick(rng, rivers)
        rows.append(
            _entity(
                name,
                "bridge",
                f"The {name} is a bridge over the {river}.",
                river=river,
                length=60 + int(rng.random() * 3_000),
                opened=1850 + int(rng.random() * 160),
            )
        )
    return rows


def _books(rng: Random, names: NameSource, cities: list[str]) -> list[Entity]:
    authors = []
    for _ in range(AUTHORS):
        name, city, born = names.person(), pick(rng, cities), 1860 + int(rng.random() * 115)
        authors.append(
            _entity(name, "author", f"{name} is a novelist from {city}.", birth_place=city, birth_year=born)
        )
    rows = list(authors)
    for _ in range(BOOKS):
        name, author = names.book(), pick(rng, authors)
        year = author.number("birth_year") + 22 + int(rng.random() * 40)
        rows.append(
            _entity(
                name,
                "book",
                f"{name} is a novel by {author.name}.",
                author=author.name,
                published=year,
                pages=120 + int(rng.random() * 700),
                hero=names.character(),
            )
        )
    return rows


def build_places(rng: Random, names: NameSource, cities: list[str], others: list[Entity]) -> Places:
    """The encyclopaedia: its own entries and those of `others` (teams, executives)."""
    lands = [names.coined("ia", "land", "mark", "ora") for _ in range(COUNTRIES)]
    rows = _cities(rng, names, cities, lands) + _land(rng, names, cities, lands)
    rows += _built(rng, names, cities, [e.name for e in rows if e.kind == "river"]) + _books(
        rng, names, cities
    )
    rows += others
    kinds: dict[str, list[Entity]] = defaultdict(list)
    for row in rows:
        kinds[row.kind].append(row)
    return Places(tuple(rows), {e.name: e for e in rows}, {k: tuple(v) for k, v in kinds.items()})
