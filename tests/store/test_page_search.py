"""Search within pages: a page in pieces, several blocks, and scores that differ beyond float32 alone."""

import numpy as np
import pyarrow as pa
from storerows import hex_id

from raypipe.core.arrow import SPANS, id_column
from raypipe.store.vectors import best_within, rows_of


def table(sources, vectors, first=0):
    sources = list(sources)
    n = len(sources)
    at = np.arange(first, first + n, dtype=np.int32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    spans = [id_column(sources), *(pa.array(x) for x in (at, at + 1, at, at + 1))]
    return pa.Table.from_arrays([*spans, column], names=[*SPANS, "vector"])


def test_blocks_and_pieces_of_pages_give_what_a_full_sort_gives():
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((200, 8)).astype(np.float32)
    vectors[::3] = vectors[1]  # many equal ones: ties go by source, then span
    vectors[::5] = np.nextafter(vectors[1], np.float32(9))  # and nearly equal ones
    sources = [hex_id(i) for i in rng.integers(0, 12, 200)]
    queries = rng.standard_normal((3, 8)).astype(np.float32)
    scopes = [(hex_id(3), hex_id(1), hex_id(3), hex_id("none")), None, tuple(map(hex_id, range(12)))]
    parts = [table(sources[a:b], vectors[a:b], a) for a, b in ((0, 90), (90, 91), (91, 200))]
    blocks = [rows_of(pa.concat_tables(parts[:2])), rows_of(parts[2])]
    found = best_within(blocks, list(zip(queries, scopes, strict=True)), 20)
    for query, scope, hits in zip(queries, scopes, found, strict=True):
        exact = (vectors.astype(np.float64) * query.astype(np.float64)).sum(axis=1)
        inside = [i for i in range(200) if scope is None or sources[i] in scope]
        best = sorted(inside, key=lambda i: (-exact[i], sources[i], i))[:20]
        assert [(h.source, h.span, h.score) for h in hits] == [
            (sources[i], (i, i + 1), exact[i]) for i in best
        ]


def test_pages_side_by_side_are_one_stretch():
    rows = rows_of(table(map(hex_id, "aabbcc"), np.zeros((6, 2), np.float32)))
    assert rows.stretches(list(map(hex_id, "abc"))) == rows.stretches(None) == [(0, 6)]
    assert {tuple(rows.stretches(list(map(hex_id, n)))[0]) for n in "abc"} == {(0, 2), (2, 4), (4, 6)}
    assert rows.stretches(()) == rows.stretches((hex_id("z"),)) == []
    assert rows_of(table([], np.zeros((0, 2), np.float32))).stretches((hex_id("a"),)) == []


def test_vectors_are_searched_where_they_were_read():
    """A page in pieces, in a slice of a table of two batches: no copy is made."""
    vectors = np.arange(20, dtype=np.float32).reshape(10, 2)
    whole = pa.concat_tables(
        [table(map(hex_id, "abbab"), vectors[:5]), table(map(hex_id, "bbbbc"), vectors[5:], 5)]
    )
    rows = rows_of(whole.slice(1))
    assert rows.stretches((hex_id("b"),)) == [(0, 2), (3, 4), (4, 8)]
    assert all(np.shares_memory(matrix, vectors) for matrix in rows.matrices)
