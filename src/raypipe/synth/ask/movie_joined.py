"""Questions that join several facts about films and people, or presume a wrong one."""

from __future__ import annotations

from random import Random

from raypipe.synth.ask.core import (
    Asked,
    Now,
    counted,
    dated,
    invalid,
    later,
    long_date,
    plain,
    quoted,
)
from raypipe.synth.ask.movie import LATEST_CEREMONY, some_director, some_movie
from raypipe.synth.world.film import LEADING, SPOKEN, SUPPORTING
from raypipe.synth.world.names import pick, skewed
from raypipe.synth.world.world import World


def came_out_first(w: World, r: Random, now: Now) -> Asked | None:
    a, b = some_movie(w, r), some_movie(w, r)
    if a.release_date == b.release_date:
        return None
    first, second = sorted((a, b), key=lambda m: m.release_date)
    said = (
        f"{first.title} came out earlier than {second.title}.",
        f"{first.title} opened on {long_date(first.release_date)}, before {second.title}.",
    )
    calls = later([f'get_movie({quoted(m.title)})["release_date"]' for m in (a, b)])
    return Asked(
        {"a": a.title, "b": b.title},
        first.title.lower(),
        (),
        said,
        (("movie", a.title), ("movie", b.title)),
        frozenset({"released"}),
        calls,
        "least",
    )


def rated_higher(w: World, r: Random, now: Now) -> Asked | None:
    a, b = some_movie(w, r), some_movie(w, r)
    if a.rating == b.rating:
        return None
    best, other = sorted((a, b), key=lambda m: -m.rating)
    said = (
        f"With {best.rating} points {best.title} is rated higher than {other.title}.",
        f"Viewers prefer {best.title} to {other.title}, which has only {other.rating} points.",
    )
    calls = later([f'get_movie({quoted(m.title)})["rating"]' for m in (a, b)])
    return Asked(
        {"a": a.title, "b": b.title},
        best.title.lower(),
        (),
        said,
        (("movie", a.title), ("movie", b.title)),
        frozenset({"rating"}),
        calls,
        "most",
    )


def older_person(w: World, r: Random, now: Now) -> Asked | None:
    a, b = skewed(r, w.film.people), skewed(r, w.film.people)
    if a.birthday == b.birthday:
        return None
    yes = a.birthday < b.birthday
    old, young = (a, b) if yes else (b, a)
    answer = "yes" if yes else "no"
    said = (
        f"{answer.capitalize()}, {old.name} is older than {young.name}.",
        f"Is {a.name} older than {b.name}? {answer.capitalize()}: {old.name} was born first.",
    )
    calls = later([f'get_person({quoted(p.name)})["birthday"]' for p in (a, b)])
    return Asked(
        {"a": a.name, "b": b.name},
        answer,
        (),
        said,
        (("person", a.name), ("person", b.name)),
        frozenset({"born"}),
        calls,
        "yes_if_less",
    )


def films_acted(w: World, r: Random, now: Now) -> Asked | None:
    p = skewed(r, w.film.people).name
    n = len(w.film.roles_of.get(p, ()))
    if n < 2:
        return None
    said = (f"{p} has acted in {n} films.", f"So far {n} films have had {p} in the cast.")
    return Asked(
        {"p": p},
        *counted(n),
        said,
        (("person", p),),
        frozenset({"acted", "starring", "roles"}),
        f'get_movie_person_cast(None, {quoted(p)}, None)["len"]',
    )


def oscars_won(w: World, r: Random, now: Now) -> Asked | None:
    p = pick(r, list(w.film.won))
    n = len(w.film.won[p])
    said = (
        f"{p} has won {n} Oscar{'s' if n > 1 else ''}.",
        f"In all, {p} took home {n} of the golden statues.",
    )
    return Asked(
        {"p": p},
        *counted(n),
        said,
        (("person", p),),
        frozenset({"oscars"}),
        f'get_movie_person_oscar(None, {quoted(p)}, eq(winner, "true"))["len"]',
    )


