"""A kit that notes what language models are asked, for whoever wants to see the prompts of a question."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raypipe.core.kg import Facts, FactsRef
from raypipe.core.llm import Chat, Generate, Generated, Sampling
from raypipe.core.protocols import Embed, Graph, GraphRef, Index, Model, Score, Tokenize
from raypipe.core.records import Fault
from raypipe.serving.request import SharedKit


class Overhearing:
    """A kit that notes every chat that a language model is asked."""

    def __init__(self, kit: SharedKit, heard: list[Chat]) -> None:
        self._kit, self._heard = kit, heard

    def with_index(self, index: Index) -> Overhearing:
        return Overhearing(self._kit.with_index(index), self._heard)

    async def away(self) -> list[str]:
        return await self._kit.away()

    def with_sink(self, sink: Callable[[str], None]) -> Overhearing:
        return Overhearing(self._kit.with_sink(sink), self._heard)

    def embedder(self, model: Model) -> Embed:
        return self._kit.embedder(model)

    def reranker(self, model: Model) -> Score:
        return self._kit.reranker(model)

    def tokenizer(self, model: Model) -> Tokenize:
        return self._kit.tokenizer(model)

    def index(self) -> Index:
        return self._kit.index()

    def graph(self, ref: GraphRef) -> Graph:
        return self._kit.graph(ref)

    def facts(self, ref: FactsRef) -> Facts:
        return self._kit.facts(ref)

    def generator(self, model: Model) -> Generate:
        generate = self._kit.generator(model)

        async def ask(
            chats: Sequence[Chat], sampling: Sampling, adapter: str | None = None
        ) -> list[Generated | Fault]:
            self._heard.extend(chats)
            return await generate(chats, sampling, adapter)

        return ask
