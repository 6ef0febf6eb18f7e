"""Questions about games and teams: one fact, asked with or without a condition."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from raypipe.synth.ask.core import Asked, Now, dated, long_date, quoted
from raypipe.synth.world.market import SNAPSHOT
from raypipe.synth.world.names import pick, skewed
from raypipe.synth.world.sport import Side, Team
from raypipe.synth.world.world import World

MONTHS = ((2023, 11), (2023, 12), (2024, 1), (2024, 2))
RESULTS = {"W": "won", "L": "lost", "D": "drew"}


def call(t: Team) -> str:
    return "get_nba_on_date" if t.sport == "nba" else "get_soccer_on_date"


def some_team(w: World, r: Random, sport: str = "") -> Team:
    teams = {"nba": w.sport.nba, "soccer": w.sport.soccer, "": w.sport.nba + w.sport.soccer}[sport]
    return skewed(r, teams)


def some_game(w: World, r: Random, sport: str = "") -> tuple[Team, Side]:
    """A team and one of its games before the questions are asked."""
    t = some_team(w, r, sport)
    return t, pick(r, [s for s in w.sport.sides[t.name] if s.date <= SNAPSHOT])


def unit(t: Team) -> str:
    return "points" if t.sport == "nba" else "goals"


def told(t: Team, s: Side) -> str:
    where = "at home" if s.home else "away"
    outcome = f"{RESULTS[s.result]} {s.scored}-{s.let_in}"
    return f"On {long_date(s.date)} {t.name} {outcome} {where} against {s.opponent}."


def refs(w: World, *teams: str) -> tuple[tuple[str, str], ...]:
    return tuple(("team", t) for t in teams)


def neighbours(w: World, t: Team, now: Now) -> tuple[Side | None, Side | None]:
    """The last game before and the first game after the question's day; none if one is on that day."""
    sides = w.sport.sides[t.name]
    if any(s.date == now.day for s in sides):
        return None, None
    return (
        next((s for s in reversed(sides) if s.date < now.day), None),
        next((s for s in sides if s.date > now.day), None),
    )


def points_on(w: World, r: Random, now: Now) -> Asked | None:
    t, s = some_game(w, r)
    long = long_date(s.date)
    said = (f"{t.name} scored {s.scored} {unit(t)} on {long} against {s.opponent}.", told(t, s))
    return Asked(
        {"t": t.name, "unit": unit(t), "day": long},
        str(s.scored),
        (f"{s.scored} {unit(t)}",),
        said,
        refs(w, t.name, s.opponent),
        frozenset({"games"}),
        f'{call(t)}({quoted(t.name)}, "{s.date}")["GF"]',
    )


def opponent_on(w: World, r: Random, now: Now) -> Asked | None:
    t, s = some_game(w, r)
    said = (f"On {long_date(s.date)} {t.name} faced {s.opponent}.", told(t, s))
    return Asked(
        {"t": t.name, "day": long_date(s.date)},
        s.opponent.lower(),
        (),
        said,
        refs(w, t.name, s.opponent),
        frozenset({"games"}),
        f'{call(t)}({quoted(t.name)}, "{s.date}")["opponent"]',
    )


def captain_on(w: World, r: Random, now: Now) -> Asked | None:
    t, s = some_game(w, r, "soccer")
    said = (
        f"{s.captain} captained {t.name} on {long_date(s.date)}.",
        f"Against {s.opponent} on {long_date(s.date)} the captain of {t.name} was {s.captain}.",
    )
    return Asked(
        {"t": t.name, "day": long_date(s.date), "o": s.opponent},
        s.captain.lower(),
        (),
        said,
        refs(w, t.name, s.opponent),
        frozenset({"games"}),
        f'get_soccer_on_date({quoted(t.name)}, "{s.date}")["Captain"]',
    )


def stadium(w: World, r: Random, now: Now) -> Asked | None:
    t = some_team(w, r)
    said = (f"{t.name} play their home games at {t.stadium}.", f"The home of {t.name} is {t.stadium}.")
    return Asked(
        {"t": t.name},
        t.stadium.lower(),
        (),
        said,
        refs(w, t.name),
        frozenset({"stadium"}),
        f'get_open({quoted(t.name)})["stadium"]',
    )


def mascot(w: World, r: Random, now: Now) -> Asked | None:
    t = some_team(w, r)
    said = (f"The mascot of {t.name} is {t.mascot}.", f"Children love the mascot of {t.name}, {t.mascot}.")
    return Asked(
        {"t": t.name}, t.mascot, (t.mascot.split(" ", 1)[1],), said, refs(w, t.name), frozenset({"mascot"})
    )


def points_yesterday(w: World, r: Random, now: Now) -> Asked | None:
    t = some_team(w, r, "nba")
    s = w.sport.on(t.name, now.day - timedelta(days=1))
    if s is None:
        return None
    said = (f"{t.name} scored {s.scored} points on {long_date(s.date)}.", told(t, s))
    return Asked(
        {"t": t.name},
        str(s.scored),
        (f"{s.scored} points",),
        said,
        refs(w, t.name, s.opponent),
        frozenset({"games"}),
        f'get_nba_on_date({quoted(t.name)}, "yesterday")["GF"]',
    )


def last_game(w: World, r: Random, now: Now) -> Asked | None:
    t = some_team(w, r, "soccer")
    s, _ = neighbours(w, t, now)
    if s is None:
        return None
    said = (f"In their last game {t.name} played against {s.opponent}.", told(t, s))
    return Asked(
        {"t": t.name},
        s.opponent.lower(),
        (),
        said,
        refs(w, t.name, s.opponent),
        frozenset({"games"}),
        f'get_soccer_last_game({quoted(t.name)})["opponent"]',
    )


def next_game(w: World, r: Random, now: Now) -> Asked | None:
    t = some_team(w, r, "soccer")
    _, s = neighbours(w, t, now)
    if s is None:
        return None
    said = (
        f"{t.name} will play next on {long_date(s.date)}, against {s.opponent}.",
        f"Next game of {t.name}: {long_date(s.date)}, {s.time}, {s.opponent}.",
    )
    return Asked(
        {"t": t.name},
        *dated(s.date),
        said,
        refs(w, t.name, s.opponent),
        frozenset({"games"}),
        f'get_soccer_next_game({quoted(t.name)})["date"]',
    )
