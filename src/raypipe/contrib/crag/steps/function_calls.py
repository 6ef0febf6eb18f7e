"""Function calls that a language model wrote as JSON, converted to a program for the knowledge graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from raypipe.contrib.crag.language.function_calls import flat_program, program_of
from raypipe.core.protocols import Ask, Bound, Kit, Reach
from raypipe.core.records import ABSTAINED, ANSWERED, FAULT, SKIPPED_REPLY, UNREADABLE, Fault, Question, Reply
from raypipe.steps.hits import row_by_row
from raypipe.text.page_parser import storable
from raypipe.text.replies import UnreadableReply
from raypipe.text.template import REPLY


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCalls:
    """Reads the JSON in the reply `reply` and writes its program into the reply `into`.

    The operation, one of `answer_rules.RULES`, becomes the label of the reply `rule`. `into` is abstained if
    the reply has no calls or is not answered. Unreadable JSON makes it a fault; then the web path answers.
    """

    reply: str
    into: str = "calls"
    rule: str = "rule"
    form: Literal["calls", "flat"] = "calls"  # WeKnow's JSON, or the flat JSON of CRAG's baseline (no rule)

    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if len({self.reply, self.into, self.rule}) < 3:
            raise ValueError("reply, into and rule: expected three names")

    def reads(self) -> frozenset[str]:
        return frozenset({REPLY + self.reply})

    def writes(self) -> frozenset[str]:
        return frozenset({REPLY + self.into, REPLY + self.rule})

    def bound(self, question: Question, reach: Reach) -> Bound:
        return Bound(0, reach, "never")

    def open(self, kit: Kit) -> Ask:
        return row_by_row(self._one)

    def _one(self, question: Question) -> Question:
        reply = question.replies[self.reply]
        rule = SKIPPED_REPLY
        if reply.label != ANSWERED:
            calls = Reply("None", ABSTAINED)
        else:
            try:
                flat = self.form == "flat"  # it has no operation
                program, name = (flat_program(reply.text), None) if flat else program_of(reply.text)
                calls = Reply(storable(program), ABSTAINED if program == "None" else ANSWERED)
                rule = SKIPPED_REPLY if name is None else Reply(name, name)
            except UnreadableReply as e:
                fault = Fault("function_calls", UNREADABLE, storable(str(e)), transient=False)
                calls = Reply(reply.text, FAULT, fault=fault)
        return replace(question, replies={**question.replies, self.into: calls, self.rule: rule})
