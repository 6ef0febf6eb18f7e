"""The decision: which reply is the answer, or why there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from raypipe.core import records
from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach
from raypipe.core.records import IDK, INVALID_QUESTION, Fault, Question, Reply
from raypipe.steps.answer_probability import AnswerProbability
from raypipe.steps.rows import row_by_row
from raypipe.text.pack import cut
from raypipe.text.replies import abstains
from raypipe.text.template import ByLabel


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide:
    """Takes the first reply of `prefer` that settles the question: an answer, or that its premise is false.
    A table by the label of a reply orders them differently from domain to domain.

    An answer that says "i don't know" is an abstention, however it is written. Where no reply settles it, a
    question that broke (a final fault, or nothing but faulty replies) has the outcome fault and no answer,
    and the faults of its replies become its own; any other is answered "i don't know".

    With `fitted` numbers (`raypipe fit decide`) the reply's confidence becomes the probability that it is
    right; below their threshold the question is answered "i don't know", too. A later reply does not take
    its place: the fit knows first choices alone.
    """

    prefer: tuple[str, ...] | ByLabel[tuple[str, ...]]  # reply names, first choice first; or a table of such
    lower: bool = False  # answers in lower case, as CRAG's gold answers are
    answer_tokens: int | None = None  # longer answers are cut; CRAG's evaluator keeps 75
    tokenizer: Model | None = None  # counts them; CRAG's evaluator takes Llama 2's, whatever the model
    fitted: AnswerProbability | None = None  # P(right), and from where on an answer is given; None: always

    version: ClassVar[int] = 3
    given_by_fit: ClassVar[frozenset[str]] = frozenset({"fitted"})

    def __post_init__(self) -> None:
        if not all(self._tables()):
            raise ValueError("prefer: expected at least one reply name, found none")
        if (self.answer_tokens is None) != (self.tokenizer is None):
            raise ValueError("answer_tokens and tokenizer: expected both or neither, found one")
        if self.answer_tokens is not None and self.answer_tokens < 1:
            raise ValueError(f"answer_tokens: expected at least 1, found {self.answer_tokens}")

    def reads(self) -> frozenset[str]:
        by = self.prefer.reads() if isinstance(self.prefer, ByLabel) else frozenset()
        fitted = frozenset() if self.fitted is None else self.fitted.reads()
        return by | fitted | {f"replies.{r}" for r in self.prefers()}

    def writes(self) -> frozenset[str]:
        confident = () if self.fitted is None else self.prefers()
        return frozenset({"answer", "outcome", "origin", *(f"replies.{r}" for r in confident)})

    def prefers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r for names in self._tables() for r in names))

    def bound(self, question: Question, reach: Reach) -> Bound:
        return Bound(0, reach)

    def answer_cut(self) -> tuple[int, Model] | None:
        if self.answer_tokens is None or self.tokenizer is None:
            return None
        return self.answer_tokens, self.tokenizer

    def _tables(self) -> tuple[tuple[str, ...], ...]:
        """Every list of replies that a question may be decided by."""
        return self.prefer.values() if isinstance(self.prefer, ByLabel) else (self.prefer,)

    def open(self, kit: Kit) -> Ask:
        if (most := self.answer_tokens) is None or self.tokenizer is None:
            return row_by_row(lambda q: self._decide(q, str))
        tokenize = kit.tokenizer(self.tokenizer)
        return row_by_row(lambda q: self._decide(q, lambda text: cut(text, most, tokenize)))

    def _decide(self, question: Question, trim: Callable[[str], str]) -> Question:
        prefer = self.prefer.of(question) if isinstance(self.prefer, ByLabel) else self.prefer
        replies = {name: question.replies[name] for name in prefer if name in question.replies}
        for name, reply in replies.items():
            if reply.label == records.ANSWERED and not abstains(reply.text):
                text = trim(reply.text.lower() if self.lower else reply.text)
                if self.fitted is not None:
                    return _decided(question, name, text, self.fitted, prefer)
                return replace(question, answer=text, outcome="answered", origin=name)
            if reply.label == records.INVALID:
                return replace(question, answer=INVALID_QUESTION, outcome="false_premise", origin=name)
        broken = any(not f.transient for f in question.faults)
        if not broken and any(_is_abstention(r) for r in replies.values()):
            return replace(question, answer=IDK, outcome="abstained", origin="")
        known = tuple(r.fault for r in replies.values() if r.fault is not None)
        labels = (f"{name}: {replies[name].label if name in replies else 'not there'}" for name in prefer)
        detail = f"no reply answers or abstains: {', '.join(labels)}"
        faults = question.faults or known or (Fault("decide", "no_reply", detail, transient=False),)
        return replace(question, answer="", outcome="fault", origin="", faults=faults)


def _decided(
    question: Question, name: str, text: str, fitted: AnswerProbability, prefer: tuple[str, ...]
) -> Question:
    """The answer that one reply gives, where it is likely enough to be right."""
    p = fitted.of(question, name, prefer)
    known = {**question.replies, name: replace(question.replies[name], confidence=p)}
    if p < fitted.threshold:
        return replace(question, replies=known, answer=IDK, outcome="abstained", origin="")
    return replace(question, replies=known, answer=text, outcome="answered", origin=name)


def _is_abstention(reply: Reply) -> bool:
    return reply.label in (records.ABSTAINED, records.SKIPPED) or (
        reply.label == records.ANSWERED and abstains(reply.text)
    )
