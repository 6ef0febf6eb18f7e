"""Dense search: over a whole snapshot, over pages that questions cite, or by an approximate index.

A search of the whole snapshot is one float32 product per batch of questions. A product for 256 questions
reads the vectors once; a scan per question would read them 256 times. Scores in float32 are inexact, so all
rows that may be among the best are then scored in double precision.

LanceDB's k-means starts from random points, so two approximate indexes of the same vectors may find different
rows. Each build therefore has its own name, which is part of the snapshot's name. The index is stored with
the table's versions, so a release that pins the versions pins the index. A compaction keeps the index's name.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset

from raypipe.core.arrow import SPANS
from raypipe.core.errors import ConfError
from raypipe.core.index import AnnRecall, Approximate, VectorHit
from raypipe.store.database import Store
from raypipe.store.errors import reaching
from raypipe.store.files import ANN
from raypipe.store.ids import rows
from raypipe.store.vectors import (
    BLOCK,
    VectorRows,
    best_first,
    best_within,
    blocks,
    exact_scores,
    product_error,
    rows_of,
    vector_copy,
)

PARTITION_ROWS = 4096  # mean rows of a partition, as LanceDB's documentation advises
NEAR_AT_ONCE = 16  # queries per call of Lance: whole vectors of all their candidates are in memory
BITS = 8  # RaBitQ rotates the dimensions in blocks of this size
OpenCopy: TypeAlias = Callable[[LanceDataset, Path, bool], VectorRows | None]
Product: TypeAlias = Callable[[np.ndarray], Callable[[np.ndarray], np.ndarray]]
"""Maps queries (n, dim) to a function from a block's vectors (rows, dim) to scores (n, rows). All are
float32; the error is at most `product_error`. `models.device.torch_product` is such a product for GPUs."""
READ_BYTES = 128 << 20  # bytes of vectors in one read of pages; a read costs 12 ms, whatever its size
PAGE_ROWS = 64  # estimated passages of a page: 31 of 700 characters, 108 of 200
AT_ONCE = 256  # questions per product; ms per question at 400,000 x 384: 37 for 1, 3.3 for 50, 1.9 for 256


def numpy_product(queries: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Prepares the product of queries and vectors (`Product`) on this process's CPU cores."""

    def scores(block: np.ndarray) -> np.ndarray:
        found: np.ndarray = queries @ block.T
        return found

    return scores


