"""Dense recall: the passages whose chunks are nearest to the query. Knows vectors only through the kit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from raypipe.records import Hit, Question
from raypipe.step import Ask, Found, Kit, Model
from raypipe.steps.ranking import add_hits
from raypipe.text.template import PLAIN, query_reads, query_renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Searches the question's sources for the `top` chunks nearest to the query and adds their passages to
    `hits`.

    A passage is as near as its best chunk, and passages come in the order of their best chunks, so `top`
    chunks give at most `top` passages (db3 searches 50 children for their parents). It makes candidates:
    `order` stays as it was, and `fuse` ranks them.
    """

    model: Model
    top: int  # chunks
    query: str = PLAIN
    into: str = "recall"

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        query_reads(self.query)
        if self.top < 1:
            raise ValueError(f"top: expected at least 1 chunk, found {self.top}")

    def reads(self) -> frozenset[str]:
        return query_reads(self.query) | {"citations", "index.vector"}

    def writes(self) -> frozenset[str]:
        return frozenset({"hits", f"hits.{self.into}"})

    def open(self, kit: Kit) -> Ask:
        render = query_renderer(self.query)
        embed, index = kit.embedder(self.model), kit.index()

        async def ask(questions: list[Question]) -> list[Question]:
            vectors = await embed([render(q) for q in questions], "query")
            found = await index.search(self.model, vectors, [q.sources() for q in questions], self.top)
            return [add_hits(q, self._passages(f)) for q, f in zip(questions, found, strict=True)]

        return ask

    def _passages(self, found: list[Found]) -> list[Hit]:
        first: dict[str, Found] = {}
        for f in found:
            first.setdefault(f.chunk, f)
        return [Hit(chunk, f.source, f.passage, {self.into: float(f.score)}) for chunk, f in first.items()]
