"""Labels for tiny models: sentences of an invented world, half of the questions without an answer."""

from __future__ import annotations

import random

from checkout import ROOT

from raypipe.contrib.finetune.label_files import Label
from raypipe.core.conf import Conf
from raypipe.core.llm import Message

CONF = Conf((ROOT / "conf",))
"""Where presets are looked up."""
SYSTEM = "answer or abstain"
NAMES = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbor")
THINGS = ("bridges", "ships", "letters", "maps", "songs", "towers", "gardens")


def sentences(count: int) -> list[str]:
    draw = random.Random(7)
    return [
        f"In {draw.randrange(1900, 2020)} the {draw.choice(NAMES)} school built {draw.randrange(2, 900)} "
        f"{draw.choice(THINGS)}."
        for _ in range(count)
    ]


def examples(count: int) -> list[Label]:
    """Every second one has an answer, every fourth is held out."""
    found = []
    for i, sentence in enumerate(sentences(count)):
        asked = sentence.split()[3] if i % 2 else "nothing"
        chat = (Message("system", SYSTEM), Message("user", f"{sentence} what of {asked}?"))
        answer = sentence.split()[1] if i % 2 else "i don't know"
        found.append(Label(f"q{i}", chat, answer, "3.1", "open", "held-out" if i % 4 == 3 else "train"))
    return found
