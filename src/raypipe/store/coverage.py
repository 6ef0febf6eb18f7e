"""Which sources a store has, and which of them the searched tables lack.

What a table lacks of all sources is noted next to it, with the rows that both had then: while both stay as
they are, no id is read again. Knows the columns of texts, passages, vectors and lengths, and no recipes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset

from raypipe.core.records import digest
from raypipe.store.corpus_sum import corpus_sum, rows_id
from raypipe.store.database import Store
from raypipe.store.errors import reaching
from raypipe.store.ids import Ids, gathered, stand_in
from raypipe.store.layout import COVERAGE
from raypipe.store.lookups import SCAN_RATIO, distinct, filters, present, rows, sources_with_chunks

KEPT = 4  # notes of a table: of all its sources, and of those with chunks, for two sets of kinds
NOTED = 10_000  # ids that a table lacks: a note of more is as long as the work that it saves


def all_sources(store: Store, kinds: Iterable[str]) -> Ids:
    """All sources of these kinds that a store has, in the order of the table; read when one is needed."""
    named = sorted(kinds)
    name = digest(corpus_sum(store), *named)
    if not isinstance(store.kept, Ids) or store.kept.all_of != name:
        where, version = next(filters("kind", named)), store.version("sources")

        def read() -> pa.Array:
            return gathered(b["id"] for b in store.batches("sources", ["id"], version=version, filter=where))

        store.kept = Ids.unread(store.count("sources", where, version), name, read)
    return store.kept


def lacked(store: Store, dataset: lance.LanceDataset, table: str, sources: Ids) -> Ids:
    """Which of some sources have no row in a table that is open at a version."""
    if (found := noted(store, dataset, table, sources.all_of)) is not None:
        return found
    with reaching(dataset.uri):
        left = sources.where(pc.invert(present(dataset, "source", sources.array)))
    if sources.all_of and len(left) <= NOTED and store.drives:
        notes = {**_notes(store, table), _of(store, dataset, table, sources.all_of): list(left)}
        last = dict(list(notes.items())[-KEPT:])
        store.files.write(f"{COVERAGE}/{table}.json", json.dumps(last).encode())
    return left


def noted(store: Store, dataset: lance.LanceDataset, table: str, all_of: str) -> Ids | None:
    """The same of all sources of a name (`Ids.name_among`), where it was noted; else None."""
    found = _notes(store, table).get(_of(store, dataset, table, all_of)) if all_of else None
    return None if found is None else Ids.of(found)


def _of(store: Store, dataset: lance.LanceDataset, table: str, all_of: str) -> str:
    return f"{all_of} {rows_id(store, table, dataset)}"


def _notes(store: Store, table: str) -> dict[str, list[str]]:
    """What the sources and the rows were -> what the rows lacked, the last one last."""
    found: dict[str, list[str]] = json.loads(store.files.read(f"{COVERAGE}/{table}.json") or b"{}")
    return found


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
    every = Ids(distinct(passages, "source"))
    return list(every.where(pc.invert(present(lengths, "source", every.array))))
