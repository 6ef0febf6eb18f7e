"""Questions about the encyclopaedia: places, books, schools and the people of the open domain."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raypipe.contrib.world.ask.spellings import Spelling, apart, counted, named, units
from raypipe.contrib.world.ask.templates import (
    Attempt,
    Scene,
    Shape,
    compare,
    false,
    scene,
    several,
    then,
    two,
    value,
)
from raypipe.contrib.world.world.places import Entity

MEASURED = {
    ("mountain", "height"): ("m", "is {v} metres high"),
    ("river", "length"): ("km", "is {v} kilometres long"),
    ("bridge", "length"): ("m", "is {v} metres long"),
    ("city", "elevation"): ("m", "lies {v} metres above the sea"),
}
UNITS = {"m": ("m", "metres", "meters"), "km": ("km", "kilometres", "kilometers")}
YEARS = {
    ("university", "founded"): "was founded in {v}",
    ("museum", "opened"): "opened in {v}",
    ("bridge", "opened"): "opened in {v}",
    ("book", "published"): "was published in {v}",
    ("mountain", "first_ascent"): "was first climbed in {v}",
    ("city", "founded"): "was founded in {v}",
}
BIGGER = (
    ("mountain", "height", "higher"),
    ("river", "length", "longer"),
    ("city", "population", "larger"),
    ("university", "students", "larger"),
)
LINKS = (
    ("museum", "city", "the city where {e} stands"),
    ("university", "city", "the city that is home to {e}"),
    ("river", "mouth", "the city where the {e} ends"),
)


def _of(d: Attempt, kind: str, **words: str) -> Scene:
    e = d.skewed(d.world.places.kinds[kind])
    return scene(e, ("entity", e.name), e=e.name, kind=kind, **words)


def _one(*kinds: str) -> Callable[[Attempt], Scene]:
    return lambda d: _of(d, d.pick(kinds) if len(kinds) > 1 else kinds[0])


def _pair(kind: str) -> Callable[[Attempt], Scene]:
    return two(lambda w: w.places.kinds[kind], "entity")


def _year(d: Attempt) -> Scene:
    (kind, key), fact = d.pick(list(YEARS.items()))
    e = _of(d, kind, key=key, verb="first climbed" if key == "first_ascent" else key)
    return e.at(e.it.fact(key), fact=fact.format(v=e.it.fact(key)))


def _head(d: Attempt) -> Scene:
    kind, role = d.pick((("museum", "director"), ("city", "mayor")))
    e = _of(d, kind, role=role)
    return e.at(e.it.fact(role))


def _measured(d: Attempt) -> Scene:
    (kind, key), (unit, fact) = d.pick(list(MEASURED.items()))
    e = _of(d, kind, key=key, unit=UNITS[unit][1])
    n = e.it.number(key)
    return e.at((n, UNITS[unit]), fact=fact.format(v=f"{n:,}"), bare=fact.format(v=n))


def _country(d: Attempt) -> Scene:
    key = d.pick(("capital", "currency"))
    e = _of(d, "country", key=key, the="" if key == "capital" else "the ")
    return e.at(e.it.fact(key))


def _opened(d: Attempt) -> Scene:
    e = _of(d, d.pick(("museum", "bridge")))
    return e.at(d.now.day.year - e.it.number("opened"))


def _sizes(d: Attempt) -> Scene:
    kind, key, spoken = d.pick(BIGGER)
    found = _pair(kind)(d)
    return found.at([e.number(key) for e in found.it], key=key, spoken=spoken)


_two_cities = then(_pair("city"), lambda d, pair: None if pair.it[0] is pair.it[1] else pair)


def _linked(d: Attempt) -> Scene:
    """Draws a museum, university or river, and a property of its city to ask for."""
    (kind, link, where), key = d.pick(LINKS), d.pick(("population", "mayor", "country", "elevation"))
    e = _of(d, kind, key=key, link=link, also="summary" if key == "country" else key)
    return e.at(e.it, where=where.format(e=e.it.name))


def _its_city(d: Attempt, found: Scene) -> Scene:
    city = d.world.places.named[found.it.fact(found.words["link"])]
    return found.at(city.fact(found.words["key"]), ("entity", city.name), city=city.name)


def _its_author(d: Attempt, book: Scene) -> Scene:
    author = d.world.places.named[book.it.fact("author")]
    return book.at(author, ("entity", author.name), author=author.name)


def _not_its(kind: str, slot: str) -> Callable[[Attempt, Scene], Scene | None]:
    """Returns a link to a wrong author or city. Its name becomes the word {slot}."""

    def link(d: Attempt, e: Scene) -> Scene | None:
        own, other = e.it.fact(kind), d.skewed(d.world.places.kinds[kind]).name
        return None if own == other else e.at(None, ("entity", other), **{slot: other, kind: own})

    return link


def _with_unit(measured: tuple[int, tuple[str, ...]]) -> Spelling:
    n, names = measured
    written = counted(n)
    each = (written.answer, *written.others)
    return Spelling(written.answer, written.others + tuple(f"{x} {u}" for x in each for u in names), str(n))


def _number(key: str) -> Callable[[Entity], Spelling]:
    return lambda e: counted(e.number(key))


def _known(v: str) -> Spelling:
    return counted(int(v)) if v.isdigit() else named(v)


OPEN: Mapping[str, Shape] = {
    "year_of": value(_year, named),
    "author": value(_one("book"), lambda e: named(e.fact("author"))),
    "head_of": value(_head, named),
    "measure": value(_measured, _with_unit),
    "population": value(_one("city"), _number("population")),
    "country_fact": value(_country, named),
    "patron": value(_one("museum", "university"), lambda e: named(e.patron)),
    "population_2010": value(_one("city"), _number("population_2010")),
    "bigger": compare(_sizes, lambda n: n, lambda n: f"{n:,}"),
    "older_school": compare(_pair("university"), lambda e: e.number("founded")),
    "together": value(_two_cities, lambda pair: counted(sum(e.number("population") for e in pair))),
    "twins": several(_one("city"), lambda e: [e.fact("twin_towns")]),
    "hop": value(then(_linked, _its_city), _known),
    "author_home": value(then(_one("book"), _its_author), lambda author: named(author.fact("birth_place"))),
    "age_gap": value(_pair("university"), lambda pair: apart(*(e.number("founded") for e in pair))),
    "years_open": value(_opened, lambda n: units(n, "years")),
    "false_author": false(then(_one("book"), _not_its("author", "p"))),
    "false_city": false(then(_one("museum"), _not_its("city", "c"))),
}
