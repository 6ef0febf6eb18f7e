"""Reading without a search: the pages of a question, whole, in the order in which it cites them. The control
that every way of searching is held against."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from raypipe.core.protocols import Ask, Bound, Kit, Reach
from raypipe.core.records import Hit, Question, chunk_id
from raypipe.steps.rows import add_hits, grown


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAll:
    """Makes the pages and papers that a question cites its `order`: each whole, as one passage, the first
    cited first. A prompt shows of them what its budget holds.

    A snippet is none, and nor is a page without text. The score `into` is 1 for the first, 1/2 for the
    second. A whole store is not read: the order of a question without sources of its own is empty.
    """

    into: str = "read_all"

    version: ClassVar[int] = 1

    def reads(self) -> frozenset[str]:
        return frozenset({"citations", "index.text"})

    def writes(self) -> frozenset[str]:
        return frozenset({"hits", f"hits.{self.into}", "order"})

    def bound(self, question: Question, reach: Reach) -> Bound:
        pages = len(_pages(question))
        longest = math.inf if pages else reach.passage_chars  # nothing says how long a page is
        return Bound(0, replace(grown(reach, pages), order=pages, passage_chars=longest), "never")

    def open(self, kit: Kit) -> Ask:
        index = kit.index()

        async def ask(questions: list[Question]) -> list[Question]:
            distinct = list(dict.fromkeys(s for q in questions for s in _pages(q)))
            texts = dict(zip(distinct, await index.source_texts(distinct), strict=True))
            return [self._read(q, {s: texts[s] or "" for s in _pages(q)}) for q in questions]

        return ask

    def _read(self, question: Question, texts: dict[str, str]) -> Question:
        spans = [(s, (0, len(text))) for s, text in texts.items() if text.strip()]
        hits = [
            Hit(chunk_id(s, span), s, span, {self.into: 1 / rank}) for rank, (s, span) in enumerate(spans, 1)
        ]
        return replace(add_hits(question, hits), order=tuple(h.chunk for h in hits))


def _pages(question: Question) -> list[str]:
    """The distinct pages and papers that a question cites, in order."""
    return list(dict.fromkeys(c.page for c in question.citations or () if c.page is not None))
