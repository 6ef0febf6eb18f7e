"""Which LoRA adapter answers a row, and one call for each adapter that a batch needs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from raypipe.core.errors import ModelMissing
from raypipe.core.llm import Chat, Generated, Generator, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import Fault, Question
from raypipe.text.by_label import ByLabel

AdapterChoice = ByLabel[str | None]
"""An adapter of the model for each label of an earlier reply; None: the model without one."""


def require_adapters(model: Model, choice: AdapterChoice) -> None:
    """Raises ModelMissing for an adapter that the model does not have, with the command that makes it."""
    known = {name for name, _ in model.adapters}
    for adapter in choice.values():
        if adapter is not None and adapter not in known:
            raise ModelMissing(
                f"adapter: {model.name!r} has no adapter {adapter!r}; it has "
                f"{', '.join(sorted(known)) or 'none'}. Get it with: raypipe finetune {adapter} --labels DIR "
                f"--base {model.name}, where DIR is what `raypipe labels` made; then name the models file "
                f"that it writes with --models"
            )


async def ask_by_adapter(
    generate: Generator,
    questions: Sequence[Question],
    chats: Sequence[Chat],
    sampling: Sampling,
    choice: AdapterChoice,
) -> list[Generated | Fault]:
    """The replies to the chats of these questions, in order: one call for each adapter, all at once."""
    adapters = [choice.of(q) for q in questions]
    rows = {a: [i for i, x in enumerate(adapters) if x == a] for a in dict.fromkeys(adapters)}
    calls = [generate([chats[i] for i in at], sampling, adapter) for adapter, at in rows.items()]
    said: dict[int, Generated | Fault] = {}
    for at, found in zip(rows.values(), await asyncio.gather(*calls), strict=True):
        said.update(zip(at, found, strict=True))
    return [said[i] for i in range(len(chats))]
