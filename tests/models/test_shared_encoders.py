"""An embedder and a MaxSim of one folder: one network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raypipe.core.protocols import Model
from raypipe.models import load
from raypipe.models.catalog import Catalog
from raypipe.models.device import SharedEncoders

Pair = tuple[Model, Model]


@pytest.fixture
def pair(entries: Callable[..., Catalog], tiny: Callable[[str, bool], Path]) -> Pair:
    """An embedder and a MaxSim over the same weights."""
    of = {"path": str(tiny("bert", False)), "max_tokens": 64}
    embedder = {"kind": "embedder", "loader": "flagembedding", "dim": 32, "pooling": "mean", **of}
    models = entries(e=embedder, m={"kind": "reranker", "loader": "maxsim", **of})
    return models.model("e"), models.model("m")


def forwards(encoders: SharedEncoders, model: Model) -> list[int]:
    """Grows by the texts of each forward pass of the network of these weights."""
    seen: list[int] = []
    encoder = encoders.encoder(model, lambda: pytest.fail("the network is not loaded"))  # type: ignore[arg-type]

    def note(net: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        in_one_row = sum(count for _, count in args[-1]) if args else 0
        seen.append(in_one_row or len(kwargs["input_ids"]))

    encoder.net.register_forward_pre_hook(note, with_kwargs=True)  # type: ignore[attr-defined]
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["transformers", "flagembedding"])
def test_one_folder_is_loaded_once_for_both(pair: Pair, texts: list[str], backend: str) -> None:
    encoders = SharedEncoders()
    embed = load.open_model(pair[0], backend, "cpu", encoders)  # type: ignore[arg-type]
    score = load.open_model(pair[1], backend, "cpu", encoders)  # type: ignore[arg-type]
    seen = forwards(encoders, pair[1])
    score.score([("one", texts[3])])
    assert sum(seen) == 2
    embed.embed(texts[:1], "passage")
    assert sum(seen) > 2, "the same network answers the embedder (FlagEmbedding tries a batch first)"
    del embed, score
    gone = SharedEncoders()
    assert encoders.encoder(pair[0], lambda: gone) is gone, "no model uses it, so it is not held"
