"""Ids of sources as one array: of ten million 360 MB, as Python texts a gigabyte for each list.

What a table lacks of all sources is noted next to it, with the rows that both had then: while both stay as
they are, no id is read again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import lance
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.records import digest
from raypipe.store.corpus_sum import corpus_sum, rows_id
from raypipe.store.database import Store, absent, missing, quoted
from raypipe.store.errors import reaching
from raypipe.store.layout import COVERAGE

AT_ONCE = 1 << 16  # ids that are Python texts at a time
KEPT = 4  # notes of a table: of all its sources, and of those with chunks, for two sets of kinds
NOTED = 10_000  # ids that a table lacks: a note of more is as long as the work that it saves


@dataclass(frozen=True, slots=True, eq=False)
class SourceIds(Sequence[str]):
    """Some ids, each once, in the order of the table of sources."""

    ids: pa.Array
    all_of: str = ""  # names all sources of some kinds that a store has, where these are all; else ""

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[str]:
        for at in range(0, len(self.ids), AT_ONCE):
            yield from self.ids.slice(at, AT_ONCE).to_pylist()

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> SourceIds: ...
    def __getitem__(self, at: int | slice) -> str | SourceIds:
        found = self.ids[at]
        return SourceIds(found) if isinstance(at, slice) else str(found.as_py())

    def among(self, there: pa.Array | pa.ChunkedArray, which: str) -> SourceIds:
        """Those that stand in an array. `which` names what it has."""
        values = there.combine_chunks() if isinstance(there, pa.ChunkedArray) else there
        found = self.ids.filter(pc.is_in(self.ids, value_set=values))
        return SourceIds(found, self.name_among(which))

    def name_among(self, which: str) -> str:
        """What names those, where these are all of some kinds; else an empty text."""
        return digest(self.all_of, which) if self.all_of else ""


def all_sources(store: Store, kinds: Iterable[str]) -> SourceIds:
    """All sources of these kinds that a store has."""
    named = sorted(kinds)
    name = digest(corpus_sum(store), *named)
    if not isinstance(store.kept, SourceIds) or store.kept.all_of != name:
        found = store.scan("sources", columns=["id"], filter=f"kind IN ({quoted(named)})")["id"]
        store.kept = SourceIds(found.combine_chunks(), name)
    return store.kept


def lacked(store: Store, dataset: lance.LanceDataset, table: str, sources: Sequence[str]) -> Sequence[str]:
    """Which of some sources have no row in a table that is open at a version."""
    if not isinstance(sources, SourceIds):
        return missing(dataset, "source", sources)
    if (found := noted(store, dataset, table, sources.all_of)) is not None:
        return found
    with reaching(dataset.uri):
        left = SourceIds(absent(dataset, "source", sources.ids))
    if sources.all_of and len(left) <= NOTED and store.drives:
        notes = {**_notes(store, table), _of(dataset, sources.all_of): list(left)}
        last = dict(list(notes.items())[-KEPT:])
        store.files.write(f"{COVERAGE}/{table}.json", json.dumps(last).encode())
    return left


def noted(store: Store, dataset: lance.LanceDataset, table: str, all_of: str) -> list[str] | None:
    """The same of all sources of a name (`SourceIds.all_of`), where it was noted; else None."""
    return _notes(store, table).get(_of(dataset, all_of)) if all_of else None


def _of(dataset: lance.LanceDataset, all_of: str) -> str:
    return f"{all_of} {rows_id(dataset)}"


def _notes(store: Store, table: str) -> dict[str, list[str]]:
    """What the sources and the rows were -> what the rows lacked, the last one last."""
    found: dict[str, list[str]] = json.loads(store.files.read(f"{COVERAGE}/{table}.json") or b"{}")
    return found
