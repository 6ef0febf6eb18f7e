"""The templates of all domains, and the question at each position of a world. Does not depend on pages.

A template combines a shape of its domain's module with wording from `words/DOMAIN.yaml`.

The mix of domains and types is close to CRAG's. Question i depends only on the world and on i, so a dataset
of two hundred questions begins with the same twenty as a dataset of twenty.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from typing import Any
from uuid import UUID

from raypipe.contrib.world.ask.finance import FINANCE
from raypipe.contrib.world.ask.movie import MOVIE
from raypipe.contrib.world.ask.music import MUSIC
from raypipe.contrib.world.ask.open import OPEN
from raypipe.contrib.world.ask.sports import SPORTS
from raypipe.contrib.world.ask.templates import INVALID, Attempt, DrawnQuestion, Now, Ref, Template
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

# Steps in domain and type. Multiples of irrational numbers spread evenly, so that twenty questions already
# have about the right mix.
STEPS = (0.7548776662466927, 0.5698402909980532)


@functools.cache
def templates() -> tuple[Template, ...]:
    """Returns all templates in the order of their files. The random draws depend on this order."""
    return tuple(
        Template(f"{domain}.{name}", shapes[name], **frozen(said))
        for domain, shapes in SHAPES.items()
        for name, said in wording(domain).items()
    )


@dataclass(frozen=True, slots=True)
class SynthQuestion:
    """A question of the dataset, without its pages."""

    number: int  # from 0
    id: str  # a uuid
    now: Now
    template: Template
    phrasing: int  # index in the template's phrasings
    text: str  # lower case
    asked: DrawnQuestion
    withheld: bool  # the answer is on no page
    split: int  # 0 validation, 1 public test
    popularity: str  # head, torso or tail

    @property
    def premise_false(self) -> bool:
        return self.asked.answer == INVALID

    @property
    def kg_answerable(self) -> bool:
        """Returns whether program and rule give the answer. The graph cannot answer a false premise."""
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
    """Returns head, torso or tail: the subject's place in its kind. Early subjects get more questions."""
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


def pose(world: World, position: int) -> SynthQuestion:
    """Returns the question at a position of a world, counted from 0."""
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
    return SynthQuestion(
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
