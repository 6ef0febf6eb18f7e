"""Rewriting of a conversation's last question, so that it can be understood without the earlier turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from raypipe.core.llm import Generated, Sampling
from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach
from raypipe.core.records import ANSWERED, Fault, Question, Reply
from raypipe.steps.field_checks import require_positive, require_prompt
from raypipe.steps.prompts import CHARS_PER_TOKEN, ask_each, prompt_values, read_reply, skipping, with_replies
from raypipe.text.replies import KEPT, ParsedReply, UnreadableReply, read_text
from raypipe.text.template import Prompt
from raypipe.text.turns import is_grounded, shown, stands_alone

OWN = frozenset({"turns"})
"""Variable that a prompt of this step may use besides fields and replies: the earlier turns, one per line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandAlone:
    """Replaces a question that depends on earlier turns by one that stands alone.

    All later steps search, read and answer the new question. `model` writes it with `prompt`. A rewrite is
    accepted if it keeps the question's words and adds only words of the turns (`text.turns.is_grounded`), so
    that the model brings in no words of its own. A rule rewrites the question instead
    (`text.turns.stands_alone`) if the rewrite is refused or missing, if no model is given, or if the model is
    declared absent (loader: none).

    The reply `into` is the new question. Its label is answered, or kept if the question is unchanged. Its
    fault is the reason why the rewrite is refused or missing. A question without turns is unchanged and its
    reply skipped.
    """

    model: Model | None = None  # rewrites the question; None: the rule rewrites it
    prompt: Prompt | None = None  # required with a model
    max_tokens: int = 128  # tokens of a rewrite, as the model counts; its thoughts have a further budget
    chars: int = 4000  # characters of the newest turns that a prompt shows; each turn is cut to 500
    into: str = "stand_alone"

    version: ClassVar[int] = 2
    of_turns: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if (self.model is None) != (self.prompt is None):
            raise ValueError("model and prompt: expected both or neither")
        if self.model is not None and self.prompt is not None:
            require_prompt(self.model, [self.prompt], OWN)
        require_positive(self, "max_tokens", "chars")

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
        """Returns the reply to a question with turns. `said` is the model's text; None: it was not asked."""
        fault = None
        if said is not None:
            read = read_reply(said, f"stand_alone:{self.into}", lambda text: _read(text, question))
            if isinstance(read, ParsedReply):
                return Reply(read.text, read.label)
            fault = read.fault
        text = stands_alone(question)
        return Reply(text, KEPT if text == question.text else ANSWERED, fault=fault)

    def sampling(self) -> Sampling:
        return Sampling(max_tokens=self.max_tokens + (0 if self.model is None else self.model.thought_tokens))


def _read(text: str, question: Question) -> ParsedReply:
    """Parses a rewrite and puts it on one line. Raises UnreadableReply if the rewrite is blank or refused."""
    said = " ".join(read_text(text, "a question").text.split())
    if said == question.text:
        return ParsedReply(said, KEPT)
    if not is_grounded(said, question):
        raise UnreadableReply("expected the words of the question, and others of the earlier turns alone")
    return ParsedReply(said, ANSWERED)
