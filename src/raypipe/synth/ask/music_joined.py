"""Questions that join several facts about artists and songs, or presume a wrong one."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from raypipe.synth.ask.core import Asked, Now, counted, dated, invalid, later, long_date, quoted
from raypipe.synth.ask.music import some_artist, some_song
from raypipe.synth.world.music import COUNTRIES
from raypipe.synth.world.names import pick
from raypipe.synth.world.world import World


def first_released(w: World, r: Random, now: Now) -> Asked | None:
    a, b = some_song(w, r), some_song(w, r)
    if a.release_date == b.release_date:
        return None
    first, second = sorted((a, b), key=lambda s: s.release_date)
    said = (
        f"{first.name} was released before {second.name}.",
        f"{first.name} is the older song: {second.name} came later.",
    )
    calls = later([f'get_song({quoted(s.name)})["release_date"]' for s in (a, b)])
    return Asked(
        {"a": a.name, "b": b.name},
        first.name.lower(),
        (),
        said,
        (("song", a.name), ("song", b.name)),
        frozenset({"released", "works"}),
        calls,
        "least",
    )


def more_grammys(w: World, r: Random, now: Now) -> Asked | None:
    a, b = pick(r, list(w.music.won)), some_artist(w, r).name
    wins = {x: len(w.music.won.get(x, ())) for x in (a, b)}
    if wins[a] == wins.get(b):
        return None
    best, other = sorted((a, b), key=lambda x: -wins[x])
    said = (
        f"{best} has won more Grammys than {other}.",
        f"Grammy count: {best} {wins[best]}, {other} {wins[other]}.",
    )
    calls = later([f'get_grammy_person({quoted(x)})["award_count"]' for x in (a, b)])
    return Asked(
        {"a": a, "b": b},
        best.lower(),
        (),
        said,
        (("artist", a), ("artist", b)),
        frozenset({"grammys"}),
        calls,
        "most",
    )


def grammy_count(w: World, r: Random, now: Now) -> Asked | None:
    a = pick(r, list(w.music.won))
    n = len(w.music.won[a])
    said = (f"{a} has won {n} Grammy{'s' if n > 1 else ''}.", f"Grammys won by {a}: {n}.")
    return Asked(
        {"a": a},
        *counted(n),
        said,
        (("artist", a),),
        frozenset({"grammys"}),
        f'get_grammy_person({quoted(a)})["award_count"]',
    )


def member_count(w: World, r: Random, now: Now) -> Asked | None:
    a = some_artist(w, r)
    if not a.group:
        return None
    n = len(a.members)
    said = (f"{a.name} has {n} members.", f"The group {a.name} is made up of {n} musicians.")
    return Asked(
        {"a": a.name},
        *counted(n),
        said,
        (("artist", a.name),),
        frozenset({"members"}),
        f'get_person({quoted(a.name)})["members"]["len"]',
    )


def song_count(w: World, r: Random, now: Now) -> Asked | None:
    a = some_artist(w, r).name
    n = len(w.music.works[a])
    said = (f"{a} has released {n} songs.", f"The list of songs by {a} has {n} entries.")
    return Asked(
        {"a": a},
        *counted(n),
        said,
        (("artist", a),),
        frozenset({"works", "author"}),
        f'get_person({quoted(a)})["music"]["len"]',
    )


def members(w: World, r: Random, now: Now) -> Asked | None:
    a = some_artist(w, r)
    if not a.group:
        return None
    text = ", ".join(a.members)
    said = (f"The members of {a.name} are {text}.", f"{a.name} consists of {text}.")
    return Asked(
        {"a": a.name},
        text.lower(),
        (),
        said,
        (("artist", a.name),),
        frozenset({"members"}),
        f'ALL get_person({quoted(a.name)})["members"]',
        "list",
    )


def award_years(w: World, r: Random, now: Now) -> Asked | None:
    a = pick(r, list(w.music.won))
    years = sorted({g.year for g in w.music.won[a]})
    if len(years) < 2:
        return None
    text = ", ".join(map(str, years))
    said = (f"{a} won Grammys in {text}.", f"Grammy years of {a}: {text}.")
    return Asked(
        {"a": a},
        text,
        (),
        said,
        (("artist", a),),
        frozenset({"grammys"}),
        f'ALL get_grammy_person({quoted(a)})["award_date"]',
        "list",
    )


def author_origin(w: World, r: Random, now: Now) -> Asked | None:
    s = some_song(w, r)
    a = w.music.artist[s.author]
    land = COUNTRIES[a.birth_place]
    said = (
        f"{s.name} is by {a.name}, who comes from {land}.",
        f"{a.name}, known for {s.name}, comes from {land}.",
    )
    return Asked(
        {"s": s.name},
        land.lower(),
        (a.birth_place.lower(),),
        said,
        (("song", s.name), ("artist", a.name)),
        frozenset({"birth_place"}),
        later((f'get_song({quoted(s.name)})["author"]', 'get_person(*)["birth_place"]')),
    )


def author_birth(w: World, r: Random, now: Now) -> Asked | None:
    s = some_song(w, r)
    a = w.music.artist[s.author]
    if a.group:
        return None
    long = long_date(a.birth_date)
    said = (
        f"{a.name}, who sings {s.name}, was born on {long}.",
        f"The artist behind {s.name} was born on {long}.",
    )
    return Asked(
        {"s": s.name},
        *dated(a.birth_date),
        said,
        (("song", s.name), ("artist", a.name)),
        frozenset({"born"}),
        later((f'get_song({quoted(s.name)})["author"]', 'get_person(*)["birth_date"]')),
    )


def age_at_release(w: World, r: Random, now: Now) -> Asked | None:
    s = some_song(w, r)
    a = w.music.artist[s.author]
    if a.group:
        return None
    b, out = a.birth_date, s.release_date
    age = out.year - b.year - ((out.month, out.day) < (b.month, b.day))
    said = (
        f"{a.name} was {age} years old when {s.name} was released.",
        f"{a.name} released {s.name} at the age of {age}.",
    )
    calls = later(
        (f'get_person({quoted(a.name)})["birth_date"]', f'get_song({quoted(s.name)})["release_date"]')
    )
    return Asked(
        {"a": a.name, "s": s.name},
        str(age),
        (f"{age} years old", f"{age} years"),
        said,
        (("artist", a.name), ("song", s.name)),
        frozenset({"born", "released", "works"}),
        calls,
        "years_between",
    )


def years_since(w: World, r: Random, now: Now) -> Asked | None:
    s = some_song(w, r)
    d, today = s.release_date, now.day
    years = today.year - d.year - ((today.month, today.day) < (d.month, d.day))
    if years < 1 or abs(
        (today - d.replace(year=today.year)) if (d.month, d.day) != (2, 29) else timedelta(9)
    ) < timedelta(9):
        return None
    words = f"{years} year{'s' if years > 1 else ''}"
    said = (f"{s.name} is {words} old.", f"It is {words} since {s.name} came out.")
    return Asked(
        {"s": s.name},
        str(years),
        (words,),
        said,
        (("song", s.name),),
        frozenset({"released", "works"}),
        f'get_song({quoted(s.name)})["release_date"]',
        "years_since",
    )


def false_grammy(w: World, r: Random, now: Now) -> Asked | None:
    a = some_artist(w, r).name
    if a in w.music.won:
        return None
    said = (f"{a} has never won a Grammy.", f"Grammys won by {a}: none.")
    return invalid(
        {"a": a},
        said,
        (("artist", a),),
        frozenset({"grammys"}),
        f'get_grammy_person({quoted(a)})["award_date"]',
    )


def false_song(w: World, r: Random, now: Now) -> Asked | None:
    s, a = some_song(w, r), some_artist(w, r).name
    if s.author == a:
        return None
    said = (f"{s.name} is a song by {s.author}.", f"{s.name} is by {s.author}, not by {a}.")
    return invalid(
        {"a": a, "s": s.name},
        said,
        (("song", s.name), ("artist", a)),
        frozenset({"author"}),
        later(
            (
                f"ALL get_song({quoted(s.name)})",
                f'sort(eq(author, {quoted(a)}), release_date)["release_date"][:1]',
            )
        ),
    )
