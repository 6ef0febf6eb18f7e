"""A kit that records the prompts of a request, for `include: [prompts]`."""

from __future__ import annotations

from collections.abc import Sequence

from raypipe.core.llm import Chat, Generated, Generator, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.serving.shared_kit import ForwardingSharedKit, SharedKit


class PromptRecorder(ForwardingSharedKit):
    """Appends every chat that a language model gets to a list."""

    def __init__(self, kit: SharedKit, chats: list[Chat]) -> None:
        super().__init__(kit)
        self._chats = chats

    def generator(self, model: Model) -> Generator:
        generate = self._kit.generator(model)

        async def record_and_generate(
            chats: Sequence[Chat], sampling: Sampling, adapter: str | None = None
        ) -> list[Generated | Fault]:
            self._chats.extend(chats)
            return await generate(chats, sampling, adapter)

        return record_and_generate
