"""Calls without a language model: the nearest example's, with this question's names and times filled in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from raypipe.contrib.crag.language import example_bank
from raypipe.contrib.crag.language.example_bank import NO_CALLS, ExampleBank, MaskedQuestion
from raypipe.contrib.crag.records import MOST_SEARCHES
from raypipe.contrib.crag.references import GraphRef
from raypipe.core.errors import DataError
from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach
from raypipe.core.records import ABSTAINED, ANSWERED, FAULT, SKIPPED_REPLY, Fault, Question, Reply
from raypipe.text.moments import moment
from raypipe.text.page_parser import storable
from raypipe.text.template import REPLY

SEARCHES = 8  # requests of an ordinary question to a server: six, and two for its names


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchCalls:
    """Writes the program of the nearest example question into the reply `into`.

    The labels of the replies `rule` and `domain` are set to the example's rule and domain. Names of the
    graph, times and numbers are masked; then questions and examples are compared by the cosine of their
    vectors. The nearest example of at least `least` whose places the question fills is taken. `into` is
    abstained if there is none, or if the example's calls are None: the graph lacks the answer. Its confidence
    is the cosine.

    If a graph's server is down, the transient fault is also recorded in `degraded`. The row is answered
    without calls, is not stored, and is tried again.
    """

    graph: GraphRef
    bank: ExampleBank
    embedder: Model
    least: float  # cosine, 0..1
    into: str = "calls"
    rule: str = "rule"
    domain: str = "domain"

    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not 0 <= self.least <= 1:
            raise ValueError(f"least: expected a cosine from 0 to 1, found {self.least}")
        if len({self.into, self.rule, self.domain}) < 3:
            raise ValueError("into, rule and domain: expected three names")

    def reads(self) -> frozenset[str]:
        return frozenset({"text", "asked_at"})

    def writes(self) -> frozenset[str]:
        return frozenset(REPLY + n for n in (self.into, self.rule, self.domain)) | {"degraded"}

    def bound(self, question: Question, reach: Reach) -> Bound:
        searches = 0 if self.graph.kind == "folder" else MOST_SEARCHES
        examples = len(self.bank.flat)  # each needs a vector, and so does the question
        likely = 1 + min(searches, SEARCHES)
        return Bound(examples + 1 + searches, reach, "never", likely=likely, shared=examples)

    def open(self, kit: Kit) -> Ask:
        graph, embed = kit.data(self.graph), kit.embedder(self.embedder)
        examples = [example_bank.masked(q) for _, q in self.bank.flat]

        async def ask(questions: list[Question]) -> list[Question]:
            texts = [" ".join(q.text.split()) for q in questions]
            mentions = await graph.mentions(texts, [q.asked_at for q in questions])
            found = [
                m if isinstance(m, Fault) else example_bank.mask_question(t, m, self.bank)
                for t, m in zip(texts, mentions, strict=True)
            ]
            known = await embed(examples, "passage")  # (examples, dim) float32, unit rows
            asked = await embed([f.masked for f in found if isinstance(f, MaskedQuestion)], "passage")
            scores = iter(asked @ known.T)
            return [
                self._with_fault(q, f) if isinstance(f, Fault) else self._matched(q, f, next(scores))
                for q, f in zip(questions, found, strict=True)
            ]

        return ask

    def _matched(self, question: Question, masked: MaskedQuestion, scores: np.ndarray) -> Question:
        """Adds the filled nearest example to a question. `scores` is (examples,), parallel to the bank."""
        try:
            now = moment(question.asked_at)
        except DataError as e:
            return self._with_fault(question, Fault("match_calls", "bad_time", str(e), False))
        filled = example_bank.nearest(masked, self.bank, scores.tolist(), self.least, now)
        if filled is None:
            return self._with_replies(question, Reply(NO_CALLS, ABSTAINED))
        confidence = min(1.0, max(0.0, round(filled.score, 4)))
        label = ABSTAINED if filled.calls == NO_CALLS else ANSWERED
        calls = Reply(storable(filled.calls), label, confidence=confidence)
        rule, domain = filled.group.rule, filled.group.domain
        return self._with_replies(question, calls, Reply(rule, rule), Reply(domain, domain))

    def _with_fault(self, question: Question, fault: Fault) -> Question:
        if fault.transient:
            question = replace(question, degraded=(*question.degraded, f"match_calls:{self.into}"))
        return self._with_replies(question, Reply("", FAULT, fault=fault))

    def _with_replies(
        self, question: Question, calls: Reply, rule: Reply = SKIPPED_REPLY, domain: Reply = SKIPPED_REPLY
    ) -> Question:
        replies = {self.into: calls, self.rule: rule, self.domain: domain}
        return replace(question, replies={**question.replies, **replies})
