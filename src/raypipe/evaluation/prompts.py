"""The prompts behind stored replies: rendered again, and looked up in the memo with their tokens.

A step that generates is run on the stored question, with the memo in the model's place. Where it makes the
reply that is stored, its chat is the one that was asked; else nothing is said. No model is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.kits import ForwardingKit
from raypipe.core.llm import STEP, Chat, Generated, Generator, Sampling
from raypipe.core.protocols import Ask, Kit, Model, Step
from raypipe.core.records import SKIPPED, Fault, Question
from raypipe.memo.counts import CallCounts
from raypipe.memo.lookup import ChatRecorder
from raypipe.memo.memo import Memo, cached
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.steps.generate import Generate

_NOT_CACHED = Fault(STEP, "not_cached", "the memo holds no reply to this chat", transient=True)


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """One chat with a language model, as it was sent, and what it took."""

    chat: Chat
    prompt_tokens: int
    generated_tokens: int
    finish: str  # stop, or length: the reply was cut


class Unasked(ForwardingKit[Kit]):
    """A kit whose language models reply nothing."""

    def generator(self, model: Model) -> Generator:
        async def generate(
            chats: Sequence[Chat], sampling: Sampling, adapter: str | None = None
        ) -> list[Generated | Fault]:
            return [_NOT_CACHED] * len(chats)

        return generate


class PromptLookup:
    """The prompts of a recipe's replies, for any batches of answered questions.

    `missing` says why there are none: a tokenizer that a step counts with is not on this machine.
    """

    def __init__(self, recipe: Recipe, kit: Kit, memo: Callable[[], Memo]) -> None:
        self.missing = ""
        self._stages: list[tuple[Stage[Step], Generate, ChatRecorder, Ask]] = []
        for stage in recipe.question:
            if not isinstance(step := stage.step, Generate):
                continue
            recorder = ChatRecorder(cached(Unasked(kit), memo(), CallCounts()))
            try:
                ask = step.open(recorder)
            except (ConfError, ModelMissing) as e:
                self.missing = f"{stage.name}: {e}"
                continue
            self._stages.append((stage, step, recorder, ask))

    async def of(self, batch: Sequence[Question]) -> dict[str, dict[str, RenderedPrompt]]:
        """Question id -> name of a reply -> its prompt."""
        found: dict[str, dict[str, RenderedPrompt]] = {q.id: {} for q in batch}
        for stage, step, recorder, ask in self._stages:
            into = step.into
            asked = [q for q in batch if into in q.replies and q.replies[into].label != SKIPPED]
            asked = [q for q in asked if stage.admits(q)]
            recorder.calls.clear()
            for question, made in zip(asked, await ask(asked) if asked else (), strict=True):
                chat, reply = recorder.calls[step.adapter.of(question)].pop(0)
                if isinstance(reply, Generated) and made.replies[into] == question.replies[into]:
                    found[question.id][into] = RenderedPrompt(
                        chat, reply.prompt_tokens, reply.generated_tokens, reply.finish
                    )
        return found
