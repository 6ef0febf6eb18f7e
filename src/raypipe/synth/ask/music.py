"""Questions about artists, songs, Grammys and the chart."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from raypipe.synth.ask.core import Attempt, Scene, Shape, scene
from raypipe.synth.ask.forms import Written, age, also, articled, dated, long_date, named, years
from raypipe.synth.ask.shapes import compare, count, false, hop, several, value
from raypipe.synth.world.music import ALBUM_PRIZE, COUNTRIES, NEW_ARTIST, SONG_PRIZE, Artist

KEYS = {NEW_ARTIST: "best_new_artist", SONG_PRIZE: "best_song", ALBUM_PRIZE: "best_album"}


def _song(d: Attempt) -> Scene:
    s = d.skewed(d.world.music.songs)
    return scene(s, ("song", s.name), s=s.name, by=s.author)


def _songs(d: Attempt) -> Scene:
    a, b = d.skewed(d.world.music.songs), d.skewed(d.world.music.songs)
    return scene((a, b), ("song", a.name), ("song", b.name), a=a.name, b=b.name)


def _artist(d: Attempt) -> Scene:
    a = d.skewed(d.world.music.artists)
    return scene(a, ("artist", a.name), a=a.name)


def _works(d: Attempt) -> Scene:
    a = _artist(d)
    return a.at(d.world.music.works[a.it.name])


def _soloist(d: Attempt) -> Scene | None:
    found = _artist(d)
    day = long_date(found.it.birth_date)
    return None if found.it.group else found.at(found.it, birthday=day.rpartition(",")[0])


def _group(d: Attempt) -> Scene | None:
    found = _artist(d)
    return found if found.it.group else None


def _winner(d: Attempt) -> Scene:
    a = d.pick(list(d.world.music.won))
    return scene(d.world.music.won[a], ("artist", a), a=a)


def _prize(d: Attempt) -> Scene:
    (year, category), row = d.pick(list(d.world.music.prizes.items()))
    about = (("artist", row.artist), *((("song", row.nominee),) if category == SONG_PRIZE else ()))
    return scene(row.nominee, *about, year=str(year), spoken=category.lower(), key=KEYS[category])


def _latest(d: Attempt) -> Scene | None:
    found = _artist(d)
    works = d.world.music.works[found.it.name]
    if len(works) < 2 or works[-1].release_date == works[-2].release_date:
        return None
    return found.at(works[-1], ("song", works[-1].name))


def _charted(d: Attempt) -> Scene:
    """What stands where on the chart of this week."""
    chart = d.world.music.chart
    rank, week = 1 + d.below(10), max(c.date for c in chart if c.date <= d.now.day)
    row = next(c for c in chart if c.date == week and c.rank == rank)
    words = {"rank": str(rank), "by": row.artist, "day": long_date(row.date)}
    return scene(row, ("song", row.song), ("artist", row.artist), **words)


def _ranked(d: Attempt) -> Scene:
    song = d.pick(list(d.world.music.ranked))
    return scene(d.world.music.ranked[song][-1].top_position, ("song", song), s=song)


def _wins(d: Attempt) -> Scene:
    """How many prizes two artists won: one who won some, and any."""
    a, b = d.pick(list(d.world.music.won)), d.skewed(d.world.music.artists).name
    wins = tuple(len(d.world.music.won.get(x, ())) for x in (a, b))
    return scene(wins, ("artist", a), ("artist", b), a=a, b=b)


def _its_artist(d: Attempt, song: Scene) -> Scene:
    a = d.world.music.artist[song.it.author]
    return song.at(a, ("artist", a.name), a=a.name)


def _its_singer(d: Attempt, song: Scene) -> Scene | None:
    found = _its_artist(d, song)
    return None if found.it.group else found


def _singer_and_song(d: Attempt) -> Scene | None:
    s = d.skewed(d.world.music.songs)
    a = d.world.music.artist[s.author]
    about = ("artist", a.name), ("song", s.name)
    return None if a.group else scene((a.birth_date, s.release_date), *about, a=a.name, s=s.name)


def _old_song(d: Attempt) -> Scene | None:
    """Released a year ago or longer, on no day near this one, so that all pages agree on its age."""
    found, today = _song(d), d.now.day
    day = found.it.release_date
    near = (day.month, day.day) != (2, 29) and abs(today - day.replace(year=today.year)) < timedelta(9)
    n = years(day, today)
    return None if n < 1 or near else found.at(n)


def _unawarded(d: Attempt) -> Scene | None:
    found = _artist(d)
    return None if found.it.name in d.world.music.won else found


def _not_by(d: Attempt) -> Scene | None:
    s, a = _song(d), d.skewed(d.world.music.artists).name
    return None if s.it.author == a else s.at(None, ("artist", a), a=a)


def _home(a: Artist) -> Written:
    return also(COUNTRIES[a.birth_place], a.birth_place)


def _years_old(n: int) -> Written:
    words = f"{n} year{'s' if n > 1 else ''}"
    return Written(str(n), (words,), words)


AUTHOR = 'get_song("{s}")["author"]'
RELEASED = 'get_song("{s}")["release_date"]'
GRAMMYS = 'get_grammy_person("{a}")'
MUSIC: Mapping[str, Shape] = {
    "song_author": value(_song, lambda s: named(s.author), AUTHOR),
    "song_date": value(_song, lambda s: dated(s.release_date), RELEASED),
    "origin": value(_artist, _home, 'get_person("{a}")["birth_place"]'),
    "born": value(_soloist, lambda a: dated(a.birth_date), 'get_person("{a}")["birth_date"]'),
    "studio": value(_song, lambda s: named(s.studio)),
    "instrument": value(_soloist, lambda a: articled(a.instrument)),
    "prize_of_year": value(_prize, named, 'get_grammy_year({year})["{key}"]'),
    "latest_song": value(
        _latest,
        lambda s: named(s.name),
        'ALL get_person("{a}")["music"]',
        "ALL get_song(*)",
        'sort(None, -release_date)["name"][:1]',
    ),
    # No call reaches the chart.
    "chart_top": value(_charted, lambda row: also(row.song, f"{row.song} by {row.artist}")),
    "chart_peak": value(_ranked, lambda top: also(str(top), f"number {top}")),
    "first_released": compare(_songs, lambda s: s.release_date, "least", 'get_song("{x}")["release_date"]'),
    "more_grammys": compare(_wins, lambda n: n, "most", 'get_grammy_person("{x}")["award_count"]'),
    "grammy_count": count(_winner, len, f'{GRAMMYS}["award_count"]'),
    "member_count": count(_group, lambda a: len(a.members), 'get_person("{a}")["members"]["len"]'),
    "song_count": count(_works, len, 'get_person("{a}")["music"]["len"]'),
    "members": several(_group, lambda a: a.members, 'ALL get_person("{a}")["members"]'),
    "award_years": several(
        _winner, lambda won: sorted({g.year for g in won}), f'ALL {GRAMMYS}["award_date"]', least=2
    ),
    "author_origin": hop(_song, _its_artist, _home, AUTHOR, 'get_person(*)["birth_place"]'),
    "author_birth": hop(
        _song, _its_singer, lambda a: dated(a.birth_date), AUTHOR, 'get_person(*)["birth_date"]'
    ),
    "age_at_release": value(
        _singer_and_song,
        lambda days: age(*days),
        'get_person("{a}")["birth_date"]',
        RELEASED,
        rule="years_between",
    ),
    "years_since": value(_old_song, _years_old, RELEASED, rule="years_since"),
    "false_grammy": false(_unawarded, f'{GRAMMYS}["award_date"]'),
    "false_song": false(
        _not_by, 'ALL get_song("{s}")', 'sort(eq(author, "{a}"), release_date)["release_date"][:1]'
    ),
}
