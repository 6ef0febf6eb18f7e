"""Public data for a question: sentences by its years or by names (db3, the public-data pathway)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from raypipe.contrib.crag.records import MOST_NEAR, Level, Near
from raypipe.contrib.crag.references import FactsRef
from raypipe.core.digests import model_identity
from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach, Score
from raypipe.core.records import ABSTAINED, ANSWERED, IDK, Question, Reply
from raypipe.text.page_parser import storable
from raypipe.text.template import REPLY, ByLabel

if TYPE_CHECKING:
    from raypipe.contrib.crag.public_data import FactsTable

MOST = 1_000  # most sentences of one question that are scored
OF_YEAR = 120  # approximate number of sentences about one Oscar ceremony
FORMS = 2  # a company is found by its whole name, and without its legal form
MOST_NAMES = 100  # most names of one question that are looked up; db3's reply of 70 tokens has some ten


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsRule:
    table: FactsRef
    by: Literal["year", "name"]  # looked up by years in the question, or names in the reply `entities`
    triggers: tuple[str, ...] = ()  # used if the question contains one of these; (): always
    whole_words: bool = False  # triggers match whole words; db3 matches any part of the question
    levels: tuple[Level, ...] = ("exact",)  # levels of linking names, in order
    company: bool = False  # names of companies: legal forms are ignored, tickers may be marked
    embedder: Model | None = None  # for the level embedding
    near: float | None = None  # least cosine at which that level links two names; above 0, at most 1

    def __post_init__(self) -> None:
        if not self.levels:
            raise ValueError("levels: expected at least one, found none")
        meant = "embedding" in self.levels
        if not meant == (self.embedder is not None) == (self.near is not None):
            raise ValueError("embedder and near: expected both with the level embedding, and neither without")
        if self.near is not None and not 0 < self.near <= 1:
            raise ValueError(f"near: expected a cosine above 0, at most 1, found {self.near}")
        if self.by == "year" and (self.company or self.levels != ("exact",)):
            raise ValueError("levels and company: expected with a table that is looked up by name")

    def wanted(self, text: str) -> bool:
        lowered = text.lower()
        if self.whole_words:
            triggered = any(re.search(rf"(?<!\w){re.escape(t)}(?!\w)", lowered) for t in self.triggers)
        else:
            triggered = any(t in lowered for t in self.triggers)
        return triggered or not self.triggers


_YEAR = re.compile(r"\b((?:19|20)\d{2})\b", re.ASCII)
_QUOTES = "\"'\u201c\u201d\u2018\u2019 "


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Writes the sentences of the question's table into the reply `into`, one a line.

    The reply is abstained if the question needs no table, or if the table has no sentence for it. `model` is
    a reranker: of more than `top` sentences it keeps the best, best first. Without a model all are kept.
    `entities` is the reply that holds the names, joined by &&, as the entity prompts ask for.
    """

    table: ByLabel[FactsRule | None]  # one rule, or one for each label of an earlier reply
    into: str
    entities: str | None = None
    model: Model | None = None
    top: int = 10

    version: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ValueError(f"top: expected at least 1, found {self.top}")
        rules = [s for s in self.table.values() if s is not None]
        if not rules:
            raise ValueError("table: expected at least one, found none")
        if any(s.by == "name" for s in rules) != (self.entities is not None):
            raise ValueError("entities: expected with a table that is looked up by name, and only with one")

    def reads(self) -> frozenset[str]:
        named = {REPLY + self.entities} if self.entities is not None else set()
        return frozenset({"text"}) | self.table.reads() | named

    def writes(self) -> frozenset[str]:
        return frozenset({REPLY + self.into})

    def bound(self, question: Question, reach: Reach) -> Bound:
        rules = [s for s in self.table.values() if s is not None]
        meant = [s for s in rules if s.embedder is not None]
        known = sum(min(FORMS * s.table.names, MOST_NEAR) for s in meant)  # shared by all questions
        vectors = known + MOST_NAMES if meant else 0
        scored = 0 if self.model is None else MOST
        by_year = any(s.by == "year" and s.wanted(question.text) for s in rules)
        # a lookup by name rarely gives more than `top` sentences
        likely = min(scored, OF_YEAR * len(_years(question.text))) if by_year else 0
        return Bound(vectors + scored, reach, "never", likely=likely, shared=known)

    def open(self, kit: Kit) -> Ask:
        rules = [s for s in self.table.values() if s is not None]
        tables = {s.table.where: kit.data(s.table) for s in rules}
        near = {s: made for s in rules if (made := _near(kit, s)) is not None}
        score = None if self.model is None else kit.reranker(self.model)

        async def ask(questions: list[Question]) -> list[Question]:
            chosen = [self.table.of(q) for q in questions]
            found = [
                ()
                if s is None or not s.wanted(q.text)
                else await self._sentences(q, s, tables[s.table.where], near.get(s))
                for q, s in zip(questions, chosen, strict=True)
            ]
            best = await self._best(questions, found, score)
            texts = ("\n".join(storable(x) for x in lines) for lines in best)
            written = (Reply(text, ANSWERED) if text else Reply(IDK, ABSTAINED) for text in texts)
            return [
                replace(q, replies={**q.replies, self.into: reply})
                for q, reply in zip(questions, written, strict=True)
            ]

        return ask

    async def _sentences(
        self, question: Question, rule: FactsRule, table: FactsTable, near: Near | None
    ) -> tuple[str, ...]:
        if rule.by == "year":
            texts = [t for y in _years(question.text) for t in table.of_year(y)]
        else:
            assert self.entities is not None
            reply = question.replies[self.entities]
            names = reply.text.split("&&") if reply.label == ANSWERED else []
            written = [name for n in names if (name := n.strip(_QUOTES))]
            told = [await table.about(n, rule.levels, rule.company, near) for n in written[:MOST_NAMES]]
            texts = [t for some in told for t in some]
        return tuple(dict.fromkeys(texts))[:MOST]

    async def _best(
        self, questions: Sequence[Question], found: Sequence[tuple[str, ...]], score: Score | None
    ) -> list[tuple[str, ...]]:
        """Keeps the `top` best sentences of each question that has more; scores all in one call."""
        crowded = [i for i, texts in enumerate(found) if score is not None and len(texts) > self.top]
        out = list(found)
        if not crowded or score is None:
            return out
        scores = iter((await score([(questions[i].text, t) for i in crowded for t in found[i]])).tolist())
        for i in crowded:
            own_scores = [next(scores) for _ in found[i]]
            order = sorted(range(len(own_scores)), key=lambda n: (-own_scores[n], n))[: self.top]
            out[i] = tuple(found[i][n] for n in order)
        return out


def _years(text: str) -> list[int]:
    return list(dict.fromkeys(int(y) for y in _YEAR.findall(text)))


def _near(kit: Kit, rule: FactsRule) -> Near | None:
    if rule.embedder is None or rule.near is None:
        return None
    embed = kit.embedder(rule.embedder)
    return Near(model_identity(rule.embedder), lambda names: embed(names, "passage"), rule.near)
