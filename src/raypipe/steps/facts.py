"""Public data for a question: sentences by the year or the names in it (db3, the public-data pathway).

Knows tables and a reranker through the kit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from raypipe.core.kg import FactsRef, Level
from raypipe.core.kg import PublicFacts as Table
from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach, Score
from raypipe.core.records import ABSTAINED, ANSWERED, IDK, Question, Reply
from raypipe.text.by_label import ByLabel
from raypipe.text.html import storable
from raypipe.text.template import REPLY

MOST = 1_000  # sentences of one question that are scored; an Oscar ceremony has some 120


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsRule:
    """One table, and when it is looked into."""

    table: FactsRef
    by: Literal["year", "name"]  # a year in the question, or the names in the reply `entities`
    triggers: tuple[str, ...] = ()  # the question has one of these in it; (): always
    whole_words: bool = False  # triggers are words of the question; db3 takes any part of it
    levels: tuple[Level, ...] = ("exact",)  # how a name is linked, tried in order: exact, substring, tokens
    company: bool = False  # names are companies': legal forms are no part of them, tickers may be marked

    def __post_init__(self) -> None:
        if not self.levels or "embedding" in self.levels:
            raise ValueError(f"levels: expected of exact, substring and tokens, found {list(self.levels)}")
        if self.by == "year" and (self.company or self.levels != ("exact",)):
            raise ValueError("levels and company: expected with a table that is looked up by name")

    def wanted(self, text: str) -> bool:
        said = text.lower()
        if not self.triggers:
            return True
        if self.whole_words:
            return any(re.search(rf"(?<!\w){re.escape(t)}(?!\w)", said) for t in self.triggers)
        return any(t in said for t in self.triggers)


_YEAR = re.compile(r"\b((?:19|20)\d{2})\b", re.ASCII)
_QUOTES = "\"'\u201c\u201d\u2018\u2019 "


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Writes what the tables say into the reply `into`, a sentence a line: answered, or abstained where the
    question does not call for the table or the table has nothing.

    `model` is a reranker: of more than `top` sentences the best stay, best first. Without one all stay.
    `entities` names the reply with the names, several joined by &&, as the entity prompts ask for.
    """

    table: ByLabel[FactsRule | None]  # one, or one for each label of an earlier reply
    into: str
    entities: str | None = None
    model: Model | None = None
    top: int = 10

    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ValueError(f"top: expected at least 1, found {self.top}")
        shelves = [s for s in self.table.values() if s is not None]
        if not shelves:
            raise ValueError("table: expected at least one, found none")
        if any(s.by == "name" for s in shelves) != (self.entities is not None):
            raise ValueError("entities: expected with a table that is looked up by name, and only there")

    def reads(self) -> frozenset[str]:
        named = {REPLY + self.entities} if self.entities is not None else set()
        return frozenset({"text"}) | self.table.reads() | named

    def writes(self) -> frozenset[str]:
        return frozenset({REPLY + self.into})

    def bound(self, question: Question, reach: Reach) -> Bound:
        if self.model is None:
            return Bound(0, reach, "never")
        return Bound(MOST, reach, "never", likely=math.inf)

    def open(self, kit: Kit) -> Ask:
        tables = {s.table.where: kit.facts(s.table) for s in self.table.values() if s is not None}
        score = None if self.model is None else kit.reranker(self.model)

        async def ask(questions: list[Question]) -> list[Question]:
            shelves = [self.table.of(q) for q in questions]
            found = [
                () if s is None or not s.wanted(q.text) else self._found(q, s, tables[s.table.where])
                for q, s in zip(questions, shelves, strict=True)
            ]
            best = await self._best(questions, found, score)
            return [self._said(q, lines) for q, lines in zip(questions, best, strict=True)]

        return ask

    def _found(self, question: Question, shelf: FactsRule, table: Table) -> tuple[str, ...]:
        if shelf.by == "year":
            years = dict.fromkeys(int(y) for y in _YEAR.findall(question.text))
            texts = [t for y in years for t in table.of_year(y)]
        else:
            assert self.entities is not None
            reply = question.replies[self.entities]
            names = reply.text.split("&&") if reply.label == ANSWERED else []
            written = [name for n in names if (name := n.strip(_QUOTES))]
            texts = [t for n in written for t in table.about(n, shelf.levels, shelf.company)]
        return tuple(dict.fromkeys(texts))[:MOST]

    async def _best(
        self, questions: Sequence[Question], found: Sequence[tuple[str, ...]], score: Score | None
    ) -> list[tuple[str, ...]]:
        """The `top` best sentences of each question that has more, in one call."""
        many = [i for i, texts in enumerate(found) if score is not None and len(texts) > self.top]
        out = list(found)
        if not many or score is None:
            return out
        scores = await score([(questions[i].text, t) for i in many for t in found[i]])  # (pairs,) float32
        at = 0
        for i in many:
            mine = scores[at : at + len(found[i])].tolist()
            at += len(found[i])
            order = sorted(range(len(mine)), key=lambda n: (-mine[n], n))[: self.top]
            out[i] = tuple(found[i][n] for n in order)
        return out

    def _said(self, question: Question, lines: Sequence[str]) -> Question:
        text = "\n".join(storable(x) for x in lines)
        reply = Reply(text, ANSWERED) if text else Reply(IDK, ABSTAINED)
        return replace(question, replies={**question.replies, self.into: reply})
