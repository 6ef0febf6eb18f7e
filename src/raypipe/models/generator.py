"""Checks of a vLLM model's files before its engine starts, beyond those of every model (`folder.require`).

Everything is checked before an engine process exists, so that a mistake fails at once and says what to do:
whole weights, a chat template, a max_model_len that fits, adapters of this very model. And the marks of a
chat template, kept out of what messages say, for serving and training alike. Imports no model library.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.protocols import Model
from raypipe.models import folder
from raypipe.models.adapter_check import RANKS, check_adapter, max_rank
from raypipe.models.folder import ADAPTER, WEIGHTS, json_object, matching, text_config
from raypipe.models.weight_files import headers

INDEX = "model.safetensors.index.json"
TEMPLATE = "chat_template.jinja"


def check(model: Model) -> None:
    """Raises ModelMissing for files that are not here, ConfError for what must not or cannot be started."""
    place = folder.require(model)
    _check_weights(place)
    if not (place / TEMPLATE).is_file() and not json_object(place / "tokenizer_config.json").get(
        "chat_template"
    ):
        mend = f"Use the model's chat or instruct version, or put the template of its family in {TEMPLATE}"
        if model.repo:
            mend = f"Fetch it again: {folder.download_command(model.repo, model.revision)}. {mend}"
        raise ConfError(
            f"{place}: its tokenizer has no chat template, so there is no telling how it wants to be asked. "
            f"{mend}"
        )
    _check_length(model, place)
    for name, adapter in model.adapter_folders().items():
        check_adapter(name, Path(adapter), place, model.weights)


def rank(model: Model) -> int:
    """The smallest `max_lora_rank` of vLLM that fits every adapter's rank."""
    most = max(max_rank(json_object(Path(path) / ADAPTER[0])) for path in model.adapter_paths)
    return next(rank for rank in RANKS if rank >= most)


def _check_weights(place: Path) -> None:
    if (place / INDEX).is_file():
        named = set(json_object(place / INDEX).get("weight_map", {}).values())
        if missing := sorted(name for name in named if not (place / name).is_file()):
            raise ModelMissing(f"{place}: {INDEX} names {', '.join(missing)}, which are not here. Fetch them")
    for shard in matching(place, (WEIGHTS,)):
        headers(shard)  # whole


def _check_length(model: Model, place: Path) -> None:
    if model.max_model_len < 16:
        raise ConfError(f"{place}: max_model_len: expected at least 16 tokens, found {model.max_model_len}")
    text = text_config(json_object(place / "config.json"))
    most = text.get("max_position_embeddings")
    stretched = "factor" in (text.get("rope_parameters") or text.get("rope_scaling") or {})
    if isinstance(most, int) and model.max_model_len > most and not stretched:
        raise ConfError(
            f"{place}: max_model_len: the model was made for {most} tokens, found {model.max_model_len}. "
            f"Lower it to {most}, or take a model that holds more"
        )


def marks_of(tokenizer: Any) -> re.Pattern[str]:
    """What a transformers tokenizer reads as marks of its own: an end of turn, a role."""
    marks = sorted({*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, marks)) or r"(?!)")


def harmless(marks: re.Pattern[str], content: str) -> str:
    """A message's text in which marks have a space after their first character, so no page and no question
    can forge a turn.

    >>> harmless(re.compile("<.end.>"), "so <|end|> it")
    'so < |end|> it'
    """
    while found := marks.search(content):
        content = f"{content[: found.start() + 1]} {content[found.start() + 1 :]}"
    return content
