"""The invented leagues: basketball and soccer teams and their games."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random

from raypipe.contrib.world.world.names import NameSource, grouped, number, pick

NBA_TEAMS, SOCCER_TEAMS = 30, 20
LEAGUES = ("VEL-Premier League", "ORM-Liga Norte")
SUFFIXES = ("United", "Rovers", "Athletic", "Town", "Wanderers", "City", "Albion")
SHORTER = {"United": "Utd", "Athletic": "Ath", "Wanderers": "Wand", "Rovers": "Rov"}
NBA_SEASONS = ((date(2022, 10, 18), date(2023, 4, 9), 0.45), (date(2023, 10, 24), date(2024, 3, 31), 1.0))
SOCCER_START = date(2023, 8, 12)
LAST_RESULT = date(2024, 3, 15)  # day of the last result; later games are not played yet


@dataclass(frozen=True, slots=True)
class Team:
    name: str
    sport: str  # nba | soccer
    league: str
    city: str
    alias: str  # nickname or usual short form
    stadium: str
    founded: int
    mascot: str  # on pages only, not in the graph


@dataclass(frozen=True, slots=True)
class NbaGame:
    game_id: str
    season_id: str  # "2" and the season's first year, as in CRAG's mock API
    date: date
    home: str
    away: str
    pts_home: int | None  # None: not played yet
    pts_away: int | None

    @property
    def season_type(self) -> str:
        return "Regular Season"

    @property
    def wl_home(self) -> str:
        return self.side(self.home).result

    @property
    def wl_away(self) -> str:
        return self.side(self.away).result

    def side(self, team: str) -> Side:
        """Returns the game from the view of one of its teams."""
        at_home = team == self.home
        ours, theirs = (self.pts_home, self.pts_away) if at_home else (self.pts_away, self.pts_home)
        result = "" if ours is None or theirs is None else "W" if ours > theirs else "L"
        opponent = self.away if at_home else self.home
        return Side(team, self.date, opponent, at_home, ours, theirs, result, "", "19:30")


@dataclass(frozen=True, slots=True)
class Side:
    """A game from the view of one team: a row of the soccer table, or the topic of a basketball question."""

    team: str
    date: date
    opponent: str
    home: bool
    scored: int | None  # None: not played yet
    let_in: int | None  # points of the opponent; None: not played yet
    result: str  # W | L | D; "": not played yet
    captain: str  # "" in basketball
    time: str  # HH:MM, local
    league: str = ""
    round: int = 0
    referee: str = ""
    attendance: int | None = None  # None: not played yet

    @property
    def season(self) -> str:
        return "2324"

    @property
    def day(self) -> str:
        return f"{self.date:%a}"

    @property
    def venue(self) -> str:
        return "Home" if self.home else "Away"


@dataclass(frozen=True, slots=True)
class Sport:
    nba: tuple[Team, ...]
    soccer: tuple[Team, ...]
    nba_games: tuple[NbaGame, ...]
    sides: Mapping[str, tuple[Side, ...]]  # by team, both sports, in order of date
    teams: Mapping[str, Team]

    def on(self, team: str, day: date) -> Side | None:
        return next((s for s in self.sides[team] if s.date == day), None)

    def within(self, team: str, year: int, month: int) -> list[Side]:
        return [s for s in self.sides[team] if (s.date.year, s.date.month) == (year, month)]


def _teams(rng: Random, names: NameSource, cities: list[str]) -> tuple[list[Team], list[Team]]:
    homes = rng.sample(cities, NBA_TEAMS + SOCCER_TEAMS * len(LEAGUES))
    nba, soccer = [], []
    for city, animal in zip(homes, names.animals, strict=False):
        arena, founded = f"{names.coined()} Arena", number(rng, 1946, 60)
        mascot = pick(rng, names.mascots)
        nba.append(Team(f"{city} {animal}", "nba", "NBA", city, animal, arena, founded, mascot))
    for i, city in enumerate(homes[NBA_TEAMS:]):
        suffix = pick(rng, SUFFIXES)
        alias = f"{city} {SHORTER[suffix]}" if suffix in SHORTER else city
        stadium = f"{names.coined()} {pick(rng, ('Park', 'Road', 'Stadium', 'Lane'))}"
        league, founded, mascot = LEAGUES[i // SOCCER_TEAMS], number(rng, 1874, 90), pick(rng, names.mascots)
        soccer.append(Team(f"{city} {suffix}", "soccer", league, city, alias, stadium, founded, mascot))
    return nba, soccer


def _nba_games(rng: Random, teams: list[Team]) -> list[NbaGame]:
    strength = {t.name: rng.gauss(0, 4) for t in teams}
    games: list[NbaGame] = []
    for first, last, often in NBA_SEASONS:
        for n in range((last - first).days + 1):
            day, line = first + timedelta(days=n), [t.name for t in teams]
            if rng.random() > often:
                continue
            rng.shuffle(line)
            for k in range(number(rng, 4, 6)):
                home, away = line[2 * k], line[2 * k + 1]
                a, b = int(rng.gauss(113, 9) + strength[home] + 2), int(rng.gauss(113, 9) + strength[away])
                points = (a + (a == b), b) if day <= LAST_RESULT else (None, None)
                name = f"00{first.year % 100}{len(games):05d}"
                games.append(NbaGame(name, f"2{first.year}", day, home, away, *points))
    return games


def _rounds(names: list[str]) -> list[list[tuple[str, str]]]:
    """Pairs every team with every other, at home and away, by the circle method."""
    ring, half = list(names), []
    for n in range(len(ring) - 1):
        pairs = [(ring[i], ring[-1 - i]) for i in range(len(ring) // 2)]
        half.append([(a, b) if n % 2 else (b, a) for a, b in pairs])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return half + [[(b, a) for a, b in games] for games in half]


def _soccer_sides(rng: Random, names: NameSource, teams: list[Team]) -> list[Side]:
    strength = {t.name: rng.random() for t in teams}
    captains = {t.name: [names.person(), names.person()] for t in teams}
    referees = [names.person() for _ in range(8)]
    rows = []
    for league in LEAGUES:
        for n, games in enumerate(_rounds([t.name for t in teams if t.league == league])):
            for home, away in games:
                day = SOCCER_START + timedelta(weeks=n, days=int(rng.random() * 3))
                time = f"{number(rng, 12, 9)}:{pick(rng, ('00', '15', '30', '45'))}"
                referee, crowd = pick(rng, referees), number(rng, 8_000, 50_000)
                a = int(rng.expovariate(1 / (0.9 + strength[home])) + 0.4)
                b = int(rng.expovariate(1 / (0.6 + strength[away])) + 0.3)
                for us, them, ours, theirs in ((home, away, a, b), (away, home, b, a)):
                    result = "W" if ours > theirs else "L" if ours < theirs else "D"
                    captain, game = captains[us][rng.random() < 0.2], (us, day, them, us == home)
                    if day <= LAST_RESULT:
                        score = ours, theirs, result, captain
                        rows.append(Side(*game, *score, time, league, n + 1, referee, crowd))
                    else:
                        rows.append(Side(*game, None, None, "", "", time, league, n + 1))
    return rows


def build_sport(rng: Random, names: NameSource, cities: list[str]) -> Sport:
    nba, soccer = _teams(rng, names, cities)
    games = _nba_games(rng, nba)
    sides = [game.side(team) for game in games for team in (game.home, game.away)]
    sides += _soccer_sides(rng, names, soccer)
    return Sport(
        nba=tuple(nba),
        soccer=tuple(soccer),
        nba_games=tuple(games),
        sides=grouped(sides, lambda s: s.team, lambda s: s.date),
        teams={t.name: t for t in nba + soccer},
    )
