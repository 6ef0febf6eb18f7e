"""The whole texts that passages are of, with what is known about them. Knows the index alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from raypipe.core.index import Index
from raypipe.core.records import parse_chunk_id
from raypipe.text.candidates import SourceText


async def source_texts(index: Index, chunks: Sequence[str]) -> dict[str, SourceText]:
    """By source id: the text, blocks and hidden spans of every source that one of these passages is of."""
    sources = list(dict.fromkeys(parse_chunk_id(c)[0] for c in chunks))
    texts, blocks, hidden = await asyncio.gather(
        index.source_texts(sources), index.blocks(sources), index.hidden(sources)
    )
    rows = zip(sources, texts, blocks, hidden, strict=True)
    return {source: SourceText(text or "", b, h) for source, text, b, h in rows}
