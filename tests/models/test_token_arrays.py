"""Texts that one process tokenizes and another embeds: the vectors are those of the texts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from raypipe.core.protocols import Model
from raypipe.models import hosts, load
from raypipe.models.catalog import Catalog
from raypipe.models.kit import LocalKit
from raypipe.models.token_arrays import (
    FirstAsked,
    FirstAskedKit,
    TokenKit,
    TokenMaker,
    arrays_of,
    takes_tokens,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def model(entries: Callable[..., Catalog], tiny: Callable[[str, bool], Path]) -> Model:
    return entries(
        e={
            "kind": "embedder",
            "loader": "flagembedding",
            "dim": 32,
            "pooling": "mean",
            "max_tokens": 8,
            "path": str(tiny("bert", False)),
            "passage_instruction": "about ",
        }
    ).model("e")


@pytest.mark.parametrize("backend", ["transformers", "flagembedding"])
def test_arrays_give_the_vectors_of_their_texts(
    model: Model, texts: list[str], backend: hosts.Backend
) -> None:
    embedder = load.open_model(model, backend, "cpu")
    expected = embedder.embed(texts, "passage")
    tokens = TokenMaker(model).table([*texts, texts[0]], "passage")
    assert tokens.num_rows == len(set(texts))

    async def embedded() -> tuple[np.ndarray, np.ndarray]:
        with_tokens = TokenKit(LocalKit(None, backend))
        plain = await with_tokens.embedder(model)(texts, "passage")
        with_tokens.tokens = {model: arrays_of(tokens)}
        again = await with_tokens.embedder(model)(texts, "passage")
        return plain, again

    plain, found = asyncio.run(embedded())
    assert np.array_equal(plain, expected)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_text_without_an_array_is_tokenized_where_it_is_embedded(model: Model, texts: list[str]) -> None:
    kit = TokenKit(LocalKit(None, "transformers"))
    kit.tokens = {model: arrays_of(TokenMaker(model).table(texts[:2], "passage"))}
    found = asyncio.run(kit.embedder(model)(texts, "passage"))
    expected = load.open_model(model, "transformers", "cpu").embed(texts, "passage")
    assert np.array_equal(found, expected)
    queries = asyncio.run(kit.embedder(model)(texts[:2], "query"))  # another role is another text
    assert not np.allclose(queries, expected[:2])


def test_what_a_step_asks_is_known_without_a_network(model: Model, entries: Callable[..., Catalog]) -> None:
    with pytest.raises(FirstAsked) as asked:
        asyncio.run(FirstAskedKit(LocalKit(None)).embedder(model)(["one", "two"], "passage"))
    assert (asked.value.model, asked.value.texts, asked.value.role) == (model, ["one", "two"], "passage")
    fake = entries(f={"kind": "embedder", "loader": "hash", "dim": 8}).model("f")
    assert takes_tokens(model) and not takes_tokens(fake)
