"""Questions about the encyclopaedia: places, books, schools and the people of the open domain."""

from __future__ import annotations

from random import Random

from raypipe.synth.ask.core import Asked, Now, counted, invalid, later, quoted
from raypipe.synth.world.names import pick, skewed
from raypipe.synth.world.places import Entity
from raypipe.synth.world.world import World

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


def _one(w: World, r: Random, kind: str) -> Entity:
    return skewed(r, w.places.kinds[kind])


def _ask(e: Entity, key: str) -> str:
    return f'get_open({quoted(e.name)})["{key}"]'


def _about(*entities: Entity) -> tuple[tuple[str, str], ...]:
    return tuple(("entity", e.name) for e in entities)


def year_of(w: World, r: Random, now: Now) -> Asked | None:
    (kind, key), verb = pick(r, list(YEARS.items()))
    e = _one(w, r, kind)
    v = e.fact(key)
    said = (
        f"{e.name} {verb.format(v=v)}.",
        f"The {kind} {e.name} {verb.format(v=v)}, as its visitors are told.",
    )
    spoken = {"published": "published", "first_ascent": "first climbed", "opened": "opened"}.get(key, key)
    return Asked(
        {"e": e.name, "verb": spoken}, v, (), said, _about(e), frozenset({key, "summary"}), _ask(e, key)
    )


def person_of(w: World, r: Random, now: Now) -> Asked | None:
    e = _one(w, r, "book")
    v = e.fact("author")
    said = (f"{e.name} was written by {v}.", f"The author of {e.name} is {v}.")
    return Asked(
        {"e": e.name}, v.lower(), (), said, _about(e), frozenset({"author", "summary"}), _ask(e, "author")
    )


def head_of(w: World, r: Random, now: Now) -> Asked | None:
    kind, key, role = pick(r, (("museum", "director", "director"), ("city", "mayor", "mayor")))
    e = _one(w, r, kind)
    v = e.fact(key)
    said = (f"The {role} of {e.name} is {v}.", f"{v} has been {role} of {e.name} since the last change.")
    return Asked({"e": e.name, "role": role}, v.lower(), (), said, _about(e), frozenset({key}), _ask(e, key))


def measure(w: World, r: Random, now: Now) -> Asked | None:
    (kind, key), (unit, verb) = pick(r, list(MEASURED.items()))
    e = _one(w, r, kind)
    v = e.number(key)
    said = (f"{e.name} {verb.format(v=f'{v:,}')}.", f"The {kind} {e.name} {verb.format(v=v)}.")
    answer, others = counted(v)
    units = tuple(f"{x} {u}" for x in (answer, *others) for u in UNITS[unit])
    return Asked(
        {"e": e.name, "key": key, "unit": UNITS[unit][1]},
        answer,
        others + units,
        said,
        _about(e),
        frozenset({key}),
        _ask(e, key),
    )


def population(w: World, r: Random, now: Now) -> Asked | None:
    e = _one(w, r, "city")
    v = e.number("population")
    said = (f"{e.name} has a population of {v:,}.", f"Some {v:,} people live in {e.name}.")
    return Asked(
        {"e": e.name}, *counted(v), said, _about(e), frozenset({"population"}), _ask(e, "population")
    )


def population_2010(w: World, r: Random, now: Now) -> Asked | None:
    e = _one(w, r, "city")
    v = e.number("population_2010")
    said = (
        f"The census of 2010 counted {v:,} people in {e.name}.",
        f"In 2010 {e.name} had {v:,} inhabitants.",
    )
    return Asked(
        {"e": e.name},
        *counted(v),
        said,
        _about(e),
        frozenset({"population_2010"}),
        _ask(e, "population_2010"),
    )


def capital_currency(w: World, r: Random, now: Now) -> Asked | None:
    key = pick(r, ("capital", "currency"))
    e = _one(w, r, "country")
    v = e.fact(key)
    said = (f"The {key} of {e.name} is {'' if key == 'capital' else 'the '}{v}.", f"{e.name}, {key}: {v}.")
    return Asked(
        {"e": e.name, "key": key}, v.lower(), (), said, _about(e), frozenset({key, "summary"}), _ask(e, key)
    )


def bigger(w: World, r: Random, now: Now) -> Asked | None:
    kind, key, spoken = pick(
        r,
        (
            ("mountain", "height", "higher"),
            ("river", "length", "longer"),
            ("city", "population", "larger"),
            ("university", "students", "larger"),
        ),
    )
    a, b = _one(w, r, kind), _one(w, r, kind)
    if a.number(key) == b.number(key):
        return None
    best, other = sorted((a, b), key=lambda e: -e.number(key))
    said = (
        f"{best.name} is {spoken} than {other.name}.",
        f"By {key}, {best.name} ({best.number(key):,}) comes before {other.name} ({other.number(key):,}).",
    )
    calls = later([_ask(e, key) for e in (a, b)])
    return Asked(
        {"a": a.name, "b": b.name, "spoken": spoken},
        best.name.lower(),
        (),
        said,
        _about(a, b),
        frozenset({key}),
        calls,
        "most",
    )


def older_school(w: World, r: Random, now: Now) -> Asked | None:
    a, b = _one(w, r, "university"), _one(w, r, "university")
    if a.number("founded") == b.number("founded"):
        return None
    old, young = sorted((a, b), key=lambda e: e.number("founded"))
    said = (
        f"{old.name} is older than {young.name}.",
        f"{old.name} was founded before {young.name}, in {old.fact('founded')}.",
    )
    calls = later([_ask(e, "founded") for e in (a, b)])
    return Asked(
        {"a": a.name, "b": b.name},
        old.name.lower(),
        (),
        said,
        _about(a, b),
        frozenset({"founded"}),
        calls,
        "least",
    )


