"""An approximate index over the vectors of a table: built, named, searched, and its measured recall.

LanceDB's k-means draws its start, so two builds over the same vectors find other rows. Each build therefore
has a name of its own, which the snapshot's name contains; the index lies in the table's versions, so a
release pins it with them. Compaction keeps its name. Knows Lance.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from lance import LanceDataset

from raypipe.core.arrow import SPANS
from raypipe.core.errors import ConfError
from raypipe.core.index import AnnRecall, Approximate, VectorHit
from raypipe.store.database import Store
from raypipe.store.errors import reaching
from raypipe.store.layout import ANN
from raypipe.store.products import hit_of
from raypipe.store.vector_rows import best_first, exact_scores, matrix_of

PARTITION_ROWS = 4096  # of a partition on average: what LanceDB's documentation advises
AT_ONCE = 16  # queries of a call: their candidates with whole vectors are in memory together
BITS = 8  # RaBitQ rotates the dimensions in blocks of this size


@dataclass(frozen=True, slots=True)
class AnnIndex:
    """An approximate index of a table at one version."""

    name: str
    unindexed: int  # rows that came after it was built


def ann_index(dataset: LanceDataset) -> AnnIndex | None:
    """The approximate index of a table's vectors; None where none was built."""
    with reaching(dataset.uri):
        for found in _indices(dataset):
            held = {id for segment in found.segments for id in segment.fragment_ids}
            left = [f for f in dataset.get_fragments() if f.fragment_id not in held]
            return AnnIndex(found.name, sum(f.count_rows() for f in left))
    return None


def _indices(dataset: LanceDataset) -> list[Any]:
    return [i for i in dataset.describe_indices() if i.field_names == ["vector"]]


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
    older = [i.name for i in _indices(dataset)]
    with reaching(dataset.uri), store.durable(table):
        for old in older:  # first: with two, nothing says which one is searched
            store.dataset(table).drop_index(old)
        # For unit rows distance and inner product give one order, and k-means is made for distances.
        store.dataset(table).create_index(
            "vector", how.index.upper(), name=name, metric="l2",
            num_partitions=max(1, rows // PARTITION_ROWS),
        )  # fmt: skip
    for old in store.files.names(f"{ANN}/{table}"):
        if not old.startswith(name):
            store.files.remove(f"{ANN}/{table}/{old}")
    return name


def near(dataset: LanceDataset, queries: np.ndarray, top: int, how: Approximate) -> list[list[VectorHit]]:
    """About the `top` best of each query ((n, dim) float32, unit rows), by exact score, then source and span.
    Raises ConfError where the table has no index, or rows that it does not have."""
    require_ann(dataset)
    out: list[list[VectorHit]] = []
    for at in range(0, len(queries), AT_ONCE):
        some = queries[at : at + AT_ONCE]
        nearest = {
            "column": "vector", "q": some, "k": top, "metric": "l2", "nprobes": how.probes,
            "refine_factor": how.refine, "use_index": True,
        }  # fmt: skip
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


def recall_of(store: Store, table: str, index: str, top: int, how: Approximate) -> AnnRecall | None:
    """The measured recall of an index with these settings; None: it was not measured."""
    raw = store.files.read(_file(table, index, top, how))
    return None if raw is None else AnnRecall(**json.loads(raw))


def keep_recall(store: Store, table: str, found: AnnRecall, how: Approximate) -> None:
    store.files.write(_file(table, found.index, found.top, how), json.dumps(asdict(found)).encode())


def _file(table: str, index: str, top: int, how: Approximate) -> str:
    return f"{ANN}/{table}/{index}-top{top}-probes{how.probes}-refine{how.refine}.json"
