"""The templates, and question i of a world: its template, instance and wording. Knows no page.

A template is a shape, by domain, with its wording from `words/DOMAIN.yaml`.

The mix of domains and types is close to that of the CRAG benchmark. Question i depends on the world and i
alone, so the first twenty of two hundred questions are the twenty.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from typing import Any
from uuid import UUID

from raypipe.contrib.world.ask.core import INVALID, Asked, Attempt, Now, Ref, Template
from raypipe.contrib.world.ask.finance import FINANCE
from raypipe.contrib.world.ask.movie import MOVIE
from raypipe.contrib.world.ask.music import MUSIC
from raypipe.contrib.world.ask.open import OPEN
from raypipe.contrib.world.ask.sports import SPORTS
from raypipe.contrib.world.world.names import frozen, number, wording
from raypipe.contrib.world.world.world import World

SHAPES = {"movie": MOVIE, "finance": FINANCE, "music": MUSIC, "sports": SPORTS, "open": OPEN}

DOMAIN_SHARES: Mapping[str, float] = {
    "finance": 0.24,
    "sports": 0.19,
    "music": 0.14,
    "movie": 0.25,
    "open": 0.18,
}
TYPE_SHARES: Mapping[str, float] = {
    "simple": 0.26,
    "simple_w_condition": 0.15,
    "comparison": 0.13,
    "aggregation": 0.11,
    "set": 0.09,
    "multi-hop": 0.10,
    "post-processing": 0.05,
    "false_premise": 0.11,
}
WITHHELD = 0.1  # share of questions whose answer is on no page
FIRST_ASKED, DAYS = date(2024, 3, 5), 10

# Two irrational steps fill the square of shares evenly, so that twenty questions already look like the mix.
STEPS = (0.7548776662466927, 0.5698402909980532)


@functools.cache
def templates() -> tuple[Template, ...]:
    """In the order of their files; chance depends on it."""
    return tuple(
        Template(f"{domain}.{name}", shapes[name], **frozen(said))
        for domain, shapes in SHAPES.items()
        for name, said in wording(domain).items()
    )


@dataclass(frozen=True, slots=True)
class Posed:
    """A question of the dataset, without its pages."""

    number: int  # from 0
    id: str  # a uuid
    now: Now
    template: Template
    phrasing: int  # position in the template's phrasings
    text: str  # lower case
    asked: Asked
    withheld: bool  # the answer is on no page
    split: int  # 0 validation, 1 public test
    popularity: str  # head, torso or tail

    @property
    def premise_false(self) -> bool:
        return self.asked.answer == INVALID

    @property
    def kg_answerable(self) -> bool:
        """Its program and rule give the answer. False for a false premise, which a graph cannot answer."""
        return bool(self.asked.program) and not self.premise_false


def _at(point: float, shares: Mapping[str, float]) -> str:
    reached = 0.0
    for name, share in shares.items():
        reached += share
        if point < reached:
            return name
    return name


def _moment(rng: Random) -> Now:
    day = FIRST_ASKED + timedelta(days=number(rng, 0, DAYS))
    return Now(day, f"{number(rng, 6, 15):02d}:{number(rng, 0, 60):02d}:{number(rng, 0, 60):02d}")


def _popularity(world: World, ref: Ref) -> str:
    """By the subject's place among its kind: questions are drawn more often from the front."""
    kind, name = ref
    known: Mapping[str, Sequence[Any]] = {
        "movie": world.film.movies,
        "person": world.film.people,
        "artist": world.music.artists,
        "song": world.music.songs,
        "company": world.market.companies,
    }
    if kind == "team":
        rows: Sequence[Any] = getattr(world.sport, world.sport.teams[name].sport)
    else:
        rows = known.get(kind) or world.places.kinds[world.places.named[name].kind]
    place = [row.name for row in rows].index(name) / len(rows)
    return "head" if place < 0.1 else "torso" if place < 0.5 else "tail"


def pose(world: World, position: int) -> Posed:
    """The question at a position of a world, from 0."""
    start = Random(f"raypipe synth/{world.seed}/mix")
    x, y = ((start.random() + step * position) % 1.0 for step in STEPS)
    domain, kind = _at(x, DOMAIN_SHARES), _at(y, TYPE_SHARES)
    rng = Random(f"raypipe synth/{world.seed}/question/{position}")
    able = [t for t in templates() if t.domain == domain and t.type == kind]
    while True:
        now = _moment(rng)
        [template] = rng.choices(able, weights=[t.weight for t in able])
        asked = template.ask(Attempt(world, rng, now))
        if asked is not None:
            break
    phrasing = int(rng.random() * len(template.phrasings))
    return Posed(
        number=position,
        id=str(UUID(int=rng.getrandbits(128), version=4)),
        now=now,
        template=template,
        phrasing=phrasing,
        text=template.phrasings[phrasing].format(**asked.slots).lower(),
        asked=asked,
        withheld=rng.random() < WITHHELD,
        split=int(rng.random() < 0.5),
        popularity=_popularity(world, asked.about[0]),
    )
