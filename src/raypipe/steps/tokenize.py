"""Stores the words of each text next to it, so that BM25 needs no text and no analyzer at question time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from raypipe.core.protocols import Build, CorpusBound, Kit
from raypipe.text.words import ANALYZERS, Analyzer, analyse


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenize:
    """Adds `words_NAME` (hashes of the text's words, in order) and `starts_NAME` (where each starts in the
    text) for the analyzer NAME of `text.words`."""

    words: Analyzer = "stems"

    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.words not in ANALYZERS:
            raise ValueError(f"words: expected one of {', '.join(ANALYZERS)}, found {self.words!r}")

    def reads(self) -> frozenset[str]:
        return frozenset({"text"})

    def writes(self) -> frozenset[str]:
        return frozenset({f"words_{self.words}", f"starts_{self.words}"})

    def bound(self, chars: float) -> CorpusBound:
        return CorpusBound(1, chars)

    def open(self, kit: Kit) -> Build:
        async def build(table: pa.Table) -> pa.Table:
            found = [None if t is None else analyse(t, self.words) for t in table["text"].to_pylist()]
            offsets = pa.array(_offsets(found), pa.int32())
            empty = (np.zeros(0, np.uint64), np.zeros(0, np.int32))
            words, starts = (np.concatenate(a) for a in zip(empty, *(f for f in found if f), strict=True))
            table = table.append_column(f"words_{self.words}", pa.ListArray.from_arrays(offsets, words))
            return table.append_column(f"starts_{self.words}", pa.ListArray.from_arrays(offsets, starts))

        return build


def _offsets(found: list[tuple[np.ndarray, np.ndarray] | None]) -> list[int | None]:
    """Returns where each row's words begin in the flat array, null for a row that has no text; then their
    number."""
    offsets: list[int | None] = []
    at = 0
    for f in found:
        offsets.append(None if f is None else at)
        at += 0 if f is None else len(f[0])
    return [*offsets, at]
