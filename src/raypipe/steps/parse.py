"""Pages to text: the first corpus step. `text.html` reads HTML, `text.page_parser` runs it under limits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from raypipe.core.arrow import PARSED, fault_column
from raypipe.core.protocols import Build, CorpusBound, Kit
from raypipe.core.records import Block, Fault, SourceKind
from raypipe.text.blocks import plain_blocks
from raypipe.text.html import ParsedPage, Parser, Via, check, fold, storable
from raypipe.text.page_parser import ParseJob, ParseRefused, SandboxedParser

COMPARED_EVERY = 256
"""One page in 256 is parsed by BeautifulSoup too. It is 20 times slower, so this costs 8 %, and CRAG's
135,300 pages get 528 comparisons: if none differs, fewer than .6 % of all pages do (95 %, rule of three)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parse:
    """Gives every source of the named kinds its text, white-space folded, the spans that a page hides, and
    its blocks: where a title, heading, paragraph, list item, cell or menu begins and ends (`text.blocks`).

    A page's text equals BeautifulSoup's with the parser `html`; `via: fast` gets it from a faster parser, and
    one page in 256, chosen by its source id, from both (`text.html`). Sources of other kinds are not this
    recipe's to search: they leave no row, so the law of rows holds for the kinds named.

    `parser` says who read a row: fast, compared, fallback, bs4 (`text.html.Way`), or plain for what is no
    HTML. A page without text is a row with the text "". Faults: null, not_html, too_large, timeout, memory,
    crash, unparsable.
    """

    html: Parser = "lxml"
    via: Via = "fast"
    kinds: tuple[SourceKind, ...] = ("page", "snippet")

    version: ClassVar[int] = 2

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
        limited = SandboxedParser()  # its child starts with the first page and ends with the last reference

        async def build(table: pa.Table) -> pa.Table:
            # as bytes: a page goes through a pipe, and decoding it twice would cost as much as parsing it
            content = table["content"].cast(pa.large_binary())
            table = table.set_column(table.column_names.index("content"), "content", content)
            rows = [r for r in table.to_pylist() if r["kind"] in self.kinds]
            jobs = [
                ParseJob(r["content"], self.html, self.via, _chosen(r["source"]))
                for r in rows
                if r["kind"] == "page" and r["fault"] is None and r["content"] is not None
            ]
            pages = iter(await _parsed(limited, jobs) if jobs else ())
            return _table([_row(r, pages) for r in rows])

        return build


async def _parsed(limited: SandboxedParser, jobs: list[ParseJob]) -> list[ParsedPage | ParseRefused]:
    """Parses the pages on a thread. Cancelling the caller ends the parsing, too."""
    stop = threading.Event()
    try:
        return await asyncio.to_thread(limited.run, jobs, stop)
    finally:
        stop.set()


def _chosen(source: str) -> bool:
    """Whether a page is compared: by its id alone, so that batches and reruns choose the same pages."""
    return int(source[:8], 16) % COMPARED_EVERY == 0


def _row(row: dict[str, Any], pages: Iterator[ParsedPage | ParseRefused]) -> dict[str, Any]:
    out = dict.fromkeys(("text", "hidden", "blocks", "parser"), None)
    out |= {n: row[n] for n in ("source", "kind", "fault")}
    if row["fault"] is not None:
        return out | {"fault": Fault(**row["fault"])}
    if row["content"] is None:
        return out | {"fault": Fault("parse", "null", "expected content, found none", False)}
    if row["kind"] != "page":
        content = storable(row["content"].decode())
        blocks = plain_blocks(content, titled=row["kind"] == "document")
        return out | {"text": fold(content), "hidden": [], "blocks": _structs(blocks), "parser": "plain"}
    page = next(pages)
    if isinstance(page, ParseRefused):
        return out | {"fault": page.fault()}
    found = {"text": page.text, "hidden": page.hidden, "blocks": _structs(page.blocks), "parser": page.way}
    return out | found


def _structs(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    return [{"start": b.start, "end": b.end, "kind": b.kind} for b in blocks]


def _table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    columns = [pa.array([r[f.name] for r in rows], f.type) for f in PARSED]
    table = pa.table(columns, schema=PARSED)
    return table.append_column("fault", fault_column([r["fault"] for r in rows]))
