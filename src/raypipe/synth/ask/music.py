"""Questions about artists, songs, Grammys and the chart: one fact, asked with or without a condition."""

from __future__ import annotations

from random import Random

from raypipe.synth.ask.core import Asked, Now, dated, later, long_date, quoted
from raypipe.synth.world.music import ALBUM_PRIZE, COUNTRIES, NEW_ARTIST, SONG_PRIZE, Artist, Song
from raypipe.synth.world.names import pick, skewed
from raypipe.synth.world.world import World

KEYS = {NEW_ARTIST: "best_new_artist", SONG_PRIZE: "best_song", ALBUM_PRIZE: "best_album"}


def some_song(w: World, r: Random) -> Song:
    return skewed(r, w.music.songs)


def some_artist(w: World, r: Random) -> Artist:
    return skewed(r, w.music.artists)


def song_author(w: World, r: Random, now: Now) -> Asked | None:
    s = some_song(w, r)
    said = (f"{s.name} is a song by {s.author}.", f"{s.author} wrote and recorded {s.name}.")
    return Asked(
        {"s": s.name},
        s.author.lower(),
        (),
        said,
        (("song", s.name),),
        frozenset({"author"}),
        f'get_song({quoted(s.name)})["author"]',
    )


def song_date(w: World, r: Random, now: Now) -> Asked | None:
    s = some_song(w, r)
    long = long_date(s.release_date)
    said = (f"{s.name} was released on {long}.", f"{s.author} released {s.name} on {long}.")
    return Asked(
        {"s": s.name},
        *dated(s.release_date),
        said,
        (("song", s.name),),
        frozenset({"released", "works"}),
        f'get_song({quoted(s.name)})["release_date"]',
    )


def origin(w: World, r: Random, now: Now) -> Asked | None:
    a = some_artist(w, r)
    land = COUNTRIES[a.birth_place]
    said = (f"{a.name} comes from {land}.", f"Originally from {land}, {a.name} now tours the world.")
    return Asked(
        {"a": a.name},
        land.lower(),
        (a.birth_place.lower(),),
        said,
        (("artist", a.name),),
        frozenset({"birth_place"}),
        f'get_person({quoted(a.name)})["birth_place"]',
    )


def born(w: World, r: Random, now: Now) -> Asked | None:
    a = some_artist(w, r)
    if a.group:
        return None
    long = long_date(a.birth_date)
    said = (
        f"{a.name} was born on {long}.",
        f"The singer {a.name} celebrates a birthday on {long[:-6]}, born {long}.",
    )
    return Asked(
        {"a": a.name},
        *dated(a.birth_date),
        said,
        (("artist", a.name),),
        frozenset({"born"}),
        f'get_person({quoted(a.name)})["birth_date"]',
    )


def studio(w: World, r: Random, now: Now) -> Asked | None:
    s = some_song(w, r)
    said = (f"{s.name} was recorded at {s.studio}.", f"{s.author} went to {s.studio} to record {s.name}.")
    return Asked({"s": s.name}, s.studio.lower(), (), said, (("song", s.name),), frozenset({"studio"}))


def instrument(w: World, r: Random, now: Now) -> Asked | None:
    a = some_artist(w, r)
    if a.group:
        return None
    said = (
        f"{a.name} learned to play {a.instrument} as a child.",
        f"Before singing, {a.name} played {a.instrument}.",
    )
    short = a.instrument.split(" ", 1)[1]
    return Asked(
        {"a": a.name}, a.instrument, (short,), said, (("artist", a.name),), frozenset({"instrument"})
    )


def prize_of_year(w: World, r: Random, now: Now) -> Asked | None:
    (year, category), row = pick(r, list(w.music.prizes.items()))
    spoken = category.lower()
    said = (
        f"The {year} Grammy for {spoken} went to {row.nominee}.",
        f"{row.nominee} won the {spoken} Grammy in {year}.",
    )
    about = (("artist", row.artist), *((("song", row.nominee),) if category == SONG_PRIZE else ()))
    return Asked(
        {"year": str(year), "spoken": spoken},
        row.nominee.lower(),
        (),
        said,
        about,
        frozenset({"grammys"}),
        f'get_grammy_year({year})["{KEYS[category]}"]',
    )


def latest_song(w: World, r: Random, now: Now) -> Asked | None:
    a = some_artist(w, r).name
    works = w.music.works[a]
    if len(works) < 2 or works[-1].release_date == works[-2].release_date:
        return None
    last = works[-1]
    said = (f"The newest song by {a} is {last.name}.", f"{a}'s latest release is {last.name}.")
    return Asked(
        {"a": a},
        last.name.lower(),
        (),
        said,
        (("artist", a), ("song", last.name)),
        frozenset({"works", "released", "author"}),
        later(
            (
                f'ALL get_person({quoted(a)})["music"]',
                "ALL get_song(*)",
                'sort(None, -release_date)["name"][:1]',
            )
        ),
    )


def chart_top(w: World, r: Random, now: Now) -> Asked | None:
    """What stands where on the chart of this week: the graph's calls do not reach the chart."""
    rank, week = 1 + int(r.random() * 10), max(c.date for c in w.music.chart if c.date <= now.day)
    row = next(c for c in w.music.chart if c.date == week and c.rank == rank)
    said = (
        f"Number {rank} on this week's Billboard Hot 100 is {row.song} by {row.artist}.",
        f"Billboard, chart of {long_date(row.date)}: number {rank}, {row.song}.",
    )
    return Asked(
        {"rank": str(rank)},
        row.song.lower(),
        (f"{row.song} by {row.artist}".lower(),),
        said,
        (("song", row.song), ("artist", row.artist)),
        frozenset({"chart"}),
    )


def chart_peak(w: World, r: Random, now: Now) -> Asked | None:
    """The best chart place of a song: in the tables, but the call language has no call for the chart."""
    song = pick(r, list(w.music.ranked))
    top = w.music.ranked[song][-1].top_position
    said = (f"The highest Billboard Hot 100 position of {song} is {top}.", f"{song} peaked at number {top}.")
    return Asked({"s": song}, str(top), (f"number {top}",), said, (("song", song),), frozenset({"chart"}))
