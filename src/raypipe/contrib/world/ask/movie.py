"""Questions about films, the people in them, and Oscars."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from raypipe.contrib.world.ask.spellings import Spelling, age, dated, decimal, dollars, long_date, named
from raypipe.contrib.world.ask.templates import (
    Attempt,
    Scene,
    Shape,
    compare,
    count,
    false,
    one,
    scene,
    several,
    then,
    two,
    value,
)
from raypipe.contrib.world.world.film import LANGUAGES, LEADING, PICTURE, SPOKEN, SUPPORTING, Movie

LATEST_CEREMONY = 2023

_movie = one(lambda w: w.film.movies, "movie", "m")
_movies = two(lambda w: w.film.movies, "movie")
_person = one(lambda w: w.film.people, "person", "p")
_people = two(lambda w: w.film.people, "person")
_director_of = then(_movie, lambda d, m: m.at(d.world.film.director(m.it)))
_roles = then(_person, lambda d, p: p.at(d.world.film.roles_of.get(p.it.name, ())))


def _money(d: Attempt) -> Scene:
    m, kind = _movie(d), d.pick(("budget", "revenue"))
    return m.at(getattr(m.it, kind), kind=kind)


def _role(d: Attempt) -> Scene:
    m = _movie(d)
    role = d.pick(d.world.film.roles_in[m.it.title])
    return m.at(role, c=role.character)


def _actor(d: Attempt) -> Scene:
    role = d.pick(d.world.film.roles_in[_movie(d).it.title])
    p, m = role.person.name, role.movie.title
    return scene(role, ("person", p), ("movie", m), p=p, m=m)


def _cast_mates(d: Attempt) -> Scene:
    """Draws two actors of one cast, with the titles of all films that both play in."""
    a, b = (role.person.name for role in d.rng.sample(d.world.film.roles_in[_movie(d).it.title], 2))
    theirs = {x.movie.title for x in d.world.film.roles_of[b]}
    shared = [x.movie.title for x in d.world.film.roles_of[a] if x.movie.title in theirs]
    return scene(shared, ("person", a), ("person", b), ("movie", shared[0]), a=a, b=b)


def _winner(d: Attempt) -> Scene:
    p = d.pick(list(d.world.film.won))
    return scene(d.world.film.won[p], ("person", p), p=p)


def _ceremony(d: Attempt) -> int:
    return 1990 + d.below(LATEST_CEREMONY - 1989)


def _oscar(d: Attempt) -> Scene | None:
    category, year = d.pick(list(SPOKEN)), _ceremony(d)
    row = d.world.film.oscar(year, category)
    if row is None:
        return None
    key = "film" if category == PICTURE else "name"
    about = (("movie", row.film), ("person", row.name))
    words = {"spoken": SPOKEN[category], "category": category, "year": str(year), "key": key}
    return scene(getattr(row, key), *about, **words)


def _director(films: int) -> Callable[[Attempt], Scene | None]:
    def drawer(d: Attempt) -> Scene | None:
        name = d.skewed(d.world.film.directors)
        made = d.world.film.directed[name]
        return scene(made, ("person", name), d=name) if len(made) >= films else None

    return drawer


def _one_of_a_year(d: Attempt, found: Scene) -> Scene | None:
    m = d.pick(found.it)
    alone = sum(x.year == m.year for x in found.it) == 1
    return found.at(m, ("movie", m.title), year=str(m.year)) if alone else None


def _latest(d: Attempt, found: Scene) -> Scene | None:
    *_, before, last = found.it
    return None if last.year == before.year else found.at(last, ("movie", last.title))


def _span(d: Attempt, found: Scene) -> Scene | None:
    first = 1987 + d.below(30)
    last = first + 4 + d.below(5)
    films = [m for m in found.it if first <= m.year <= last]
    if not 2 <= len(films) <= 4:
        return None
    return found.at(films, *(("movie", m.title) for m in films), first=str(first), last=str(last))


def _its_director(d: Attempt, movie: Scene) -> Scene:
    p = d.world.film.director(movie.it)
    return movie.at(p, ("person", p.name), d=p.name)


_maker = then(_movie, _its_director)


def _top_billed(d: Attempt, m: Scene) -> Scene | None:
    cast = d.world.film.roles_in[m.it.title]
    return m.at([x.person.name for x in cast[:3]]) if len(cast) > 3 else None


def _false_oscar(d: Attempt) -> Scene | None:
    category = d.pick(list(LEADING | SUPPORTING))
    p, year, film = d.skewed(d.world.film.people[:300]).name, _ceremony(d), d.world.film
    holder = film.oscar(year, category)
    if p not in film.roles_of or holder is None or any(o.category == category for o in film.won.get(p, ())):
        return None
    words = {"p": p, "spoken": SPOKEN[category], "category": category, "year": str(year)}
    return scene(None, ("person", p), ("person", holder.name), holder=holder.name, **words)


def _false_director(d: Attempt, m: Scene) -> Scene | None:
    p = d.skewed(d.world.film.directors)
    if any(c.person.name == p for c in d.world.film.credits_in[m.it.title]):
        return None
    return m.at(None, ("person", p), d=p, real=d.world.film.director(m.it).name)


def _false_role(d: Attempt, m: Scene) -> Scene | None:
    p = d.skewed(d.world.film.people[:400]).name
    cast = [x.person.name for x in d.world.film.roles_in[m.it.title]]
    if p in cast or p not in d.world.film.roles_of:
        return None
    return m.at(None, ("person", p), p=p, cast=", ".join(cast))


def _language(m: Movie) -> Spelling:
    name = LANGUAGES[m.original_language]
    return Spelling(m.original_language, (name.lower(),), name)


def _mean_rating(made: Any) -> Spelling:
    return decimal(round(sum(m.rating for m in made) / len(made), 2))


MOVIE: Mapping[str, Shape] = {
    "release_date": value(_movie, lambda m: dated(m.release_date)),
    "director": value(_director_of, lambda p: named(p.name)),
    "language": value(_movie, _language),
    "money": value(_money, lambda n: dollars(f"{n:,}", str(n))),
    "birthday": value(_person, lambda p: dated(p.birthday)),
    "who_played": value(_role, lambda role: named(role.person.name)),
    "filmed_in": value(_movie, lambda m: named(m.town)),
    "oscar_of_year": value(_oscar, named),
    "directed_in_year": value(then(_director(2), _one_of_a_year), lambda m: named(m.title)),
    "latest_film": value(then(_director(2), _latest), lambda m: named(m.title)),
    "came_out_first": compare(_movies, lambda m: m.release_date, long_date),
    "rated_higher": compare(_movies, lambda m: m.rating),
    "older_person": compare(_people, lambda p: p.birthday),
    "films_acted": count(_roles, least=2),
    "oscars_won": count(_winner),
    "mean_rating": value(
        then(_director(3), lambda d, p: p.at(p.it, ("movie", p.it[0].title), films=str(len(p.it)))),
        _mean_rating,
    ),
    "films_together": several(_cast_mates),
    "directed_between": several(then(_director(4), _span), lambda films: [m.title for m in films]),
    "top_billed": several(then(_movie, _top_billed)),
    "director_birthday": value(_maker, lambda p: dated(p.birthday)),
    "director_films": count(then(_maker, lambda d, p: p.at(d.world.film.directed[p.it.name]))),
    "age_at_release": value(_actor, lambda role: age(role.person.birthday, role.movie.release_date)),
    "release_weekday": value(_movie, lambda m: named(f"{m.release_date:%A}")),
    "false_oscar": false(_false_oscar),
    "false_director": false(then(_movie, _false_director)),
    "false_role": false(then(_movie, _false_role)),
}
