"""Checks of fields that several steps share. A step runs them when its recipe is read."""

from __future__ import annotations

from collections.abc import Iterable

from raypipe.core.errors import ModelMissing
from raypipe.core.protocols import FIELDS, Model
from raypipe.text.template import REPLY, ByLabel, Prompt


def require_positive(step: object, *names: str) -> None:
    """Raises ValueError if one of the named fields is below 1. None, an unset field, passes."""
    for name in names:
        if (value := getattr(step, name)) is not None and value < 1:
            raise ValueError(f"{name}: expected at least 1, found {value}")


def require_prompt(model: Model, prompts: Iterable[Prompt], own: Iterable[str]) -> None:
    """Raises ValueError if `model` does not generate text, or if a prompt uses an unknown variable. A prompt
    may use the fields `FIELDS` of a question, its replies, and `own`, the step's variables."""
    if model.kind != "generator":
        raise ValueError(f"model: expected a generator, found {model.name!r} of kind {model.kind}")
    known = FIELDS.union(own)
    for name in (n for prompt in prompts for n in prompt.variables):
        if name not in known and not name.startswith(REPLY):
            expected = f"{', '.join(sorted(known))}, {REPLY}NAME or, of a generate step, a name in fill"
            raise ValueError(
                f"prompt: it uses {name!r}, which is no field of a question; expected {expected}"
            )


def require_adapters(model: Model, choice: ByLabel[str | None]) -> None:
    """Raises ModelMissing if the model lacks a chosen adapter. The message has the command that trains it."""
    known = {name for name, _ in model.adapters}
    for adapter in choice.values():
        if adapter is not None and adapter not in known:
            has = f"{model.name!r} has no adapter {adapter!r}; it has {', '.join(sorted(known)) or 'none'}"
            train = f"raypipe finetune {adapter} --labels DIR --base {model.name} (DIR from `raypipe labels`)"
            raise ModelMissing(
                f"adapter: {has}. Get it with: {train}; then pass the models file that it writes as --models"
            )
