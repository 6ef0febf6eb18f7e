"""Documents to cleaned texts, title first: a corpus half's first step in place of `parse`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from raypipe.core.arrow import PARSED, fault_column
from raypipe.core.protocols import Build, CorpusBound, Kit
from raypipe.core.records import Fault, SourceKind
from raypipe.text.clean import clean
from raypipe.text.html import storable

UNTITLED = "None"
"""What stands for a title that is missing or has no text left, as in Onewo's own cleaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clean:
    """Gives every document the text that Onewo searches: its title, a newline and the rest, each cleaned
    (`text.clean`). The first line of a document is its title, as the readers of BEIR's and OAG-QA's files
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
            content = table["content"].cast(pa.large_binary())
            table = table.set_column(table.column_names.index("content"), "content", content)
            rows = [_row(r) for r in table.to_pylist() if r["kind"] in self.kinds]
            columns = [pa.array([r[f.name] for r in rows], f.type) for f in PARSED]
            faults = fault_column([r["fault"] for r in rows])
            return pa.table(columns, schema=PARSED).append_column("fault", faults)

        return build


def _row(row: dict[str, Any]) -> dict[str, Any]:
    out = dict.fromkeys(("text", "hidden", "blocks", "parser"), None)
    out |= {n: row[n] for n in ("source", "kind", "fault")}
    if row["fault"] is not None:
        return out | {"fault": Fault(**row["fault"])}
    if row["content"] is None:
        return out | {"fault": Fault("clean", "null", "expected content, found none", False)}
    title, _, rest = storable(row["content"].decode()).partition("\n")
    title, rest = clean(title), clean(rest)
    if not (title or rest):
        return out | {"text": "", "hidden": [], "blocks": [], "parser": "plain"}
    title = title or UNTITLED
    text = f"{title}\n{rest}" if rest else title
    blocks = [{"start": 0, "end": len(title), "kind": "title"}]
    if rest:
        blocks.append({"start": len(title) + 1, "end": len(text), "kind": "paragraph"})
    return out | {"text": text, "hidden": [], "blocks": blocks, "parser": "plain"}
