"""The base of wrappers of a kit. Knows the contract (`protocols.Kit`) and no model."""

from __future__ import annotations

from typing import Generic, TypeVar

from raypipe.core.index import Index
from raypipe.core.llm import Generator
from raypipe.core.protocols import Embed, Kit, Model, Score, Tokenize
from raypipe.core.references import Reference

T = TypeVar("T")
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

    def data(self, ref: Reference[T]) -> T:
        return self._kit.data(ref)
