"""Which sources the searched tables lack.

Knows the columns of texts, passages, vectors and lengths. Does not know recipes; reads, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset

from raypipe.store.database import SCAN_ROWS, Store, present, rows
from raypipe.store.errors import reaching
from raypipe.store.source_ids import lacked


def lacking(
    store: Store, labels: Mapping[str, str], sources: Sequence[str], at: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """Source -> what it lacks, for each of these that lacks anything. `labels`: texts, passages, and a label
    of each table of vectors or lengths -> table. `at`: table -> version; for others the newest. A
    table that is not there lacks everything."""

    def opened(label: str) -> LanceDataset | None:
        table = labels[label]
        return store.dataset(table, at.get(table)) if store.has(table) else None

    def without(label: str) -> Sequence[str]:
        dataset = opened(label)
        return left if dataset is None else lacked(store, dataset, labels[label], left)

    found: dict[str, tuple[str, ...]] = {}
    left = sources
    for label in ("texts", "passages"):
        if lacks := without(label):
            found |= dict.fromkeys(lacks, (label,))
            left = [s for s in left if s not in found]
    passages = opened("passages")
    for label in sorted(labels.keys() - {"texts", "passages"}):
        for source in _with_chunks(passages, without(label)):
            found[source] = (*found.get(source, ()), label)
    return found


def _with_chunks(passages: LanceDataset | None, sources: Sequence[str]) -> list[str]:
    """Those that have chunks: a source without any has no vectors."""
    if passages is None or not sources:
        return []
    spans = rows(passages, "source", sources, ["source", "start", "end"])
    found: list[str] = spans.filter(pc.greater(spans["end"], spans["start"]))["source"].unique().to_pylist()
    return found


def sources_without(passages: LanceDataset, lengths: LanceDataset) -> list[str]:
    """Distinct sources of a `passages` table that a `lengths` table lacks."""
    batches = [pa.array([], pa.string())]
    with reaching(passages.uri):
        for batch in passages.to_batches(columns=["source"], batch_size=SCAN_ROWS):
            batches.append(batch["source"].unique())
    found = pa.concat_arrays(batches).unique()
    left: list[str] = found.filter(pc.invert(present(lengths, "source", found))).to_pylist()
    return left