class SnapshotVectors:
    """The vectors of a table at a pinned version."""

    def __init__(
        self,
        dataset: LanceDataset,
        folder: Path,
        opened: OpenCopy = vector_copy,
        product: Product = numpy_product,
    ) -> None:
        """Stores the settings. `folder` is for a copy of the vectors on this machine. `opened` makes the copy
        at the first search of the whole snapshot, or once searches of pages have read as many rows as the
        table has. Earlier searches of pages use a copy that another process made."""
        self.dataset, self._folder, self._open, self._product = dataset, folder, opened, product
        self.dim: int = dataset.schema.field("vector").type.list_size
        self._rows = dataset.count_rows()
        self._copy: VectorRows | None = None
        self._asked: set[bool] = set()  # values of `make` for which the copy was tried
        self._read = 0  # rows of pages read from the store
        self._opening = threading.Lock()
        self._lock = threading.Lock()  # one product at a time: it uses all cores, and memory for all scores

    def best(self, calls: list[tuple[np.ndarray, int]]) -> list[list[list[VectorHit]]]:
        """Finds the best rows of the whole snapshot for several calls. A call is queries ((n, dim) float32,
        unit rows) and a `top`. The hits of a query are ordered by exact score, then source, then span."""
        queries = np.concatenate([q for q, _ in calls])
        tops = [top for q, top in calls for _ in range(len(q))]
        with self._lock:
            with self._opening:
                self._ask_copy(make=True)
            found = list[list[VectorHit]]()
            for at in range(0, len(queries), AT_ONCE):
                found += self._some(queries[at : at + AT_ONCE], tops[at : at + AT_ONCE])
        ends = np.cumsum([len(q) for q, _ in calls]).tolist()
        return [found[end - len(q) : end] for (q, _), end in zip(calls, ends, strict=True)]

    def within(
        self, queries: Sequence[tuple[np.ndarray, tuple[str, ...]]], top: int
    ) -> list[list[VectorHit]]:
        """Finds the `top` best rows of each query, a (dim,) float32 vector, among those of its sources."""
        if self._copy is None and self._opening.acquire(blocking=False):
            try:  # while one search makes the copy, the others read the store
                self._ask_copy(make=self._read >= self._rows)
            finally:
                self._opening.release()
        return best_within(self._pages(queries) if self._copy is None else [self._copy], queries, top)

    def _ask_copy(self, make: bool) -> None:
        if self._copy is None and not self._asked & {make, True}:
            self._copy = self._open(self.dataset, self._folder, make)
            self._asked.add(make)

    def _pages(self, queries: Sequence[tuple[np.ndarray, tuple[str, ...]]]) -> Iterator[VectorRows]:
        """Yields the rows of the queries' sources, from the store. A source that several queries name is read
        once."""
        sources = list(dict.fromkeys(source for _, scope in queries for source in scope))
        at_once = max(1, READ_BYTES // (self.dim * 4 * PAGE_ROWS))
        for at in range(0, len(sources), at_once):
            table = rows(self.dataset, "source", sources[at : at + at_once], [*SPANS, "vector"])
            self._read += table.num_rows
            yield rows_of(table)

    def _some(self, queries: np.ndarray, tops: list[int]) -> list[list[VectorHit]]:
        if self._copy is None:
            matrix = blocks(self.dataset)
        else:
            matrix = (m[at : at + BLOCK] for m in self._copy.matrices for at in range(0, len(m), BLOCK))
        candidates, hits = nearest_rows(matrix, queries, max(tops), self._product), []
        for query, found, top in zip(queries, candidates, tops, strict=True):
            rows = self._copy
            if rows is None:
                with reaching(self.dataset.uri):
                    table = self.dataset.take(pa.array(found), columns=[*SPANS, "vector"])
                rows, found = rows_of(table.combine_chunks()), np.arange(len(found))
            hits.append(best_first(rows.hits(found, exact_scores(rows.vectors(found), query)))[:top])
        return hits


def nearest_rows(
    matrix: Iterable[np.ndarray], queries: np.ndarray, top: int, product: Product = numpy_product
) -> list[np.ndarray]:
    """Returns candidates for each query's `top` best rows by exact score, ties included: row numbers (n,)
    int64, ascending. `matrix` yields blocks of unit rows, (rows, dim) float32, in order.

    A row is excluded if its float32 score is more than two errors below the `top`-th best one. The `top`-th
    row's exact score is at most one error lower, and the excluded row's at most one error higher.
    """
    error = 2 * product_error(queries.shape[1])
    kept = [(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in queries]
    cut = np.full(len(queries), -np.inf)
    first, score = 0, product(queries)
    for block in matrix:
        scores = score(block)  # (queries, rows) float32
        if not np.isfinite(cut).all() and len(block) >= top:
            cut = np.maximum(cut, np.partition(scores, -top, axis=1)[:, -top] - error)
        bound = np.nextafter(cut.astype(np.float32), np.float32(-np.inf))  # never above the cut
        of, row = np.nonzero(scores >= bound[:, None])
        values, ends = scores[of, row], np.searchsorted(of, np.arange(1, len(queries) + 1))
        begin = 0
        for i, end in enumerate(ends.tolist()):
            if end > begin:
                rows = np.concatenate([kept[i][0], row[begin:end] + first])
                some = np.concatenate([kept[i][1], values[begin:end]])
                if len(some) >= top:
                    cut[i] = float(np.partition(some, -top)[-top]) - error
                kept[i] = rows[some >= cut[i]], some[some >= cut[i]]
            begin = end
        first += len(block)
    return [rows for rows, _ in kept]


@dataclass(frozen=True, slots=True)
class AnnIndex:
    """An approximate index of a table at one version."""

    name: str
    unindexed: int  # rows added after it was built


def ann_index(dataset: LanceDataset) -> AnnIndex | None:
    """Describes the approximate index of a table's vectors; None if the table has none."""
    with reaching(dataset.uri):
        for found in (i for i in dataset.describe_indices() if i.field_names == ["vector"]):
            held = {id for segment in found.segments for id in segment.fragment_ids}
            left = [f for f in dataset.get_fragments() if f.fragment_id not in held]
            return AnnIndex(found.name, sum(f.count_rows() for f in left))
    return None


def build_ann(store: Store, table: str, how: Approximate) -> str:
    """Builds a table's approximate index in place of an older one, and returns its name. Removes the measured
    recall of older ones. Pinned versions keep their index. Raises ConfError for an empty table, and for
    vectors whose dimension is no multiple of `BITS`."""
    dataset = store.dataset(table)
    rows, dim = dataset.count_rows(), dataset.schema.field("vector").type.list_size
    if dim % BITS or not rows:
        raise ConfError(
            f"table {table}: {how.index} expects at least one vector, of a multiple of {BITS} numbers, "
            f"found {rows} vectors of {dim}. Leave `ann` out: the exact search takes any"
        )
    name = f"{how.index}_{uuid.uuid4().hex}"
    older = [i.name for i in dataset.describe_indices() if i.field_names == ["vector"]]
    with reaching(dataset.uri), store.durable(table):
        for old in older:  # before the build: with two indexes, Lance may search either
            store.dataset(table).drop_index(old)
        # Distance and inner product order unit rows equally, and k-means works on distances.
        store.dataset(table).create_index(
            "vector", how.index.upper(), name=name, metric="l2", num_partitions=max(1, rows // PARTITION_ROWS)
        )
    for old in store.files.names(f"{ANN}/{table}"):
        if not old.startswith(name):
            store.files.remove(f"{ANN}/{table}/{old}")
    return name


def near(dataset: LanceDataset, queries: np.ndarray, top: int, how: Approximate) -> list[list[VectorHit]]:
    """Finds about the `top` best rows of each query, ordered by exact score, then source and span. `queries`
    is (n, dim) float32, unit rows. Raises ConfError if the table has no index, or its index lacks rows."""
    require_ann(dataset)
    out: list[list[VectorHit]] = []
    for at in range(0, len(queries), NEAR_AT_ONCE):
        some = queries[at : at + NEAR_AT_ONCE]
        nearest = {"column": "vector", "q": some, "k": top, "metric": "l2", "use_index": True}
        nearest |= {"nprobes": how.probes, "refine_factor": how.refine}
        with reaching(dataset.uri):
            table = dataset.to_table(columns=[*SPANS, "vector", "_distance"], nearest=nearest)
        numbered = "query_index" in table.schema.names  # only with more than one query
        for i, query in enumerate(some):
            own = table.filter(pc.equal(table["query_index"], i)) if numbered else table
            out += best_within([rows_of(own.combine_chunks())], [(query, None)], own.num_rows)
    return out


def require_ann(dataset: LanceDataset) -> AnnIndex:
    """Returns the approximate index of a table. Raises ConfError if none exists, or it lacks rows."""
    found = ann_index(dataset)
    if found is None or found.unindexed:
        lack = "no approximate index (`ann`) is there"
        if found is not None:
            lack = f"{found.unindexed} vectors came after the approximate index {found.name} was built"
        raise ConfError(f"{dataset.uri}: {lack}: `raypipe eval RECIPE --store ...` builds it")
    return found


def _file(table: str, index: str, top: int, how: Approximate) -> str:
    return f"{ANN}/{table}/{index}-top{top}-probes{how.probes}-refine{how.refine}.json"


def recall_of(store: Store, table: str, index: str, top: int, how: Approximate) -> AnnRecall | None:
    """Reads the measured recall of an index with these settings; None if it was not measured."""
    raw = store.files.read(_file(table, index, top, how))
    return None if raw is None else AnnRecall(**json.loads(raw))


def keep_recall(store: Store, table: str, found: AnnRecall, how: Approximate) -> None:
    store.files.write(_file(table, found.index, found.top, how), json.dumps(asdict(found)).encode())
