"""The invented music world: artists, songs, Grammys, a weekly chart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from math import exp
from random import Random

from raypipe.contrib.world.world.names import NameSource, grouped, pick

SOLO, GROUPS = 150, 70
FIRST_YEAR, LAST_SONG = 1984, date(2024, 2, 23)
CHART_WEEKS, CHART_RANKS, LAST_CHART = 52, 40, date(2024, 3, 9)
COUNTRIES = {
    "SE": "Sweden",
    "CA": "Canada",
    "BR": "Brazil",
    "JP": "Japan",
    "NG": "Nigeria",
    "IE": "Ireland",
    "US": "United States",
    "GB": "United Kingdom",
    "FR": "France",
    "KE": "Kenya",
    "IN": "India",
    "NZ": "New Zealand",
}
INSTRUMENTS = (
    *("the theorbo", "the accordion", "the vibraphone", "a twelve-string guitar", "the cello", "the marimba"),
)
NEW_ARTIST, SONG_PRIZE, ALBUM_PRIZE = "Best New Artist", "Song Of The Year", "Album Of The Year"


@dataclass(frozen=True, slots=True)
class Artist:
    name: str
    group: bool
    birth_place: str  # ISO 3166-1 alpha-2
    birth_date: date  # of a group: the day it was formed
    end_date: date | None  # the artist died or the group split up; None: neither
    members: tuple[str, ...]  # () for a soloist
    music: tuple[str, ...]  # its songs, in order of release
    instrument: str  # on pages only, not in the graph


@dataclass(frozen=True, slots=True)
class Song:
    name: str
    author: str  # artist's name
    release_country: str
    release_date: date
    studio: str  # for the recording; on pages only, not in the graph


@dataclass(frozen=True, slots=True)
class Grammy:
    year: int
    category: str
    nominee: str  # song, album or artist
    artist: str
    winner: bool


@dataclass(frozen=True, slots=True)
class Charted:
    date: date  # a Saturday
    rank: int
    song: str
    artist: str
    rank_last_week: int | None
    top_position: int
    weeks_in_chart: int


@dataclass(frozen=True, slots=True)
class Music:
    artists: tuple[Artist, ...]  # early ones get more questions
    songs: tuple[Song, ...]  # early ones get more questions
    grammys: tuple[Grammy, ...]
    chart: tuple[Charted, ...]
    artist: Mapping[str, Artist]
    works: Mapping[str, tuple[Song, ...]]  # by artist, in order of release
    won: Mapping[str, tuple[Grammy, ...]]  # by artist, winners only
    prizes: Mapping[tuple[int, str], Grammy]  # (year, category) -> winner
    ranked: Mapping[str, tuple[Charted, ...]]  # by song, in order of date


def _artists(rng: Random, names: NameSource) -> list[Artist]:
    rows = []
    for i in range(SOLO + GROUPS):
        group = rng.random() * (SOLO + GROUPS) < GROUPS
        first, last = (date(1972, 1, 1), date(2014, 1, 1)) if group else (date(1948, 1, 1), date(2001, 1, 1))
        born = first + timedelta(days=int(rng.random() * (last - first).days))
        ends = born.year + (8 if group else 55) + int(rng.random() * 40)
        end = date(ends, 1 + i % 12, 1 + i % 28) if ends < 2023 and rng.random() < 0.5 else None
        members = tuple(names.person() for _ in range(3 + int(rng.random() * 3))) if group else ()
        name = names.group() if group else names.person()
        country, instrument = pick(rng, list(COUNTRIES)), pick(rng, INSTRUMENTS)
        rows.append(Artist(name, group, country, born, end, members, (), instrument))
    return rows


def _songs(rng: Random, names: NameSource, artists: list[Artist], towns: list[str]) -> list[Song]:
    rows = []
    for i, artist in enumerate(artists):
        ready = timedelta(days=365 if artist.group else 17 * 366)
        start = max(date(FIRST_YEAR, 1, 1), artist.birth_date + ready)
        stop = min(LAST_SONG, artist.end_date or LAST_SONG)
        count = 3 + int(rng.random() * (12 if i < 60 else 7))
        for _ in range(count if (stop - start).days > 300 else 0):
            day = start + timedelta(days=int(rng.random() * (stop - start).days))
            country = artist.birth_place if rng.random() < 0.7 else pick(rng, list(COUNTRIES))
            rows.append(Song(names.song(), artist.name, country, day, f"{pick(rng, towns)} Sound"))
    return rows


def _grammys(
    rng: Random, names: NameSource, works: Mapping[str, tuple[Song, ...]], songs: list[Song]
) -> list[Grammy]:
    by_year: dict[int, list[Song]] = defaultdict(list)
    debut: dict[int, list[str]] = defaultdict(list)
    for song in songs:
        by_year[song.release_date.year].append(song)
    for artist, their in works.items():
        debut[their[0].release_date.year].append(artist)
    rows = []
    for year in range(FIRST_YEAR + 3, 2024):
        fresh = [a for y in (year - 2, year - 1) for a in debut[y] if y == year - 1 or rng.random() < 0.3]
        released = by_year[year - 1]
        makers = sorted({s.author for s in released})
        runs = {
            NEW_ARTIST: [(a, a) for a in rng.sample(fresh, min(5, len(fresh)))],
            SONG_PRIZE: [(s.name, s.author) for s in rng.sample(released, min(5, len(released)))],
            ALBUM_PRIZE: [(names.song(), a) for a in rng.sample(makers, min(5, len(makers)))],
        }
        for category, nominees in runs.items():
            best = int(rng.random() * len(nominees)) if nominees else 0
            rows += [Grammy(year, category, n, a, i == best) for i, (n, a) in enumerate(nominees)]
    return rows


def _chart(rng: Random, songs: list[Song]) -> list[Charted]:
    """Simulates weekly charts. A song's height rises and falls once; each week ranks the songs by height."""
    able = [s for s in songs if s.release_date > LAST_CHART - timedelta(weeks=CHART_WEEKS + 110)]
    life = []
    for song in able:
        weeks = (LAST_CHART - song.release_date).days / 7
        life.append((song, weeks - 3 - rng.random() * 20, rng.lognormvariate(0, 0.5), 6 + rng.random() * 40))
    rows, last, top, stays = [], dict[str, int](), dict[str, int](), dict[str, int]()
    for back in range(CHART_WEEKS - 1, -1, -1):
        day = LAST_CHART - timedelta(weeks=back)
        heights = [
            (-height * exp(-(((back - peak) / wide) ** 2)), s.name, s)
            for s, peak, height, wide in life
            if s.release_date < day
        ]
        now = dict[str, int]()
        for rank, (_, name, song) in enumerate(sorted(heights, key=lambda h: h[:2])[:CHART_RANKS], 1):
            now[name], top[name], stays[name] = rank, min(rank, top.get(name, rank)), stays.get(name, 0) + 1
            rows.append(Charted(day, rank, name, song.author, last.get(name), top[name], stays[name]))
        last = now
    return rows


def build_music(rng: Random, names: NameSource, towns: list[str]) -> Music:
    artists = _artists(rng, names)
    songs = _songs(rng, names, artists, towns)
    works = grouped(sorted(songs, key=lambda s: (s.release_date, s.name)), lambda s: s.author)
    artists = [replace(a, music=tuple(s.name for s in works.get(a.name, ()))) for a in artists]
    grammys, chart = _grammys(rng, names, works, songs), _chart(rng, songs)
    rng.shuffle(songs)
    return Music(
        artists=tuple(a for a in artists if a.name in works),
        songs=tuple(songs),
        grammys=tuple(grammys),
        chart=tuple(chart),
        artist={a.name: a for a in artists},
        works=works,
        won=grouped((g for g in grammys if g.winner), lambda g: g.artist),
        prizes={(g.year, g.category): g for g in grammys if g.winner},
        ranked=grouped(chart, lambda c: c.song),
    )