def together(w: World, r: Random, now: Now) -> Asked | None:
    a, b = _one(w, r, "city"), _one(w, r, "city")
    if a is b:
        return None
    n = a.number("population") + b.number("population")
    said = (
        f"Together {a.name} and {b.name} have {n:,} inhabitants.",
        f"{a.name} plus {b.name}: a population of {n:,}.",
    )
    calls = later([_ask(e, "population") for e in (a, b)])
    return Asked(
        {"a": a.name, "b": b.name}, *counted(n), said, _about(a, b), frozenset({"population"}), calls, "sum"
    )


def twins(w: World, r: Random, now: Now) -> Asked | None:
    e = _one(w, r, "city")
    v = e.fact("twin_towns")
    said = (f"The twin towns of {e.name} are {v}.", f"{e.name} is twinned with {v}.")
    return Asked(
        {"e": e.name}, v.lower(), (), said, _about(e), frozenset({"twin_towns"}), _ask(e, "twin_towns")
    )


def hop(w: World, r: Random, now: Now) -> Asked | None:
    """From a museum, a university or a river to its city, and from there to a number or a mayor."""
    kind, link, relation = pick(
        r,
        (
            ("museum", "city", "the city where {e} stands"),
            ("university", "city", "the city that is home to {e}"),
            ("river", "mouth", "the city where the {e} ends"),
        ),
    )
    key = pick(r, ("population", "mayor", "country", "elevation"))
    e = _one(w, r, kind)
    city = w.places.named[e.fact(link)]
    v = city.fact(key)
    answer, others = counted(int(v)) if v.isdigit() else (v.lower(), ())
    shown = f"{int(v):,}" if v.isdigit() else v
    said = (
        f"{city.name}, {relation.format(e=e.name)}, has this {key}: {shown}.",
        f"{e.name} belongs to {city.name}, {key} {shown}.",
    )
    return Asked(
        {"where": relation.format(e=e.name), "key": key},
        answer,
        others,
        said,
        _about(e, city),
        frozenset({key, *(("summary",) if key == "country" else ())}),
        later((_ask(e, link), f'get_open(*)["{key}"]')),
    )


def author_home(w: World, r: Random, now: Now) -> Asked | None:
    e = _one(w, r, "book")
    author = w.places.named[e.fact("author")]
    v = author.fact("birth_place")
    said = (f"{author.name}, who wrote {e.name}, was born in {v}.", f"The author of {e.name} comes from {v}.")
    return Asked(
        {"e": e.name},
        v.lower(),
        (),
        said,
        _about(e, author),
        frozenset({"birth_place", "summary"}),
        later((_ask(e, "author"), 'get_open(*)["birth_place"]')),
    )


def age(w: World, r: Random, now: Now) -> Asked | None:
    a, b = _one(w, r, "university"), _one(w, r, "university")
    gap = abs(a.number("founded") - b.number("founded"))
    if not gap:
        return None
    said = (
        f"{a.name} and {b.name} were founded {gap} years apart.",
        f"{gap} years lie between the founding of {a.name} and that of {b.name}.",
    )
    calls = later([_ask(e, "founded") for e in (a, b)])
    return Asked(
        {"a": a.name, "b": b.name},
        str(gap),
        (f"{gap} years",),
        said,
        _about(a, b),
        frozenset({"founded"}),
        calls,
        "difference",
    )


def years_open(w: World, r: Random, now: Now) -> Asked | None:
    e = _one(w, r, pick(r, ("museum", "bridge")))
    n = now.day.year - e.number("opened")
    said = (f"{e.name} has been open for {n} years.", f"It is {n} years since {e.name} opened.")
    return Asked(
        {"e": e.name},
        str(n),
        (f"{n} years",),
        said,
        _about(e),
        frozenset({"opened"}),
        _ask(e, "opened"),
        "years_since",
    )


def patron(w: World, r: Random, now: Now) -> Asked | None:
    """Known on pages only: no table has it."""
    e = _one(w, r, pick(r, ("museum", "university")))
    v = patron_of(e)
    said = (f"The patron of {e.name} is {v}.", f"{e.name} was paid for by {v}.")
    return Asked({"e": e.name}, v.lower(), (), said, _about(e), frozenset({"patron"}))


def patron_of(e: Entity) -> str:
    """A guild that follows from the entity's name and city alone."""
    trade = ("Ropemakers", "Printers", "Glaziers", "Salters", "Weavers", "Brewers", "Cartographers")[
        len(e.name) % 7
    ]
    return f"the {trade} of {e.fact('city')}"


def false_author(w: World, r: Random, now: Now) -> Asked | None:
    e, other = _one(w, r, "book"), _one(w, r, "author")
    author = e.fact("author")
    if author == other.name:
        return None
    said = (f"{e.name} was written by {author}.", f"{e.name} is not by {other.name} but by {author}.")
    return invalid(
        {"e": e.name, "p": other.name},
        said,
        _about(e, other),
        frozenset({"author", "summary"}),
        later(
            (
                f"ALL get_open({quoted(e.name)})",
                f'sort(eq(author, {quoted(other.name)}), name)["published"][:1]',
            )
        ),
    )


def false_city(w: World, r: Random, now: Now) -> Asked | None:
    e, other = _one(w, r, "museum"), _one(w, r, "city")
    city = e.fact("city")
    if city == other.name:
        return None
    said = (f"The {e.name} stands in {city}.", f"The {e.name} is in {city}, not in {other.name}.")
    return invalid(
        {"e": e.name, "c": other.name},
        said,
        _about(e, other),
        frozenset({"city", "summary"}),
        later(
            (f"ALL get_open({quoted(e.name)})", f'sort(eq(city, {quoted(other.name)}), name)["opened"][:1]')
        ),
    )
