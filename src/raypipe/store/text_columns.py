"""What the texts table says next to a text: hidden parts and blocks. Knows its columns (`core.arrow`)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from raypipe.core.errors import ConfError
from raypipe.core.records import Block, Span

_MEANING = {"hidden": "what their pages hide", "blocks": "where their blocks begin and end"}


def text_columns(name: str, schema: pa.Schema) -> list[str]:
    """The columns to read for `hidden` or `blocks`. Raises ConfError where the table was made without."""
    if name not in schema.names:
        raise ConfError(
            f"the texts here do not say {_MEANING[name]}: index again, with `parse` in the corpus half"
        )
    return ["source", name]


def hidden_of(texts: pa.Table, sources: Sequence[str]) -> list[tuple[Span, ...]]:
    """The hidden spans of each source, from rows of the texts table."""
    found = {
        source: tuple((s["start"], s["end"]) for s in spans)
        for source, spans in zip(texts["source"].to_pylist(), texts["hidden"].to_pylist(), strict=True)
    }
    return [found.get(s, ()) for s in sources]


def blocks_of(texts: pa.Table, sources: Sequence[str]) -> list[tuple[Block, ...]]:
    """The blocks of each source, from rows of the texts table."""
    found = {
        source: tuple(Block(b["start"], b["end"], b["kind"]) for b in blocks)
        for source, blocks in zip(texts["source"].to_pylist(), texts["blocks"].to_pylist(), strict=True)
    }
    return [found.get(s, ()) for s in sources]
