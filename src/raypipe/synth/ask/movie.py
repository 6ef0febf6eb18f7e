"""Questions about films, the people in them, and Oscars: one fact, asked with or without a condition."""

from __future__ import annotations

from random import Random

from raypipe.synth.ask.core import (
    Asked,
    Now,
    dated,
    later,
    long_date,
    quoted,
)
from raypipe.synth.world.film import LANGUAGES, PICTURE, SPOKEN, Movie
from raypipe.synth.world.names import pick, skewed
from raypipe.synth.world.world import World

LATEST_CEREMONY = 2023


def some_movie(w: World, r: Random) -> Movie:
    return skewed(r, w.film.movies)


def some_director(w: World, r: Random, films: int) -> tuple[str, tuple[Movie, ...]] | None:
    """Somebody who directed at least `films` films, with the films."""
    name = skewed(r, w.film.directors)
    made = w.film.directed[name]
    return (name, made) if len(made) >= films else None


def release_date(w: World, r: Random, now: Now) -> Asked | None:
    m = some_movie(w, r)
    long = long_date(m.release_date)
    said = (
        f"{m.title} was released on {long}.",
        f"{long} was the day on which {m.title} reached the cinemas.",
        f"The release date of {m.title} is {long}.",
    )
    return Asked(
        {"m": m.title},
        *dated(m.release_date),
        said,
        (("movie", m.title),),
        frozenset({"released"}),
        f'get_movie({quoted(m.title)})["release_date"]',
    )


def director(w: World, r: Random, now: Now) -> Asked | None:
    m = some_movie(w, r)
    d = w.film.director(m).name
    said = (
        f"{m.title} was directed by {d}.",
        f"{d} directed {m.title}.",
        f"The director of {m.title} is {d}.",
    )
    return Asked(
        {"m": m.title},
        d.lower(),
        (),
        said,
        (("movie", m.title),),
        frozenset({"director"}),
        f'get_movie_person_crew({quoted(m.title)}, None, eq(job, "Director"))["name"]',
    )


def language(w: World, r: Random, now: Now) -> Asked | None:
    m = some_movie(w, r)
    tongue = LANGUAGES[m.original_language]
    said = (f"The original language of {m.title} is {tongue}.", f"{m.title} was made in {tongue}.")
    return Asked(
        {"m": m.title},
        m.original_language,
        (tongue.lower(),),
        said,
        (("movie", m.title),),
        frozenset({"language"}),
        f'get_movie({quoted(m.title)})["original_language"]',
    )


def money(w: World, r: Random, now: Now) -> Asked | None:
    m, kind = some_movie(w, r), pick(r, ("budget", "revenue"))
    n = m.budget if kind == "budget" else m.revenue
    said = (f"{m.title} had a {kind} of ${n:,}.", f"The {kind} of {m.title} was ${n:,}.")
    return Asked(
        {"m": m.title, "kind": kind},
        f"${n:,}",
        (str(n), f"{n:,}"),
        said,
        (("movie", m.title),),
        frozenset({kind}),
        f'get_movie({quoted(m.title)})["{kind}"]',
    )


def birthday(w: World, r: Random, now: Now) -> Asked | None:
    p = skewed(r, w.film.people)
    long = long_date(p.birthday)
    said = (f"{p.name} was born on {long}.", f"Born on {long}, {p.name} grew up near the sea.")
    return Asked(
        {"p": p.name},
        *dated(p.birthday),
        said,
        (("person", p.name),),
        frozenset({"born"}),
        f'get_person({quoted(p.name)})["birthday"]',
    )


def who_played(w: World, r: Random, now: Now) -> Asked | None:
    m = some_movie(w, r)
    role = pick(r, w.film.roles_in[m.title])
    p, c = role.person.name, role.character
    said = (f"{p} plays {c} in {m.title}.", f"In {m.title} the part of {c} is played by {p}.")
    return Asked(
        {"m": m.title, "c": c},
        p.lower(),
        (),
        said,
        (("movie", m.title),),
        frozenset({"starring", "roles"}),
        f'get_movie_person_cast({quoted(m.title)}, None, eq(character, {quoted(c)}))["name"]',
    )


def filmed_in(w: World, r: Random, now: Now) -> Asked | None:
    m = some_movie(w, r)
    said = (f"{m.title} was filmed in {m.town}.", f"Most scenes of {m.title} were shot in {m.town}.")
    return Asked({"m": m.title}, m.town.lower(), (), said, (("movie", m.title),), frozenset({"town"}))


def oscar_of_year(w: World, r: Random, now: Now) -> Asked | None:
    category, year = pick(r, list(SPOKEN)), 1990 + int(r.random() * (LATEST_CEREMONY - 1989))
    row = next((o for o in w.film.oscars if o.winner and (o.year, o.category) == (year, category)), None)
    if row is None:
        return None
    spoken, key, answer = SPOKEN[category], "name", row.name
    if category == PICTURE:
        key, answer = "film", row.film
    said = (
        f"At the {year} ceremony the Oscar for {spoken} went to {answer}.",
        f"{answer} won the {spoken} Oscar in {year}.",
    )
    about = (("movie", row.film), ("person", row.name))
    conditions = f'[eq(year, {year}), eq(category, "{category}"), eq(winner, "true")]'
    program = f"get_movie_person_oscar(None, None, {conditions})"
    return Asked(
        {"spoken": spoken, "year": str(year)},
        answer.lower(),
        (),
        said,
        about,
        frozenset({"oscars"}),
        f'{program}["{key}"]',
    )


def directed_in_year(w: World, r: Random, now: Now) -> Asked | None:
    if (found := some_director(w, r, 2)) is None:
        return None
    d, made = found
    m = pick(r, made)
    if sum(x.year == m.year for x in made) > 1:
        return None
    said = (f"In {m.year} {d} directed {m.title}.", f"{d}'s film of {m.year} was {m.title}.")
    return Asked(
        {"d": d, "year": str(m.year)},
        m.title.lower(),
        (),
        said,
        (("person", d), ("movie", m.title)),
        frozenset({"directed", "director", "oscars"}),
        f'get_movie_person_crew(None, {quoted(d)}, [eq(job, "Director"), eq(year, {m.year})])["movie_name"]',
    )


def latest_film(w: World, r: Random, now: Now) -> Asked | None:
    if (found := some_director(w, r, 2)) is None:
        return None
    d, made = found
    m = made[-1]
    if made[-2].year == m.year:
        return None
    said = (
        f"The latest film that {d} directed is {m.title}.",
        f"{d}'s most recent film as a director is {m.title}.",
    )
    return Asked(
        {"d": d},
        m.title.lower(),
        (),
        said,
        (("person", d), ("movie", m.title)),
        frozenset({"directed", "director", "oscars"}),
        later(
            (
                f'get_movie_person_crew(None, {quoted(d)}, eq(job, "Director"))',
                'sort(None, -year)["movie_name"]',
            )
        ),
    )
