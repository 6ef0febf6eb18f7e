"""The kit of an endpoint's gateway: models that live in deployments of their own, reached by calls.

`kit.LocalKit` with the models elsewhere. Knows that a call is awaited, and nothing else of Ray.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

import numpy as np

from raypipe.chat import Chat, Generate, Generated, Sampling
from raypipe.errors import ConfError
from raypipe.kit import LocalKit
from raypipe.knowledge import Facts, FactsRef, Graph, GraphRef
from raypipe.records import Fault
from raypipe.step import Embed, Index, Model, Role, Score, Tokenize


class Remote(Protocol):
    """A method of a deployment."""

    def remote(self, *args: Any) -> Awaitable[Any]: ...


class ServeKit:
    """Models in deployments; tokenizers, which are called for every text, in this process.

    `embed` takes a model, texts and their role, `score` a model and pairs, `generate` a model, chats,
    sampling and the name of an adapter, as `deploy.Models` does.
    """

    def __init__(
        self, embed: Remote, score: Remote, generate: Remote | None, index: Index | None = None
    ) -> None:
        self._embed, self._score, self._generate = embed, score, generate
        self._here = LocalKit(index)

    def with_index(self, index: Index) -> ServeKit:
        """The same models with another index."""
        other = copy.copy(self)
        other._here = self._here.with_index(index)
        return other

    def embedder(self, model: Model) -> Embed:
        async def embed(texts: Sequence[str], role: Role) -> np.ndarray:
            if not texts:
                return np.zeros((0, model.dim), np.float32)
            vectors: np.ndarray = await self._embed.remote(model, list(texts), role)
            return vectors

        return embed

    def reranker(self, model: Model) -> Score:
        async def score(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
            if not pairs:
                return np.zeros(0, np.float32)
            scores: np.ndarray = await self._score.remote(model, list(pairs))
            return scores

        return score

    def generator(self, model: Model) -> Generate:
        remote = self._generate
        if remote is None:
            raise ConfError(f"model {model.name!r}: this application was deployed without a generator")

        async def generate(
            chats: Sequence[Chat], sampling: Sampling, adapter: str | None = None
        ) -> list[Generated | Fault]:
            if not chats:
                return []
            replies: list[Generated | Fault] = await remote.remote(model, tuple(chats), sampling, adapter)
            return replies

        return generate

    def tokenizer(self, model: Model) -> Tokenize:
        return self._here.tokenizer(model)

    def index(self) -> Index:
        return self._here.index()

    def graph(self, ref: GraphRef) -> Graph:
        return self._here.graph(ref)

    def facts(self, ref: FactsRef) -> Facts:
        return self._here.facts(ref)