def mean_rating(w: World, r: Random, now: Now) -> Asked | None:
    if (found := some_director(w, r, 3)) is None:
        return None
    d, made = found
    mean = round(sum(m.rating for m in made) / len(made), 2)
    said = (
        f"The films of {d} have an average rating of {plain(mean)}.",
        f"On average the {len(made)} films that {d} directed are rated {plain(mean)}.",
    )
    return Asked(
        {"d": d},
        plain(mean),
        (f"{mean:.2f}",),
        said,
        (("person", d), ("movie", made[0].title)),
        frozenset({"rating"}),
        later(
            (
                f'ALL get_movie_person_crew(None, {quoted(d)}, eq(job, "Director"))["movie_name"]',
                'AVG(ALL get_movie(*)["rating"])',
            )
        ),
        "round",
    )


def films_together(w: World, r: Random, now: Now) -> Asked | None:
    a, b = (role.person.name for role in r.sample(w.film.roles_in[some_movie(w, r).title], 2))
    theirs = {x.movie.title for x in w.film.roles_of[b]}
    shared = [x.movie.title for x in w.film.roles_of[a] if x.movie.title in theirs]
    text = ", ".join(shared)
    said = (f"{a} and {b} acted together in: {text}.", f"Films with both {a} and {b} in the cast: {text}.")
    return Asked(
        {"a": a, "b": b},
        text.lower(),
        (),
        said,
        (("person", a), ("person", b), ("movie", shared[0])),
        frozenset({"acted", "starring", "roles", "oscars"}),
        later(
            (
                f"ALL get_movie_person_cast(None, [{quoted(a)}, {quoted(b)}], None)",
                'sort(None, release_date)["movie_name"]',
            )
        ),
        "list",
    )


def directed_between(w: World, r: Random, now: Now) -> Asked | None:
    if (found := some_director(w, r, 4)) is None:
        return None
    d, made = found
    first = 1987 + int(r.random() * 30)
    last = first + 4 + int(r.random() * 5)
    films = [m for m in made if first <= m.year <= last]
    if not 2 <= len(films) <= 4:
        return None
    text = ", ".join(m.title for m in films)
    said = (f"From {first} to {last} {d} directed {text}.", f"{d}, films {first}-{last}: {text}.")
    conditions = f'[eq(job, "Director"), ge(year, {first}), le(year, {last})]'
    program = f"ALL get_movie_person_crew(None, {quoted(d)}, {conditions})"
    return Asked(
        {"d": d, "first": str(first), "last": str(last)},
        text.lower(),
        (),
        said,
        (("person", d), *(("movie", m.title) for m in films)),
        frozenset({"directed", "director", "oscars"}),
        later((program, 'sort(None, release_date)["movie_name"]')),
        "list",
    )


def top_billed(w: World, r: Random, now: Now) -> Asked | None:
    m = some_movie(w, r)
    cast = w.film.roles_in[m.title]
    if len(cast) < 4:
        return None
    text = ", ".join(x.person.name for x in cast[:3])
    said = (f"{m.title} stars {text}.", f"Top of the bill in {m.title}: {text}.")
    return Asked(
        {"m": m.title},
        text.lower(),
        (),
        said,
        (("movie", m.title),),
        frozenset({"starring", "roles", "oscars"}),
        later((f"ALL get_movie_person_cast({quoted(m.title)}, None, None)", 'sort(None, order)["name"][:3]')),
        "list",
    )


def director_birthday(w: World, r: Random, now: Now) -> Asked | None:
    m = some_movie(w, r)
    d = w.film.director(m)
    long = long_date(d.birthday)
    said = (
        f"{d.name}, who directed {m.title}, was born on {long}.",
        f"The director of {m.title}, {d.name}, was born on {long}.",
    )
    return Asked(
        {"m": m.title},
        *dated(d.birthday),
        said,
        (("movie", m.title), ("person", d.name)),
        frozenset({"born"}),
        later(
            (
                f'get_movie_person_crew({quoted(m.title)}, None, eq(job, "Director"))["name"]',
                'get_person(*)["birthday"]',
            )
        ),
    )


