"""The invented world behind `raypipe synth`: one frozen value, all of it decided by a seed.

Its size is fixed, so a question does not depend on how many others are asked. Nothing in it is real.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from raypipe.synth.world.film import Film, build_film
from raypipe.synth.world.market import Market, build_market
from raypipe.synth.world.music import Music, build_music
from raypipe.synth.world.names import NameSource
from raypipe.synth.world.places import TOWNS, Entity, Places, build_places, city_names
from raypipe.synth.world.sport import Sport, build_sport


@dataclass(frozen=True, slots=True)
class World:
    seed: int
    film: Film
    market: Market
    music: Music
    sport: Sport
    places: Places


def _crossing(market: Market, sport: Sport) -> list[Entity]:
    """Encyclopaedia entries for what other parts of the world have tables about: the middle of two hops."""
    rows = []
    for team in sport.teams.values():
        game = "basketball" if team.sport == "nba" else "soccer"
        rows.append(
            Entity(
                team.name,
                f"{game} team",
                f"{team.name} is a {game} team from {team.city} that plays in the {team.league}.",
                (
                    ("type", f"{game} team"),
                    ("city", team.city),
                    ("stadium", team.stadium),
                    ("founded", str(team.founded)),
                    ("nickname", team.alias),
                ),
            )
        )
    for c in market.companies:
        post = (("type", "executive"), ("company", c.name), ("role", "chief executive officer"))
        rows.append(
            Entity(c.ceo, "executive", f"{c.ceo} leads {c.name} as its chief executive officer.", post)
        )
        facts = (
            ("type", "company"),
            ("ceo", c.ceo),
            ("headquarters", c.headquarters),
            ("founded", str(c.founded)),
        )
        rows.append(
            Entity(c.name, "company", f"{c.name} is a {c.sector} company based in {c.headquarters}.", facts)
        )
    return rows


def build_world(seed: int) -> World:
    """The world of a seed. Each part has its own stream of chance, so a change in one moves no other."""

    def chance(part: str) -> Random:
        return Random(f"raypipe synth/{seed}/{part}")

    names = NameSource(chance("names"))
    cities = city_names(names)
    towns = cities[:TOWNS]
    film = build_film(chance("film"), names, towns)
    market = build_market(chance("market"), names, towns)
    music = build_music(chance("music"), names, towns)
    sport = build_sport(chance("sport"), names, cities)
    places = build_places(chance("places"), names, cities, _crossing(market, sport))
    return World(seed, film, market, music, sport, places)
