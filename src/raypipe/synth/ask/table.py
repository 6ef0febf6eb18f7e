"""All question templates: shapes by domain, with their wording from `words/DOMAIN.yaml`."""

from __future__ import annotations

import functools

from raypipe.synth.ask.core import Template
from raypipe.synth.ask.finance import FINANCE
from raypipe.synth.ask.movie import MOVIE
from raypipe.synth.ask.music import MUSIC
from raypipe.synth.ask.open import OPEN
from raypipe.synth.ask.sports import SPORTS
from raypipe.synth.wording import wording

SHAPES = {"movie": MOVIE, "finance": FINANCE, "music": MUSIC, "sports": SPORTS, "open": OPEN}


@functools.cache
def templates() -> tuple[Template, ...]:
    """In the order of their files; chance depends on it."""
    return tuple(
        Template(
            id=f"{domain}.{name}",
            type=said["type"],
            dynamism=said["dynamism"],
            weight=said.get("weight", 1),
            tells=tuple(said["tells"]),
            phrasings=tuple(said["phrasings"]),
            sentences=tuple(said["sentences"]),
            shape=shapes[name],
        )
        for domain, shapes in SHAPES.items()
        for name, said in wording(domain).items()
    )
