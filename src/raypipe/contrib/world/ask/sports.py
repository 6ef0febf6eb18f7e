"""Questions about games and teams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, timedelta

from raypipe.contrib.world.ask import spellings
from raypipe.contrib.world.ask.spellings import long_date, named
from raypipe.contrib.world.ask.templates import (
    Attempt,
    Drawer,
    Scene,
    Shape,
    compare,
    count,
    false,
    scene,
    several,
    then,
    two,
    value,
)
from raypipe.contrib.world.world.market import SNAPSHOT
from raypipe.contrib.world.world.sport import Side, Team

MONTHS = ((2023, 11), (2023, 12), (2024, 1), (2024, 2))
RESULTS = {"W": "won", "L": "lost", "D": "drew"}


def _some(d: Attempt, sport: str = "") -> Team:
    sports = d.world.sport
    return d.skewed({"nba": sports.nba, "soccer": sports.soccer}.get(sport, sports.nba + sports.soccer))


def _team(sport: str = "") -> Callable[[Attempt], Scene]:
    """Returns a drawer of a team. `sport`: nba or soccer; "": any."""

    def drawer(d: Attempt) -> Scene:
        t = _some(d, sport)
        nba = t.sport == "nba"
        words = {"unit": "points" if nba else "goals", "call": f"get_{t.sport}_on_date"}
        return scene(t, ("team", t.name), t=t.name, **words)

    return drawer


_teams = two(lambda w: w.sport.nba + w.sport.soccer, "team")


def _in_words(s: Side) -> dict[str, str]:
    """Returns the words for sentences about a game that was played."""
    where = "at home" if s.home else "away"
    return {"outcome": f"{RESULTS[s.result]} {s.scored}-{s.let_in}", "where": where, "met": s.opponent}


def _with_game(team: Scene, s: Side) -> Scene:
    words = _in_words(s) if s.result else {"met": s.opponent}
    about = ("team", s.opponent)
    return team.at(s, about, day=long_date(s.date), iso=str(s.date), o=s.opponent, **words)


def _a_game(d: Attempt, team: Scene) -> Side:
    """Draws one of the team's games, played before the first question's day."""
    return d.pick([s for s in d.world.sport.sides[team.it.name] if s.date <= SNAPSHOT])


def _game(sport: str = "") -> Drawer:
    return then(_team(sport), lambda d, team: _with_game(team, _a_game(d, team)))


def _yesterday(d: Attempt, team: Scene) -> Scene | None:
    s = d.world.sport.on(team.it.name, d.now.day - timedelta(days=1))
    return _with_game(team, s) if s else None


def _neighbour(d: Attempt, team: str, after: bool) -> Side | None:
    """Returns a team's last game before the question's day, or its next. None if it plays on that day."""
    sides = d.world.sport.sides[team]
    if any(s.date == d.now.day for s in sides):
        return None
    if after:
        return next((s for s in sides if s.date > d.now.day), None)
    return next((s for s in reversed(sides) if s.date < d.now.day), None)


def _before(d: Attempt, team: Scene) -> Scene | None:
    s = _neighbour(d, team.it.name, after=False)
    return _with_game(team, s) if s else None


_last = then(_team("soccer"), _before)


def _next(d: Attempt, team: Scene) -> Scene | None:
    s = _neighbour(d, team.it.name, after=True)
    return _with_game(team, s).at(s, time=s.time) if s else None


def _its_next(d: Attempt, last: Scene) -> Scene | None:
    """Follows a game to the next game of its opponent."""
    s = _neighbour(d, last.it.opponent, after=True)
    return last.at(s, day=long_date(s.date)) if s else None


def _another(d: Attempt, found: Scene) -> Scene | None:
    sport, s = d.world.sport, found.it
    others = [x.name for x in sport.nba if x.name not in (s.team, s.opponent) and sport.on(x.name, s.date)]
    if not others:
        return None
    o = d.pick(others)
    about = ("team", s.team), ("team", o)
    words = {"a": s.team, "b": o, "day": long_date(s.date), "iso": str(s.date)}
    return scene((s, sport.on(o, s.date)), *about, **words)


def _month(sport: str = "") -> Callable[[Attempt], Scene]:
    def drawer(d: Attempt) -> Scene:
        team, (year, number) = _team(sport)(d), d.pick(MONTHS)
        games = d.world.sport.within(team.it.name, year, number)
        return team.at(games, month=f"{date(year, number, 1):%B %Y}", iso=f"{year}-{number:02d}")

    return drawer


_home = then(
    _team(), lambda d, t: t.at(d.world.places.named[t.it.city], ("entity", t.it.city), city=t.it.city)
)


def _no_game(d: Attempt, team: Scene) -> Scene | None:
    day = date(2023, 11, 1) + timedelta(days=d.below(120))
    if d.world.sport.on(team.it.name, day):
        return None
    near = next(s for s in d.world.sport.sides[team.it.name] if s.date > day)
    return team.at(None, day=long_date(day), iso=str(day), near=long_date(near.date), **_in_words(near))


def _not_met(d: Attempt, t: Scene) -> Scene | None:
    s, other = _a_game(d, t), _some(d, t.it.sport)
    if other.name in (t.it.name, s.opponent) or other.league != t.it.league:
        return None
    words = {"day": long_date(s.date), "iso": str(s.date), **_in_words(s)}
    return t.at(None, ("team", other.name), o=other.name, **words)


def _mean(games: list[Side]) -> spellings.Spelling | None:
    scored = [s.scored for s in games if s.scored is not None]
    return spellings.decimal(round(sum(scored) / len(scored), 2)) if len(scored) > 2 else None


SPORTS: Mapping[str, Shape] = {
    "points_on": value(
        then(_game(), lambda d, g: g.at((g.it.scored, g.words["unit"]))),
        lambda pair: spellings.units(*pair),
    ),
    "opponent_on": value(_game(), lambda s: named(s.opponent)),
    "captain_on": value(_game("soccer"), lambda s: named(s.captain)),
    "stadium": value(_team(), lambda t: named(t.stadium)),
    "mascot": value(_team(), lambda t: spellings.articled(t.mascot)),
    "points_yesterday": value(then(_team("nba"), _yesterday), lambda s: spellings.units(s.scored, "points")),
    "last_game": value(_last, lambda s: named(s.opponent)),
    "next_game": value(then(_team("soccer"), _next), lambda s: spellings.dated(s.date)),
    "scored_more": compare(then(_game("nba"), _another), lambda s: s.scored),
    "founded_first": compare(_teams, lambda t: t.founded),
    "wins_in_month": count(_month(), lambda games: sum(s.result == "W" for s in games)),
    "mean_points": value(_month(), _mean),
    "opponents_in_month": several(_month("soccer"), lambda games: [s.opponent for s in games], least=2),
    "last_then_next": value(then(_last, _its_next), lambda s: named(s.opponent)),
    "city_population": value(_home, lambda city: spellings.counted(city.number("population"))),
    "margin": value(_game("nba"), lambda s: spellings.units(abs(s.scored - s.let_in), "points")),
    "founded_apart": value(_teams, lambda pair: spellings.apart(*(t.founded for t in pair))),
    "false_game": false(then(_team(), _no_game)),
    "false_opponent": false(then(_team(), _not_met)),
}
