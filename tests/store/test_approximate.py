"""An approximate index: hits are scored exactly, its name is its identity, and its recall is counted."""

import asyncio
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from test_index import PARTS, TEXTS, VECTORS, fill

from raypipe.core.arrow import DIGEST, id_column, id_texts
from raypipe.core.digests import model_identity
from raypipe.core.errors import ConfError
from raypipe.core.index import Approximate, VectorHit
from raypipe.core.protocols import Model
from raypipe.core.records import source_id
from raypipe.evaluation.ann import recall_over, share
from raypipe.runs.pipeline.recipe_tables import AnnStage, RecallTooLow, require_recall
from raypipe.store import PASSAGES, Store, vectors_schema
from raypipe.store.housekeeping import clean, compact, tag
from raypipe.store.index import LanceIndex, MemoryIndex, index_spec
from raypipe.store.vector_search import ann_index, build_ann, keep_recall, near, recall_of, require_ann

DIM, ROWS = 32, 9000
MODEL = Model("mini", "embedder", "hash", "", "", "", "hash@1", dim=DIM)
HOW = Approximate(index="ivf_rq", probes=1, refine=1, min_recall=0.0)


def vectors(first, count):
    """Chunks whose unit vectors lie in twenty clouds; one in ten has the vector of another."""
    rng = np.random.default_rng(first)
    clouds = np.random.default_rng(0).standard_normal((20, DIM))
    rows = clouds[rng.integers(0, 20, count)] + rng.standard_normal((count, DIM))
    rows[::10] = rows[3]
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    names = id_column(source_id("document", str(i)) for i in range(first, first + count))
    zero, end = (pa.array(np.full(count, n, np.int32)) for n in (0, 9))
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), DIM)
    return pa.Table.from_arrays([names, zero, end, zero, end, column], schema=vectors_schema(DIM))


def matrix(table):
    return table["vector"].combine_chunks().flatten().to_numpy().reshape(table.num_rows, -1)


def asked(count=40):
    rows = matrix(vectors(0, 400))[5::10][:count] + 0.02
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = Store.create(str(tmp_path_factory.mktemp("ann") / "store"))
    made.ensure(VECTORS, vectors_schema(DIM))
    fill(made, VECTORS, "one", vectors(0, ROWS))
    for table in (TEXTS, PARTS):
        made.ensure(table, PASSAGES if table == PARTS else pa.schema([("source", DIGEST)]))
    build_ann(made, VECTORS, HOW)
    return made


def searched(store, how, top, queries):
    index = LanceIndex(index_spec(store, TEXTS, PARTS, {model_identity(MODEL): VECTORS}))

    async def both():
        exact = await index.search(MODEL, queries, [None] * len(queries), top)
        return exact, await index.near(MODEL, queries, top, how)

    return asyncio.run(both())


@pytest.mark.slow
def test_recall_is_what_a_recount_by_hand_gives_and_grows_with_probes(store):
    table, queries = vectors(0, ROWS), asked(20)
    rows, place = matrix(table).astype(np.float64), {s: i for i, s in enumerate(id_texts(table["source"]))}
    means = []
    for how in (HOW, Approximate(index="ivf_rq", probes=2, refine=20, min_recall=0.0)):
        exact, found = searched(store, how, 20, queries)
        shares = [share(a, b) for a, b in zip(exact, found, strict=True)]
        for query, hits, said in zip(queries, found, shares, strict=True):
            scores = rows @ query.astype(np.float64)
            known, cut = [scores[place[h.source]] for h in hits], np.sort(scores)[-20]
            assert said == sum(k > cut - 1e-12 for k in known) / 20
            assert [h.score for h in hits] == pytest.approx(known, abs=1e-9)
            assert [(-h.score, h.source) for h in hits] == sorted((-h.score, h.source) for h in hits)
        means.append(np.mean(shares))
    assert means[0] < 1 and means[1] > 0.99, means


def test_mean_worst_and_five_percent_are_those_of_the_questions():
    shares = [1.0] * 38 + [0.25, 0.5]
    stage = AnnStage("dense", MODEL, VECTORS, 20, HOW)
    found = recall_over(shares, [f"q{i}" for i in range(40)], "name", stage)
    assert (found.mean, found.fifth, found.worst, found.worst_question) == (38.75 / 40, 0.5, 0.25, "q38")
    require_recall(stage, found)
    strict = Approximate(index="ivf_rq", probes=1, refine=1, min_recall=0.3)
    with pytest.raises(RecallTooLow, match=r"0\.3 of the exact best 20.*0\.250.*'q38'.*mean 0\.969"):
        require_recall(AnnStage("dense", MODEL, VECTORS, 20, strict), found)
    assert RecallTooLow.exit_code == 7


