"""The base of wrappers of a kit. Knows the contract (`protocols.Kit`) and no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from raypipe.core.index import Index
from raypipe.core.kg import ExampleRow, FactsRef, PoolRef, PublicFacts
from raypipe.core.llm import Generator
from raypipe.core.protocols import Embed, Graph, GraphRef, Kit, Model, Score, Tokenize

Wrapped = TypeVar("Wrapped", bound=Kit)


class ForwardingKit(Generic[Wrapped]):
    """A kit that forwards every call to another kit; a wrapper overrides only what it changes."""

    def __init__(self, kit: Wrapped) -> None:
        self._kit = kit

    def embedder(self, model: Model) -> Embed:
        return self._kit.embedder(model)

    def reranker(self, model: Model) -> Score:
        return self._kit.reranker(model)

    def generator(self, model: Model) -> Generator:
        return self._kit.generator(model)

    def tokenizer(self, model: Model) -> Tokenize:
        return self._kit.tokenizer(model)

    def index(self) -> Index:
        return self._kit.index()

    def graph(self, ref: GraphRef) -> Graph:
        return self._kit.graph(ref)

    def facts(self, ref: FactsRef) -> PublicFacts:
        return self._kit.facts(ref)

    def pool(self, ref: PoolRef) -> Sequence[ExampleRow]:
        return self._kit.pool(ref)
