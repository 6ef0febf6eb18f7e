"""Which sources the searched tables lack.

Knows the columns of texts, passages, vectors and lengths. Does not know recipes; reads, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow.compute as pc
from lance import LanceDataset

from raypipe.store.database import Store
from raypipe.store.errors import reaching
from raypipe.store.ids import Ids, stand_in
from raypipe.store.lookups import SCAN_RATIO, absent, distinct, rows, sources_with_chunks
from raypipe.store.source_ids import lacked


def lacking(store: Store, labels: Mapping[str, str], sources: Ids, at: Mapping[str, int]) -> dict[str, Ids]:
    """Label -> those of the sources that lack it; a label that none lacks is not there. `labels`: texts,
    passages, and a label of each table of vectors or lengths -> table. `at`: table -> version; for others the
    newest. A table that is not there lacks everything."""

    def opened(label: str) -> LanceDataset | None:
        table = labels[label]
        return store.dataset(table, at.get(table)) if store.has(table) else None

    def without(label: str) -> Ids:
        dataset = opened(label)
        # Of all sources, since that is noted; then those go that lack what it is made of.
        every = sources if dataset is None else lacked(store, dataset, labels[label], sources)
        return every.without(gone)

    found: dict[str, Ids] = {}
    gone = Ids.of(())
    for label in ("texts", "passages"):
        found[label] = without(label)
        gone = gone.joined(found[label])
    passages = opened("passages")
    for label in sorted(labels.keys() - {"texts", "passages"}):
        found[label] = _with_chunks(passages, without(label))
    return {label: ids for label, ids in found.items() if ids}


def by_source(lacking: Mapping[str, Ids]) -> dict[str, tuple[str, ...]]:
    """The same as source -> what it lacks."""
    found: dict[str, tuple[str, ...]] = {}
    for label, ids in lacking.items():
        for source in ids:
            found[source] = (*found.get(source, ()), label)
    return found


def _with_chunks(passages: LanceDataset | None, sources: Ids) -> Ids:
    """Those that have chunks: a source without any has no vectors."""
    if passages is None or not sources:
        return Ids.of(())
    with reaching(passages.uri):
        if len(sources) * SCAN_RATIO < passages.count_rows():
            spans = rows(passages, "source", list(sources), ["source", "start", "end"])
            there = spans.filter(pc.greater(spans["end"], spans["start"]))["source"]
        else:
            there = sources_with_chunks(passages)
    return sources.where(stand_in(sources.array, there))


def sources_without(passages: LanceDataset, lengths: LanceDataset) -> list[str]:
    """Distinct sources of a `passages` table that a `lengths` table lacks."""
    left: list[str] = absent(lengths, "source", distinct(passages, "source")).to_pylist()
    return left
