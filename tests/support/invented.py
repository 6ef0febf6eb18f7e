"""Sentences about an invented world, to train tiny tokenizers on and to ask tiny models about."""

from __future__ import annotations

import random

NAMES = [
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "harbor",
    "island",
    "juniper",
    "kestrel",
]
HOUSES = ["society", "museum", "school"]
THINGS = ["bridges", "ships", "letters", "maps", "songs", "goals", "films", "towers", "gardens", "ledgers"]
DEEDS = ["built", "found", "sold", "painted", "measured", "crossed", "guarded", "mapped", "repaired"]


def sentences(count: int, seed: int = 7) -> list[str]:
    rng = random.Random(seed)
    some = rng.choice
    return [
        f"In {rng.randrange(1900, 2020)} the {some(NAMES)} {some(HOUSES)} {some(DEEDS)} "
        f"{rng.randrange(2, 900)} {some(THINGS)} near {some(NAMES).title()} Bay."
        for _ in range(count)
    ]


def text(count: int, seed: int) -> str:
    return " ".join(sentences(count, seed))
