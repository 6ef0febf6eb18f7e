"""Numbers of chunks: of some sources, and of all that a table of passages has."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.arrow import SPANS
from raypipe.store.database import Store
from raypipe.store.ids import Ids, gathered, stand_in
from raypipe.store.layout import COVERAGE
from raypipe.store.sources import rows_id


class Chunks:
    """Counts of the chunks that sources have in a table of passages, which is read when they are first asked.
    How many all sources have together is noted (`Ids.name_among`), as is the longest passage."""

    def __init__(self, store: Store, table: str) -> None:
        self._store, self._table = store, table
        self._at = rows_id(store, table, store.dataset(table)) if store.has(table) else ""

    def total(self, sources: Ids) -> int:
        if not sources:
            return 0
        name = sources.name_among(self._at)
        return self._noted(name, lambda: int(self._read[1][self._among(sources)].sum()))

    def each(self, sources: Ids) -> dict[str, int]:
        """Chunks of each of some sources that has any."""
        mask, found = self._among(sources), dict[str, int]()
        named = Ids(self._read[0].filter(pa.array(mask)))
        for source, chunks in zip(named, self._read[1][mask].tolist(), strict=True):
            found[source] = found.get(source, 0) + chunks
        return found

    @functools.cached_property
    def longest(self) -> int:
        """Characters of the longest passage."""
        return self._noted(self._at, lambda: self._read[2])

    def _among(self, sources: Ids) -> np.ndarray:
        mask: np.ndarray = stand_in(self._read[0], sources.array).to_numpy(zero_copy_only=False)
        return mask

    @functools.cached_property
    def _read(self) -> tuple[pa.Array, np.ndarray, int]:
        """The source of each stretch of chunks of one, how many it has, and the longest passage."""
        counts, longest = [np.empty(0, np.int32)], 0

        def sources() -> Iterator[pa.Array]:
            nonlocal longest
            for batch in self._store.batches(self._table, SPANS) if self._at else ():
                real = batch.filter(pc.greater(batch["end"], batch["start"]))
                if real.num_rows:
                    runs = pc.run_end_encode(real["source"])
                    counts.append(np.diff(runs.run_ends.to_numpy(), prepend=0).astype(np.int32))
                    length = pc.max(pc.subtract(real["parent_end"], real["parent_start"])).as_py()
                    longest = max(longest, length)
                    yield runs.values

        names = gathered(sources())
        return names, np.concatenate(counts), longest

    def _noted(self, name: str, count: Callable[[], int]) -> int:
        """Returns the number noted for these rows under a name, else counts it; no name: notes nothing."""
        if not self._at or not name:
            return count()
        place = f"{COVERAGE}/{self._table}-chunks.json"
        known = json.loads(self._store.files.read(place) or b"{}")
        if known.get("rows") != self._at:
            known = {"rows": self._at}
        if name not in known:
            known[name] = count()
            if self._store.drives:
                self._store.files.write(place, json.dumps(known).encode())
        return int(known[name])