def director_films(w: World, r: Random, now: Now) -> Asked | None:
    """How many films the director of a film made: a hop and a count."""
    m = some_movie(w, r)
    d = w.film.director(m).name
    n = len(w.film.directed[d])
    said = (
        f"{d}, the director of {m.title}, has directed {n} films.",
        f"{m.title} is one of {n} films directed by {d}.",
    )
    return Asked(
        {"m": m.title},
        *counted(n),
        said,
        (("movie", m.title), ("person", d)),
        frozenset({"directed"}),
        later(
            (
                f'get_movie_person_crew({quoted(m.title)}, None, eq(job, "Director"))["name"]',
                'get_movie_person_crew(None, *, eq(job, "Director"))["len"]',
            )
        ),
    )


def age_at_release(w: World, r: Random, now: Now) -> Asked | None:
    role = pick(r, w.film.roles_in[some_movie(w, r).title])
    born, out = role.person.birthday, role.movie.release_date
    age = out.year - born.year - ((out.month, out.day) < (born.month, born.day))
    p, m = role.person.name, role.movie.title
    said = (f"{p} was {age} years old when {m} came out.", f"At the release of {m} its actor {p} was {age}.")
    return Asked(
        {"p": p, "m": m},
        str(age),
        (f"{age} years old", f"{age} years"),
        said,
        (("person", p), ("movie", m)),
        frozenset({"born", "released"}),
        later((f'get_person({quoted(p)})["birthday"]', f'get_movie({quoted(m)})["release_date"]')),
        "years_between",
    )


def release_weekday(w: World, r: Random, now: Now) -> Asked | None:
    m = some_movie(w, r)
    name = f"{m.release_date:%A}"
    said = (f"{m.title} opened on a {name}.", f"The first showing of {m.title}, on a {name}, was sold out.")
    return Asked(
        {"m": m.title},
        name.lower(),
        (),
        said,
        (("movie", m.title),),
        frozenset({"released"}),
        f'get_movie({quoted(m.title)})["release_date"]',
        "weekday",
    )


def false_oscar(w: World, r: Random, now: Now) -> Asked | None:
    category = pick(r, list(LEADING | SUPPORTING))
    p, year = skewed(r, w.film.people[:300]).name, 1990 + int(r.random() * (LATEST_CEREMONY - 1989))
    holder = next((o for o in w.film.oscars if o.winner and (o.year, o.category) == (year, category)), None)
    if (
        p not in w.film.roles_of
        or holder is None
        or any(o.category == category for o in w.film.won.get(p, ()))
    ):
        return None
    spoken = SPOKEN[category]
    said = (
        f"The {spoken} Oscar of {year} went to {holder.name}, not to {p}.",
        f"{p} has never won the {spoken} Oscar.",
    )
    conditions = f'[eq(year, {year}), eq(category, "{category}"), eq(winner, "true")]'
    return invalid(
        {"p": p, "spoken": spoken, "year": str(year)},
        said,
        (("person", p), ("person", holder.name)),
        frozenset({"oscars"}),
        f'get_movie_person_oscar(None, {quoted(p)}, {conditions})["film"]',
    )


def false_director(w: World, r: Random, now: Now) -> Asked | None:
    m, d = some_movie(w, r), skewed(r, w.film.directors)
    real = w.film.director(m).name
    if any(c.person.name == d for c in w.film.credits_in[m.title]):
        return None
    said = (f"{m.title} was directed by {real}.", f"Not {d} but {real} directed {m.title}.")
    return invalid(
        {"m": m.title, "d": d},
        said,
        (("movie", m.title), ("person", d)),
        frozenset({"director"}),
        f'get_movie_person_crew({quoted(m.title)}, {quoted(d)}, eq(job, "Director"))["year"]',
    )


def false_role(w: World, r: Random, now: Now) -> Asked | None:
    m, p = some_movie(w, r), skewed(r, w.film.people[:400]).name
    cast = [x.person.name for x in w.film.roles_in[m.title]]
    if p in cast or p not in w.film.roles_of:
        return None
    said = (f"The cast of {m.title}: {', '.join(cast)}.", f"{p} did not appear in {m.title}.")
    return invalid(
        {"m": m.title, "p": p},
        said,
        (("movie", m.title), ("person", p)),
        frozenset({"starring", "roles"}),
        f'get_movie_person_cast({quoted(m.title)}, {quoted(p)}, None)["character"]',
    )
