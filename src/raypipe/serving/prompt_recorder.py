"""A kit that records the prompts of a request, for `include: [prompts]`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raypipe.core.kits import ForwardingKit
from raypipe.core.llm import Chat, Generated, Generator, Sampling
from raypipe.core.protocols import Index, Model
from raypipe.core.records import Fault
from raypipe.serving.shared_kit import SharedKit


class PromptRecorder(ForwardingKit[SharedKit]):
    """Appends every chat that a language model gets to a list."""

    def __init__(self, kit: SharedKit, chats: list[Chat]) -> None:
        super().__init__(kit)
        self._chats = chats

    def with_index(self, index: Index) -> PromptRecorder:
        return PromptRecorder(self._kit.with_index(index), self._chats)

    def with_sink(self, sink: Callable[[str], None]) -> PromptRecorder:
        return PromptRecorder(self._kit.with_sink(sink), self._chats)

    async def unavailable(self) -> list[str]:
        return await self._kit.unavailable()

    def generator(self, model: Model) -> Generator:
        generate = self._kit.generator(model)

        async def record_and_generate(
            chats: Sequence[Chat], sampling: Sampling, adapter: str | None = None
        ) -> list[Generated | Fault]:
            self._chats.extend(chats)
            return await generate(chats, sampling, adapter)

        return record_and_generate
