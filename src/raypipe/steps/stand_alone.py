"""Several turns: the last question of a conversation, made one that stands alone. Knows models through the
kit, rules and prompts' turns through `text.turns`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from raypipe.core.llm import Generated, Sampling
from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach
from raypipe.core.records import ANSWERED, Fault, Question, Reply
from raypipe.steps.rows import (
    CHARS_PER_TOKEN,
    ask_each,
    prompt_values,
    read_reply,
    require_prompt,
    skipping,
    with_replies,
)
from raypipe.text.replies import KEPT, ParsedReply, UnreadableReply, read_text
from raypipe.text.template import Prompt
from raypipe.text.turns import is_grounded, shown, stands_alone

OWN = frozenset({"turns"})
"""Variable that a prompt of this step may use on top of fields and replies: the earlier turns, a line
each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandAlone:
    """Puts a question that stands alone in the place of one that leans on the earlier turns of its
    conversation, so that all later steps search, read and answer that.

    `model` rewrites it with `prompt`. A rewrite counts where it keeps the question's words and has no others
    than the question and its turns (`text.turns.is_grounded`): so none answers, and none invents. Where there
    is no model, and where its rewrite does not count, a plain rule takes over the subject of the earlier
    turns (`text.turns.stands_alone`).

    The reply `into` is the new question: answered, or kept, where it is as it was asked. What was wrong with
    a rewrite stays as its fault. A question without turns is left as it is, and its reply is skipped.
    """

    model: Model | None = None  # None: the rule alone
    prompt: Prompt | None = None  # with a model
    max_tokens: int = 128  # of a rewrite, in the model's own tokens; a model that thinks has its own on top
    chars: int = 4000  # of the turns that a prompt shows, the newest; each is cut to 500
    into: str = "stand_alone"

    version: ClassVar[int] = 1
    of_turns: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if (self.model is None) != (self.prompt is None):
            raise ValueError("model and prompt: expected both or neither")
        if self.model is not None and self.prompt is not None:
            require_prompt(self.model, [self.prompt], OWN)
        for name in ("max_tokens", "chars"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, found {getattr(self, name)}")

    def reads(self) -> frozenset[str]:
        variables = frozenset(self.prompt.variables) if self.prompt else frozenset()
        return variables - OWN | {"text", "turns"}

    def writes(self) -> frozenset[str]:
        return frozenset({"text", f"replies.{self.into}"})

    def bound(self, question: Question, reach: Reach) -> Bound:
        if self.model is None or self.prompt is None or self.model.absent or not question.turns:
            return Bound(0, reach, "never", from_question=True)
        fixed = len(self.prompt.system) + len(self.prompt.user) + len(question.text)
        said = min(self.chars, sum(len(t.text) for t in question.turns))
        return Bound(
            1,
            reach,
            "asking",
            from_question=True,
            tokens=self.model.max_model_len,
            reply_tokens=self.sampling().max_tokens,
            prompt_tokens=(fixed + said) / CHARS_PER_TOKEN,
        )

    def open(self, kit: Kit) -> Ask:
        skip = skipping(self.into)
        if self.model is None or self.prompt is None or self.model.absent:
            generate = render = None
        else:
            generate, render = kit.generator(self.model), self.prompt.renderer()

        async def ask(questions: list[Question]) -> list[Question]:
            rows, at = await skip(questions), [i for i, q in enumerate(questions) if q.turns]
            leaning = [questions[i] for i in at]
            said: Sequence[Generated | Fault | None] = [None] * len(at)
            if generate is not None and render is not None and at:
                chats = [render(self._values(q)) for q in leaning]
                said = await ask_each(generate, [q.id for q in leaning], chats, self.sampling())
            for i, q, words in zip(at, leaning, said, strict=True):
                reply = self._reply(q, words)
                rows[i] = replace(with_replies(q, {self.into: reply}), text=reply.text)
            return rows

        return ask

    def _values(self, question: Question) -> dict[str, str]:
        names = frozenset(self.prompt.variables if self.prompt else ()) - OWN
        return {"turns": shown(question.turns, self.chars), **prompt_values(question, names)}

    def _reply(self, question: Question, said: Generated | Fault | None) -> Reply:
        """The reply to a question with turns. `said`: by the model; None: it was not asked."""
        fault = None
        if said is not None:
            read = read_reply(said, f"stand_alone:{self.into}", lambda text: _read(text, question))
            if isinstance(read, ParsedReply):
                return Reply(read.text, read.label)
            fault = read.fault
        text = stands_alone(question)
        return Reply(text, KEPT if text == question.text else ANSWERED, fault=fault)

    def sampling(self) -> Sampling:
        """Returns what is sent with each chat."""
        thoughts = 0 if self.model is None else self.model.thought_tokens
        return Sampling(max_tokens=self.max_tokens + thoughts)


def _read(text: str, question: Question) -> ParsedReply:
    """A rewrite on one line. Raises UnreadableReply for one that brings words in."""
    said = " ".join(read_text(text, "a question").text.split())
    if said == question.text:
        return ParsedReply(said, KEPT)
    if not is_grounded(said, question):
        raise UnreadableReply("expected the words of the question, and others of the earlier turns alone")
    return ParsedReply(said, ANSWERED)
