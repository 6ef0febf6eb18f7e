"""Questions about artists, songs, Grammys and the chart."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from raypipe.contrib.world.ask.spellings import Spelling, age, also, articled, dated, long_date, named, years
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
from raypipe.contrib.world.world.music import ALBUM_PRIZE, COUNTRIES, NEW_ARTIST, SONG_PRIZE, Artist

KEYS = {NEW_ARTIST: "best_new_artist", SONG_PRIZE: "best_song", ALBUM_PRIZE: "best_album"}

_artist = one(lambda w: w.music.artists, "artist", "a")
_song = then(one(lambda w: w.music.songs, "song", "s"), lambda d, s: s.at(s.it, by=s.it.author))
_songs = two(lambda w: w.music.songs, "song")
_works = then(_artist, lambda d, a: a.at(d.world.music.works[a.it.name]))
_group = then(_artist, lambda d, a: a if a.it.group else None)
_unawarded = then(_artist, lambda d, a: None if a.it.name in d.world.music.won else a)


def _solo(d: Attempt, found: Scene) -> Scene | None:
    day = long_date(found.it.birth_date)
    return None if found.it.group else found.at(found.it, birthday=day.rpartition(",")[0])


_soloist = then(_artist, _solo)


def _winner(d: Attempt) -> Scene:
    a = d.pick(list(d.world.music.won))
    return scene(d.world.music.won[a], ("artist", a), a=a)


def _prize(d: Attempt) -> Scene:
    (year, category), row = d.pick(list(d.world.music.prizes.items()))
    about = (("artist", row.artist), *((("song", row.nominee),) if category == SONG_PRIZE else ()))
    return scene(row.nominee, *about, year=str(year), spoken=category.lower(), key=KEYS[category])


def _latest(d: Attempt, found: Scene) -> Scene | None:
    works = d.world.music.works[found.it.name]
    if len(works) < 2 or works[-1].release_date == works[-2].release_date:
        return None
    return found.at(works[-1], ("song", works[-1].name))


def _charted(d: Attempt) -> Scene:
    """Draws a rank from 1 to 10 on the latest weekly chart, with its song."""
    chart = d.world.music.chart
    rank, week = 1 + d.below(10), max(c.date for c in chart if c.date <= d.now.day)
    row = next(c for c in chart if c.date == week and c.rank == rank)
    words = {"rank": str(rank), "by": row.artist, "day": long_date(row.date)}
    return scene(row, ("song", row.song), ("artist", row.artist), **words)


def _ranked(d: Attempt) -> Scene:
    song = d.pick(list(d.world.music.ranked))
    return scene(d.world.music.ranked[song][-1].top_position, ("song", song), s=song)


def _wins(d: Attempt) -> Scene:
    """Draws an artist with Grammys and any artist, and counts the Grammys of each."""
    a, b = d.pick(list(d.world.music.won)), d.skewed(d.world.music.artists).name
    wins = tuple(len(d.world.music.won.get(x, ())) for x in (a, b))
    return scene(wins, ("artist", a), ("artist", b), a=a, b=b)


def _its_artist(d: Attempt, song: Scene) -> Scene:
    a = d.world.music.artist[song.it.author]
    return song.at(a, ("artist", a.name), a=a.name)


_author = then(_song, _its_artist)
_singer = then(_author, lambda d, a: None if a.it.group else a)


def _singer_and_song(d: Attempt) -> Scene | None:
    s = d.skewed(d.world.music.songs)
    a = d.world.music.artist[s.author]
    about = ("artist", a.name), ("song", s.name)
    return None if a.group else scene((a.birth_date, s.release_date), *about, a=a.name, s=s.name)


def _old(d: Attempt, found: Scene) -> Scene | None:
    """Returns the age of a song in years. Returns None below one year, and near an anniversary of its
    release: pages of different days would disagree."""
    day, today = found.it.release_date, d.now.day
    near = (day.month, day.day) != (2, 29) and abs(today - day.replace(year=today.year)) < timedelta(9)
    n = years(day, today)
    return None if n < 1 or near else found.at(n)


def _not_by(d: Attempt, s: Scene) -> Scene | None:
    a = d.skewed(d.world.music.artists).name
    return None if s.it.author == a else s.at(None, ("artist", a), a=a)


def _home(a: Artist) -> Spelling:
    return also(COUNTRIES[a.birth_place], a.birth_place)


def _years_old(n: int) -> Spelling:
    words = f"{n} year{'s' if n > 1 else ''}"
    return Spelling(str(n), (words,), words)


MUSIC: Mapping[str, Shape] = {
    "song_author": value(_song, lambda s: named(s.author)),
    "song_date": value(_song, lambda s: dated(s.release_date)),
    "origin": value(_artist, _home),
    "born": value(_soloist, lambda a: dated(a.birth_date)),
    "studio": value(_song, lambda s: named(s.studio)),
    "instrument": value(_soloist, lambda a: articled(a.instrument)),
    "prize_of_year": value(_prize, named),
    "latest_song": value(then(_artist, _latest), lambda s: named(s.name)),
    "chart_top": value(_charted, lambda row: also(row.song, f"{row.song} by {row.artist}")),
    "chart_peak": value(_ranked, lambda top: also(str(top), f"number {top}")),
    "first_released": compare(_songs, lambda s: s.release_date),
    "more_grammys": compare(_wins, lambda n: n),
    "grammy_count": count(_winner),
    "member_count": count(_group, lambda a: len(a.members)),
    "song_count": count(_works),
    "members": several(_group, lambda a: a.members),
    "award_years": several(_winner, lambda won: sorted({g.year for g in won}), least=2),
    "author_origin": value(_author, _home),
    "author_birth": value(_singer, lambda a: dated(a.birth_date)),
    "age_at_release": value(_singer_and_song, lambda days: age(*days)),
    "years_since": value(then(_song, _old), _years_old),
    "false_grammy": false(_unawarded),
    "false_song": false(then(_song, _not_by)),
}
