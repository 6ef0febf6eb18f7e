"""Text of sources: `Parse` extracts it from pages (in a sandbox) and plain texts; `Clean` from documents."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from raypipe.core.arrow import PARSED, fault_column
from raypipe.core.protocols import Build, CorpusBound, Kit
from raypipe.core.records import Block, Fault, SourceKind
from raypipe.text.blocks import plain_blocks
from raypipe.text.page_parser import (
    ParsedPage,
    ParseJob,
    Parser,
    SandboxedParser,
    Via,
    check,
    fold,
    shown,
    storable,
)
from raypipe.text.sanitize import clean

COMPARED_EVERY = 256
"""BeautifulSoup checks one page in this many. It is 20 times slower than the fast parser: checks cost 8 %. If
none of 528 checks of CRAG's 135,300 pages differs, fewer than .6 % of all pages do (95 %, rule of three)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parse:
    """Extracts text, hidden spans and blocks of every source of the named kinds.

    White space in the text is folded. A block is the span of a title, heading, paragraph, list item, cell or
    menu (`text.blocks`). A page's text is that of BeautifulSoup with the parser `html`. `via: fast` uses a
    faster parser, which gives the same text except on some broken pages; BeautifulSoup checks one page in
    256, chosen by source id (`text.page_parser`). Sources of other kinds are not searched and give no row.

    The column `parser` names the parser of a row (`text.page_parser.Way`), or plain for sources without HTML.
    A page without text is a row with the text "". Reasons of faults: null, not_html, too_large, timeout,
    memory, crash, unparsable.
    """

    html: Parser = "lxml"  # parser of BeautifulSoup
    via: Via = "fast"  # fast: a faster parser, some pages checked; bs4: BeautifulSoup for all pages
    kinds: tuple[SourceKind, ...] = ("page", "snippet")  # kinds of sources to parse

    version: ClassVar[int] = 5

    def __post_init__(self) -> None:
        check(self.html, self.via)
        if not self.kinds:
            raise ValueError("kinds: expected at least one kind of source, found none")

    def reads(self) -> frozenset[str]:
        return frozenset({"source", "kind", "content", "fault"})

    def writes(self) -> frozenset[str]:
        return frozenset({"text", "hidden", "blocks", "parser", "fault"})

    def bound(self, chars: float) -> CorpusBound:
        return CorpusBound(1, chars)  # a parsed text is never longer than its source

    def open(self, kit: Kit) -> Build:
        limited = SandboxedParser()  # its child process starts with the first page; it ends with this object

        async def build(table: pa.Table) -> pa.Table:
            rows = rows_of(table, self.kinds)
            # Only a byte of the source id decides, so that all batches and reruns compare the same pages.
            jobs = [
                ParseJob(r["content"], self.html, self.via, r["source"][3] % COMPARED_EVERY == 0)
                for r in rows
                if r["kind"] == "page" and r["fault"] is None and r["content"] is not None
            ]
            stop = threading.Event()  # if the caller is cancelled, parsing ends too
            try:
                pages = iter(await asyncio.to_thread(limited.run, jobs, stop) if jobs else ())
            finally:
                stop.set()
            return parsed_table(rows, partial(_row, pages), "parse")

        return build


def _row(pages: Iterator[ParsedPage | Fault], row: dict[str, Any]) -> ParsedPage | Fault:
    if row["kind"] != "page":
        content = shown(row["content"].decode())
        blocks = plain_blocks(content, titled=row["kind"] == "document")
        return ParsedPage(fold(content), (), "plain", blocks)
    return next(pages)


def rows_of(table: pa.Table, kinds: Sequence[SourceKind]) -> list[dict[str, Any]]:
    """Returns the rows of a table that have one of `kinds`, as dicts with content as bytes. Content as text
    would be decoded here and again in the parser's process, which costs as much as parsing."""
    content = table["content"].cast(pa.large_binary())
    table = table.set_column(table.column_names.index("content"), "content", content)
    return [r for r in table.to_pylist() if r["kind"] in kinds]


def parsed_table(
    rows: Sequence[dict[str, Any]], read: Callable[[dict[str, Any]], ParsedPage | Fault], step: str
) -> pa.Table:
    """Builds the output table of a parsing step from `rows` of `rows_of`. `read` parses one row. A row with a
    fault keeps it. A row without content gets a fault of `step` with the reason null."""
    found: list[ParsedPage | Fault] = []
    for row in rows:
        if row["fault"] is not None:
            found.append(Fault(**row["fault"]))
        elif row["content"] is None:
            found.append(Fault(step, "null", "expected content, found none", False))
        else:
            found.append(read(row))
    pages = [p if isinstance(p, ParsedPage) else None for p in found]
    columns: dict[str, list[Any]] = {
        **{name: [r[name] for r in rows] for name in ("source", "kind")},
        "text": [p and p.text for p in pages],
        "hidden": [p and p.hidden for p in pages],
        "blocks": [p and [{"start": b.start, "end": b.end, "kind": b.kind} for b in p.blocks] for p in pages],
        "parser": [p and p.way for p in pages],
    }
    table = pa.table([pa.array(columns[f.name], f.type) for f in PARSED], schema=PARSED)
    return table.append_column("fault", fault_column([f if isinstance(f, Fault) else None for f in found]))


UNTITLED = "None"
"""Replacement for a title that is missing or empty after cleaning, as in Onewo's own cleaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clean:
    """Cleans every document to the text that Onewo searches: its title, a newline, and the rest.

    Title and rest are cleaned separately (`text.sanitize`). The title is the first line, as the readers of
    BEIR's and OAG-QA's files write it; a missing title becomes "None". A document that is empty after
    cleaning has the text "". Sources of other kinds are not searched and give no row. Reason of faults: null.
    """

    kinds: tuple[SourceKind, ...] = ("document",)  # kinds of sources to clean

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
            return parsed_table(rows_of(table, self.kinds), _cleaned, "clean")

        return build


def _cleaned(row: dict[str, Any]) -> ParsedPage:
    title, _, rest = storable(row["content"].decode()).partition("\n")
    title, rest = clean(title), clean(rest)
    if not (title or rest):
        return ParsedPage("", (), "plain")
    title = title or UNTITLED
    blocks, text = [Block(0, len(title), "title")], title
    if rest:
        text = f"{title}\n{rest}"
        blocks.append(Block(len(title) + 1, len(text), "paragraph"))
    return ParsedPage(text, (), "plain", tuple(blocks))
