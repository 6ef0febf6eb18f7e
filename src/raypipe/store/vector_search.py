"""Dense search over a snapshot: all of it, the pages that questions name, or by an approximate index.

A whole snapshot is one float32 product for each batch of questions: a product of 256 reads the vectors once,
where a scan for each question reads them 256 times. What could be among the best within float32's error is
then scored in double precision.

LanceDB's k-means draws its start, so two builds of an approximate index over the same vectors find other
rows. Each build therefore has a name of its own, which the snapshot's name contains; the index lies in the
table's versions, so a release pins it with them. Compaction keeps its name.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

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
    matrix_of,
    product_error,
    rows_of,
    vector_copy,
)

PARTITION_ROWS = 4096  # of a partition on average: what LanceDB's documentation advises
NEAR_AT_ONCE = 16  # queries of a call: their candidates with whole vectors are in memory together
BITS = 8  # RaBitQ rotates the dimensions in blocks of this size
OpenCopy: TypeAlias = Callable[[LanceDataset, Path, bool], VectorRows | None]
Product: TypeAlias = Callable[[np.ndarray], Callable[[np.ndarray], np.ndarray]]
"""queries (n, dim) -> what gives a block's (rows, dim) scores, (n, rows); all float32, and none errs by more
than `product_error`. A GPU's is `models.device.torch_product`."""
READ_BYTES = 128 << 20  # of vectors in one read of pages; one read costs 12 ms whatever it brings
PAGE_ROWS = 64  # passages of a page, about: 31 of 700 characters, 108 of 200
AT_ONCE = 256  # questions of a product: at 400,000 x 384 a question takes 37 ms alone, 3.3 at 50, 1.9 at 256


