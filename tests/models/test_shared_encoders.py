"""An embedder and a MaxSim of one folder: one network, and each text goes through it once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raypipe.core.protocols import Model
from raypipe.models import load
from raypipe.models.catalog import Catalog
from raypipe.models.kit import LocalKit
from raypipe.models.shared_encoders import SharedEncoders, TokenVectors

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
@pytest.mark.parametrize("first", ["embedder", "maxsim"])
def test_what_one_model_encoded_the_other_does_not_encode_again(
    pair: Pair, texts: list[str], first: str
) -> None:
    embedder, maxsim = pair
    alone = [
        load.open_model(embedder, "transformers", "cpu").embed(texts, "passage"),
        load.open_model(maxsim, "transformers", "cpu").score([(texts[3], t) for t in texts]),
    ]
    encoders = SharedEncoders()
    for model in pair:
        encoders.expect(model)
    embed = load.open_model(embedder, "transformers", "cpu", encoders)
    score = load.open_model(maxsim, "transformers", "cpu", encoders)
    seen = forwards(encoders, embedder)
    calls = [lambda: embed.embed(texts, "passage"), lambda: score.score([(texts[3], t) for t in texts])]
    order = (0, 1) if first == "embedder" else (1, 0)
    came = {i: calls[i]() for i in order}
    assert sum(seen) == len(set(texts)), "one pass of each text, in whichever order they are asked"
    for i in order:
        np.testing.assert_allclose(came[i], alone[i], atol=1e-6)


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
    gone = TokenVectors()
    assert encoders.encoder(pair[0], lambda: gone) is gone, "no model uses it, so it is not held"


@pytest.mark.slow
def test_a_kit_keeps_tokens_only_where_both_kinds_are_asked(pair: Pair, texts: list[str]) -> None:
    kit = LocalKit(None, "transformers", threads=1)
    embed = kit.embedder(pair[0])

    async def ask() -> None:
        await embed(texts, "passage")
        assert kit._encoders.kept(pair[0]) is None
        score = kit.reranker(replace(pair[1], name="another name"))
        await embed(texts, "passage")
        kept = kit._encoders.kept(pair[0])
        assert kept is not None and kept.bytes > 0
        await score([(texts[3], t) for t in texts])
        await kit.keep([])
        assert kit._encoders.kept(pair[0]) is None

    asyncio.run(ask())


def test_token_vectors_forget_what_was_used_longest_ago() -> None:
    kept = TokenVectors(limit=3 * 40)
    for i in range(3):
        kept.put(bytes([i]), np.full((5, 2), i, np.float32))
    assert kept.get(b"\0") is not None  # used last now
    kept.put(b"\3", np.zeros((5, 2), np.float32))
    assert kept.get(b"\1") is None and kept.get(b"\0") is not None and kept.bytes == 120
    kept.put(b"\4", np.zeros((99, 2), np.float32))
    assert kept.get(b"\4") is None and kept.bytes == 120, "what is larger than all of it is not kept"
