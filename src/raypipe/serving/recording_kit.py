"""A kit that records the prompts of a question's calls to language models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raypipe.core.kits import ForwardingKit
from raypipe.core.llm import Chat, Generated, Generator, Sampling
from raypipe.core.protocols import Index, Model
from raypipe.core.records import Fault
from raypipe.serving.request import SharedKit


class PromptRecorder(ForwardingKit[SharedKit]):
    """A kit that notes every chat that a language model is asked."""

    def __init__(self, kit: SharedKit, heard: list[Chat]) -> None:
        super().__init__(kit)
        self._heard = heard

    def with_index(self, index: Index) -> PromptRecorder:
        return PromptRecorder(self._kit.with_index(index), self._heard)

    async def away(self) -> list[str]:
        return await self._kit.away()

    def with_sink(self, sink: Callable[[str], None]) -> PromptRecorder:
        return PromptRecorder(self._kit.with_sink(sink), self._heard)

    def generator(self, model: Model) -> Generator:
        generate = self._kit.generator(model)

        async def ask(
            chats: Sequence[Chat], sampling: Sampling, adapter: str | None = None
        ) -> list[Generated | Fault]:
            self._heard.extend(chats)
            return await generate(chats, sampling, adapter)

        return ask