def numpy_product(queries: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The product on this process's cores (`Product`)."""

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
        """`folder`: where a copy on this machine may lie. `opened` makes it for the first search of the whole
        snapshot, or when searches of pages have read as many rows from the store as the table has."""
        self.dataset, self._folder, self._open, self._product = dataset, folder, opened, product
        self.dim: int = dataset.schema.field("vector").type.list_size
        self._rows = dataset.count_rows()
        self._copy: VectorRows | None = None
        self._asked: set[bool] = set()  # the values of `make` that the copy was asked for with
        self._read = 0  # rows of pages that were read from the store
        self._opening = threading.Lock()
        self._lock = threading.Lock()  # one product at a time: it takes all cores, and its scores' memory

    def best(self, calls: list[tuple[np.ndarray, int]]) -> list[list[list[VectorHit]]]:
        """For each call, queries ((n, dim) float32, unit rows) and `top`: the best of each query, by exact
        score, then source, then span."""
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
        """For each query, (dim,) float32 with its sources, the `top` best of their rows."""
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
        """The rows that the queries name, from the store. Those of pages that several name are read once."""
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
        candidates = nearest_rows(matrix, queries, max(tops), self._product)
        exact = []
        for query, found, top in zip(queries, candidates, tops, strict=True):
            if self._copy is None:
                vectors = matrix_of(self._take(found, ("vector",))["vector"].combine_chunks())
            else:
                vectors = self._copy.vectors(found)
            scores = exact_scores(vectors, query)
            if len(scores) > top:
                kept = scores >= np.partition(scores, -top)[-top]
                found, scores = found[kept], scores[kept]
            exact.append((found, scores))
        if self._copy is not None:
            hits = [self._copy.hits(*some) for some in exact]
        else:
            distinct = np.unique(np.concatenate([np.zeros(0, np.int64), *(found for found, _ in exact)]))
            rows = self._take(distinct, SPANS).to_pylist() if len(distinct) else []
            names = dict(zip(distinct.tolist(), rows, strict=True))
            hits = [
                list(map(hit_of, map(names.__getitem__, at.tolist()), scores.tolist()))
                for at, scores in exact
            ]
        return [best_first(some)[:top] for some, top in zip(hits, tops, strict=True)]

    def _take(self, found: np.ndarray, columns: Iterable[str]) -> pa.Table:
        with reaching(self.dataset.uri):
            return self.dataset.take(pa.array(found), columns=list(columns))


def hit_of(row: Mapping[str, Any], score: float) -> VectorHit:
    """A row with the columns of passages as what was found."""
    source, start, end, parent_start, parent_end = (row[name] for name in SPANS)
    return VectorHit(source.hex(), (start, end), (parent_start, parent_end), score)


def nearest_rows(
    matrix: Iterable[np.ndarray], queries: np.ndarray, top: int, product: Product = numpy_product
) -> list[np.ndarray]:
    """For each query the rows that can be among its `top` best by exact score, and all that tie with them:
    (n,) int64, ascending. `matrix`: (rows, dim) float32 blocks of unit rows, in order.

    A row whose float32 score is more than two errors below the `top`-th best one is none of them: that one's
    exact score is at most an error lower, and its own at most an error higher.
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
    unindexed: int  # rows that came after it was built


def ann_index(dataset: LanceDataset) -> AnnIndex | None:
    """The approximate index of a table's vectors; None where none was built."""
    with reaching(dataset.uri):
        for found in (i for i in dataset.describe_indices() if i.field_names == ["vector"]):
            held = {id for segment in found.segments for id in segment.fragment_ids}
            left = [f for f in dataset.get_fragments() if f.fragment_id not in held]
            return AnnIndex(found.name, sum(f.count_rows() for f in left))
    return None


def build_ann(store: Store, table: str, how: Approximate) -> str:
    """Builds the index of a table, in place of an older one, and returns its name. Versions that are
    pinned keep theirs. Raises ConfError for vectors that cannot be indexed so."""
    dataset = store.dataset(table)
    rows, dim = dataset.count_rows(), dataset.schema.field("vector").type.list_size
    if dim % BITS or not rows:
        raise ConfError(
            f"table {table}: {how.index} expects vectors of a multiple of {BITS} numbers, found {rows} "
            f"vectors of {dim}. Leave `ann` out: the exact search takes any"
        )
    name = f"{how.index}_{uuid.uuid4().hex}"
    older = [i.name for i in dataset.describe_indices() if i.field_names == ["vector"]]
    with reaching(dataset.uri), store.durable(table):
        for old in older:  # first: with two, nothing says which one is searched
            store.dataset(table).drop_index(old)
        # For unit rows distance and inner product give one order, and k-means is made for distances.
        store.dataset(table).create_index(
            "vector", how.index.upper(), name=name, metric="l2", num_partitions=max(1, rows // PARTITION_ROWS)
        )
    for old in store.files.names(f"{ANN}/{table}"):
        if not old.startswith(name):
            store.files.remove(f"{ANN}/{table}/{old}")
    return name


def near(dataset: LanceDataset, queries: np.ndarray, top: int, how: Approximate) -> list[list[VectorHit]]:
    """About the `top` best of each query ((n, dim) float32, unit rows), by exact score, then source and span.
    Raises ConfError where the table has no index, or rows that it does not have."""
    require_ann(dataset)
    out: list[list[VectorHit]] = []
    for at in range(0, len(queries), NEAR_AT_ONCE):
        some = queries[at : at + NEAR_AT_ONCE]
        nearest = {"column": "vector", "q": some, "k": top, "metric": "l2", "use_index": True}
        nearest |= {"nprobes": how.probes, "refine_factor": how.refine}
        with reaching(dataset.uri):
            table = dataset.to_table(columns=[*SPANS, "vector", "_distance"], nearest=nearest)
        numbered = "query_index" in table.schema.names  # where there is more than one query
        for i, query in enumerate(some):
            own = table.filter(pc.equal(table["query_index"], i)) if numbered else table
            scores = exact_scores(matrix_of(own["vector"].combine_chunks()), query).tolist()
            out.append(best_first(map(hit_of, own.select(SPANS).to_pylist(), scores)))
    return out


def require_ann(dataset: LanceDataset) -> AnnIndex:
    """The approximate index of a table. Raises ConfError where there is none, or it lacks rows."""
    found = ann_index(dataset)
    if found is None:
        raise ConfError(
            f"{dataset.uri}: the recipe searches by an approximate index (`ann`), and there is none: "
            "`raypipe eval RECIPE --store ...` builds it and measures its recall"
        )
    if found.unindexed:
        raise ConfError(
            f"{dataset.uri}: {found.unindexed} vectors came after the approximate index {found.name} was "
            "built: `raypipe eval RECIPE --store ...` builds it again"
        )
    return found


def _file(table: str, index: str, top: int, how: Approximate) -> str:
    return f"{ANN}/{table}/{index}-top{top}-probes{how.probes}-refine{how.refine}.json"


def recall_of(store: Store, table: str, index: str, top: int, how: Approximate) -> AnnRecall | None:
    """The measured recall of an index with these settings; None: it was not measured."""
    raw = store.files.read(_file(table, index, top, how))
    return None if raw is None else AnnRecall(**json.loads(raw))


def keep_recall(store: Store, table: str, found: AnnRecall, how: Approximate) -> None:
    store.files.write(_file(table, found.index, found.top, how), json.dumps(asdict(found)).encode())
