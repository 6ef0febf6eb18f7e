"""The invented world of `raypipe synth`: one frozen value, computed from a seed.

Its size is fixed, so no question depends on the number of questions. Nothing in it is real.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from raypipe.contrib.world.world.film import Film, build_film
from raypipe.contrib.world.world.market import Market, build_market
from raypipe.contrib.world.world.music import Music, build_music
from raypipe.contrib.world.world.names import NameSource
from raypipe.contrib.world.world.places import TOWNS, Entity, Places, build_places, city_names, entity
from raypipe.contrib.world.world.sport import Sport, build_sport


@dataclass(frozen=True, slots=True)
class World:
    seed: int
    film: Film
    market: Market
    music: Music
    sport: Sport
    places: Places


def _crossing(market: Market, sport: Sport) -> Iterator[Entity]:
    """Yields encyclopaedia entries of teams, executives and companies. Multi-hop questions use them."""
    for team in sport.teams.values():
        kind = "basketball team" if team.sport == "nba" else "soccer team"
        facts = {"city": team.city, "stadium": team.stadium, "founded": team.founded, "nickname": team.alias}
        yield entity(team.name, kind, facts, league=team.league)
    for c in market.companies:
        yield entity(c.ceo, "executive", {"company": c.name, "role": "chief executive officer"})
        facts = {"ceo": c.ceo, "headquarters": c.headquarters, "founded": c.founded}
        yield entity(c.name, "company", facts, sector=c.sector)


def build_world(seed: int) -> World:
    """Builds the world of a seed. Each part has its own random stream, so its changes do not shift others."""

    def chance(part: str) -> Random:
        return Random(f"raypipe synth/{seed}/{part}")

    names = NameSource(chance("names"))
    cities = city_names(names)
    towns = cities[:TOWNS]
    film = build_film(chance("film"), names, towns)
    market = build_market(chance("market"), names, towns)
    music = build_music(chance("music"), names, towns)
    sport = build_sport(chance("sport"), names, cities)
    places = build_places(chance("places"), names, cities, list(_crossing(market, sport)))
    return World(seed, film, market, music, sport, places)
