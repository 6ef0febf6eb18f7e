"""Documents to cleaned texts, title first: a corpus half's first step in place of `parse`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from raypipe.core.protocols import Build, CorpusBound, Kit
from raypipe.core.records import Block, SourceKind
from raypipe.steps.parse import parsed_table, rows_of
from raypipe.text.html import ParsedPage, storable
from raypipe.text.sanitize import clean

UNTITLED = "None"
"""The text that stands for a title that is missing or has no text left, as in Onewo's own cleaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clean:
    """Gives every document the text that Onewo searches: its title, a newline and the rest, each cleaned
    (`text.sanitize`). The first line of a document is its title, as the readers of BEIR's and OAG-QA's files
    have it; one without a title has the title "None". A document of which nothing is left has the text "".

    Sources of other kinds are not this recipe's to search: they leave no row, so the law of rows holds for
    the kinds named. Faults: null.
    """

    kinds: tuple[SourceKind, ...] = ("document",)

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not self.kinds or "page" in self.kinds:
            raise ValueError(f"kinds: expected kinds of plain text, found {', '.join(self.kinds) or 'none'}")

    def reads(self) -> frozenset[str]:
        return frozenset({"source", "kind", "content", "fault"})

    def writes(self) -> frozenset[str]:
        return frozenset({"text", "hidden", "blocks", "parser", "fault"})

    def bound(self, chars: float) -> CorpusBound:
        return CorpusBound(1, chars + len(UNTITLED) + 1)

    def open(self, kit: Kit) -> Build:
        async def build(table: pa.Table) -> pa.Table:
            return parsed_table(rows_of(table, self.kinds), _row, "clean")

        return build


def _row(row: dict[str, Any]) -> ParsedPage:
    title, _, rest = storable(row["content"].decode()).partition("\n")
    title, rest = clean(title), clean(rest)
    if not (title or rest):
        return ParsedPage("", (), "plain")
    title = title or UNTITLED
    if not rest:
        return ParsedPage(title, (), "plain", (Block(0, len(title), "title"),))
    text = f"{title}\n{rest}"
    body = Block(len(title) + 1, len(text), "paragraph")
    return ParsedPage(text, (), "plain", (Block(0, len(title), "title"), body))
