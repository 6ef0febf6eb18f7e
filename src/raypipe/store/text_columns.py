"""What the texts table says of sources: texts, hidden parts and blocks. Knows its columns (`core.arrow`).

Both indexes say it alike; how rows are read is each one's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from raypipe.core.errors import ConfError
from raypipe.core.records import Block, Span, parse_chunk_id

T = TypeVar("T")
_MEANING = {"hidden": "what their pages hide", "blocks": "where their blocks begin and end"}


class SourceTexts(ABC):
    """The half of `core.index.Index` that is about texts."""

    _texts: Any  # the table, or what is open of it

    @abstractmethod
    async def _rows(self, sources: Sequence[str], columns: list[str]) -> pa.Table:
        """Columns of the rows of these sources, as far as they are there."""

    @abstractmethod
    async def _source_texts(self, sources: Sequence[str]) -> Mapping[str, str]:
        """Source -> text, of these at least, as far as they are there."""

    async def texts(self, chunks: Sequence[str]) -> list[str]:
        places = [parse_chunk_id(c) for c in chunks]
        texts, out = await self._source_texts([source for source, _ in places]), []
        for chunk, (source, (start, end)) in zip(chunks, places, strict=True):
            if end > len(texts[source]):
                raise KeyError(f"{chunk}: its source has {len(texts[source])} characters")
            out.append(texts[source][start:end])
        return out

    async def source_texts(self, sources: Sequence[str]) -> list[str | None]:
        texts = await self._source_texts(sources)
        return [texts.get(s) for s in sources]

    async def hidden(self, sources: Sequence[str]) -> list[tuple[Span, ...]]:
        return await self._parts("hidden", lambda s: (s["start"], s["end"]), sources)

    async def blocks(self, sources: Sequence[str]) -> list[tuple[Block, ...]]:
        return await self._parts("blocks", lambda b: Block(b["start"], b["end"], b["kind"]), sources)

    async def _parts(
        self, name: str, part: Callable[[dict[str, Any]], T], sources: Sequence[str]
    ) -> list[tuple[T, ...]]:
        """A column of each source. Raises ConfError where the table was made without it."""
        if name not in self._texts.schema.names:
            raise ConfError(
                f"the texts here do not say {_MEANING[name]}: index again, with `parse` in the corpus half"
            )
        rows = await self._rows(sources, ["source", name])
        values = zip(rows["source"].to_pylist(), rows[name].to_pylist(), strict=True)
        found = {source: tuple(map(part, parts)) for source, parts in values}
        return [found.get(s, ()) for s in sources]
