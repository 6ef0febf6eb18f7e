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
        return SourceIds(found, digest(self.all_of, which) if self.all_of else "")


def all_sources(store: Store, kinds: Iterable[str]) -> SourceIds:
    """All sources of these kinds that a store has."""
    named = sorted(kinds)
    found = store.scan("sources", columns=["id"], filter=f"kind IN ({quoted(named)})")["id"]
    return SourceIds(found.combine_chunks(), digest(corpus_sum(store), *named))


def lacked(store: Store, dataset: lance.LanceDataset, table: str, sources: Sequence[str]) -> Sequence[str]:
    """Which of some sources have no row in a table that is open at a version."""
    if not isinstance(sources, SourceIds):
        return missing(dataset, "source", sources)
    of, name = "", f"{COVERAGE}/{table}.json"
    if sources.all_of:
        of = f"{sources.all_of} {rows_id(dataset)}"
        note = json.loads(store.files.read(name) or b"{}")
        if note.get("of") == of:
            found: list[str] = note["lacks"]
            return found
    with reaching(dataset.uri):
        left = SourceIds(absent(dataset, "source", sources.ids))
    if of and len(left) <= NOTED and store.drives:
        store.files.write(name, json.dumps({"of": of, "lacks": list(left)}).encode())
    return left