def test_an_equally_good_chunk_in_the_place_of_another_counts():
    hits = [VectorHit(c, (0, 1), (0, 1), s) for c, s in zip("abcd", (0.9, 0.5, 0.5, 0.5), strict=True)]
    assert share(hits[:3], [hits[0], hits[2], hits[3]]) == 1.0
    assert share([], []) == 1.0


@pytest.mark.slow
def test_an_index_keeps_its_name_until_it_is_built_again_and_pinned_versions_keep_theirs(tmp_path):
    store = Store.create(str(tmp_path / "store"))
    store.ensure(VECTORS, vectors_schema(DIM))
    assert ann_index(store.dataset(VECTORS)) is None
    with pytest.raises(ConfError, match="raypipe eval RECIPE"):
        near(store.dataset(VECTORS), asked(2), 5, HOW)
    with pytest.raises(ConfError, match=r"found 0 vectors of 32\. Leave `ann` out"):
        build_ann(store, VECTORS, HOW)
    fill(store, VECTORS, "one", vectors(0, 600))
    name = build_ann(store, VECTORS, HOW)
    pinned = store.version(VECTORS)
    tag(store, VECTORS, "release", pinned)
    store.forget(VECTORS, "source", [source_id("document", "7")])
    store.index(VECTORS)
    assert ann_index(store.dataset(VECTORS)).name == name and require_ann(store.dataset(VECTORS))
    fill(store, VECTORS, "two", vectors(ROWS, 40))
    assert ann_index(store.dataset(VECTORS)).unindexed == 40, "new rows are no part of it"
    with pytest.raises(ConfError, match=f"40 vectors came after the approximate index {name} was built"):
        near(store.dataset(VECTORS), asked(2), 5, HOW)
    assert compact(store, VECTORS, most=1)
    assert ann_index(store.dataset(VECTORS)).name == name
    again = build_ann(store, VECTORS, HOW)
    assert again != name and ann_index(store.dataset(VECTORS)).unindexed == 0
    near(store.dataset(VECTORS), asked(2), 5, HOW)
    clean(store, VECTORS, kept=timedelta(0))
    assert ann_index(store.dataset(VECTORS, pinned)).name == name
    assert len(near(store.dataset(VECTORS, pinned), asked(2), 5, HOW)[0]) == 5


@pytest.mark.slow
def test_a_measured_recall_belongs_to_index_top_and_settings(store):
    stage = AnnStage("dense", MODEL, VECTORS, 20, HOW)
    name = ann_index(store.dataset(VECTORS)).name
    found = recall_over([1.0], ["q"], name, stage)
    keep_recall(store, VECTORS, found, HOW)
    assert recall_of(store, VECTORS, name, 20, HOW) == found
    other = Approximate(index="ivf_rq", probes=2, refine=1, min_recall=0.0)
    assert recall_of(store, VECTORS, name, 10, HOW) is None is recall_of(store, VECTORS, name, 20, other)


def test_pages_in_memory_are_searched_exactly(store):
    table = vectors(0, 300)
    index = MemoryIndex(
        pa.table({"source": table["source"], "text": id_texts(table["source"])}),
        table.drop(["vector"]),
        {model_identity(MODEL): table},
    )

    async def both():
        return await index.near(MODEL, asked(3), 7, HOW), await index.search(MODEL, asked(3), [None] * 3, 7)

    one, other = asyncio.run(both())
    assert one == other


@pytest.mark.parametrize("wrong", [{"probes": 0}, {"refine": 0}, {"min_recall": 1.2}])
def test_settings_that_can_find_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        Approximate(**{"index": "ivf_rq", "probes": 1, "refine": 1, "min_recall": 0.5, **wrong})


@pytest.mark.drill
@pytest.mark.parametrize(
    "at", [f"{e}:{f}:1" for f in ("drop_index", "create_index") for e in ("call", "return")]
)
def test_a_build_that_is_killed_leaves_one_index_or_none_and_the_next_one_ends_it(tmp_path, at):
    store = Store.create(str(tmp_path / "store"))
    store.ensure(VECTORS, vectors_schema(DIM))
    fill(store, VECTORS, "one", vectors(0, 600))
    first = build_ann(store, VECTORS, HOW)
    script = Path(__file__).parent / "killed_ann.py"
    killed = subprocess.run(
        [sys.executable, str(script), store.uri, VECTORS, at], capture_output=True, text=True
    )
    assert killed.returncode == -9, killed.stderr
    names = [i.name for i in store.dataset(VECTORS).describe_indices() if i.field_names == ["vector"]]
    assert len(names) == (0 if at in ("return:drop_index:1", "call:create_index:1") else 1)
    assert build_ann(store, VECTORS, HOW) not in (first, *names)
    assert len(near(store.dataset(VECTORS), asked(2), 5, HOW)[0]) == 5
