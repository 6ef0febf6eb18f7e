"""One product for many questions gives each the rows that brute force gives it, wherever the vectors lie."""

import asyncio
import functools
import gc
import os
import subprocess
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from checkout import SUPPORT
from test_index import DIM, MODEL, VECTORS, by_force, fill, make_corpus, unit

from raypipe.core.arrow import fault_column, id_column, id_texts
from raypipe.core.single_flight import Gathering
from raypipe.steps.embed import Embed
from raypipe.store import Store, vectors_schema
from raypipe.store.index import LanceIndex, MemoryIndex, index_spec
from raypipe.store.vector_search import SnapshotVectors, nearest_rows, numpy_product
from raypipe.store.vectors import vector_copy


@pytest.fixture(scope="module")
def corpus():
    return make_corpus(3, pages=25)


@pytest.fixture(scope="module")
def store(corpus, tmp_path_factory):
    made = Store.create(str(tmp_path_factory.mktemp("products") / "store"))
    made.ensure(VECTORS, vectors_schema(DIM))
    fill(made, VECTORS, "run", corpus[2].cast(vectors_schema(DIM)))
    return made


def queries(corpus, count):
    shared = np.stack(corpus[2]["vector"].to_pylist()[:5])  # vectors that many chunks have
    return unit(np.concatenate([shared, np.random.default_rng(0).standard_normal((count, DIM))]))


def found(dataset, folder, asked, top, **how):
    opened = functools.partial(vector_copy, **how)
    [hits] = SnapshotVectors(dataset, folder, opened).best([(asked, top)])
    return [[(-h.score, h.source, h.span, h.passage) for h in some] for some in hits]


@pytest.mark.parametrize("top", [1, 7, 5000])
def test_memory_a_mapped_copy_and_a_full_disk_give_what_brute_force_gives(store, corpus, tmp_path, top):
    dataset, asked = store.dataset(VECTORS), queries(corpus, 9)
    expected = [by_force(corpus[2], q, None, top) for q in asked]
    assert found(dataset, tmp_path, asked, top) == expected
    assert not list(tmp_path.iterdir())
    assert found(dataset, tmp_path, asked, top, in_memory=0, free=lambda where: 0) == expected
    assert not list(tmp_path.glob("*.rows"))
    for _ in range(2):
        assert found(dataset, tmp_path, asked, top, in_memory=0) == expected
        [copy] = tmp_path.glob("*.rows/vectors.npy")
        assert dataset.count_rows() * DIM * 4 < copy.stat().st_size < dataset.count_rows() * DIM * 4 + 200


def test_blocks_of_any_size_give_the_rows_of_a_full_sort_with_all_ties():
    rng = np.random.default_rng(5)
    matrix = unit(rng.standard_normal((700, 8)))
    matrix[rng.integers(0, 700, 300)] = matrix[0]
    asked = unit(np.concatenate([matrix[:1], rng.standard_normal((20, 8))]))
    exact = asked.astype(np.float64) @ matrix.astype(np.float64).T
    for size, top in [(1, 3), (64, 1), (64, 100), (700, 10), (64, 900)]:
        some = nearest_rows((matrix[at : at + size] for at in range(0, 700, size)), asked, top)
        for rows, scores in zip(some, exact, strict=True):
            cut = np.sort(scores)[-top] if top <= 700 else -np.inf
            assert set(np.flatnonzero(scores >= cut)) <= set(rows.tolist())
            assert (scores[rows] >= cut - 1e-5).all()


def matrix(store, folder):
    [found] = vector_copy(store.dataset(VECTORS), folder, in_memory=0).matrices
    return found


def test_a_copy_is_of_one_version_and_one_that_is_cut_is_made_again(store, corpus, tmp_path):
    other = Store.create(str(tmp_path / "store"))
    other.ensure(VECTORS, vectors_schema(DIM))
    fill(other, VECTORS, "one", corpus[2].cast(vectors_schema(DIM)))
    folder = tmp_path / "copies"
    before = np.array(matrix(other, folder))
    [copy] = folder.glob("*.rows")
    for name in ("vectors", "spans", "runs"):
        file = copy / f"{name}.npy"
        file.write_bytes(file.read_bytes()[:-4])
        assert (matrix(other, folder) == before).all()
    os.utime(copy, (0, 0))
    gone = corpus[2]["source"][0].as_py().hex()
    other.forget(VECTORS, "source", [gone])
    after = matrix(other, folder)
    assert len(after) < len(before) and len(list(folder.glob("*.rows"))) == 1, "the old one was not used"
    named = found(other.dataset(VECTORS), folder, queries(corpus, 3), 10, in_memory=0)
    assert gone not in {h[1] for some in named for h in some}
    # The same table and version in a store that was made again has other data files.
    again = Store.create(str(tmp_path / "again"))
    again.ensure(VECTORS, vectors_schema(DIM))
    fill(again, VECTORS, "one", corpus[2].slice(0, 20).cast(vectors_schema(DIM)))
    assert len(matrix(again, folder)) == 20


def test_questions_that_share_a_scope_are_answered_as_each_alone(corpus, tmp_path):
    from test_index import PARTS, TEXTS, fill_all, model_identity

    store = Store.create(str(tmp_path / "store"))
    fill_all(store, corpus)
    index = LanceIndex(index_spec(store, TEXTS, PARTS, {model_identity(MODEL): VECTORS}))
    names = id_texts(corpus[0]["source"])
    asked = queries(corpus, 40)
    scopes = [(tuple(names[:9]), None, tuple(names[5:6]), ())[i % 4] for i in range(len(asked))]
    hits = asyncio.run(index.search(MODEL, asked, scopes, 6))
    for query, scope, some in zip(asked, scopes, hits, strict=True):
        expected = by_force(corpus[2], query, scope, 6)
        assert [(-h.score, h.source, h.span, h.passage) for h in some] == expected


def scoped(vectors, asked, scopes, top):
    hits = vectors.within(list(zip(asked, scopes, strict=True)), top)
    return [[(-h.score, h.source, h.span, h.passage) for h in some] for some in hits]


def test_pages_are_read_from_the_store_until_a_copy_has_paid(store, corpus, tmp_path):
    """From the store, from a copy that another process made, and without room for one: the same hits."""
    names, asked = id_texts(corpus[0]["source"]), queries(corpus, 9)
    scopes = [(tuple(names[i:]), tuple(names[:3]), ("0" * 32,), ())[i % 4] for i in range(len(asked))]
    expected = [by_force(corpus[2], q, s, 7) for q, s in zip(asked, scopes, strict=True)]
    large = functools.partial(vector_copy, in_memory=0)
    first = SnapshotVectors(store.dataset(VECTORS), tmp_path, large)
    assert scoped(first, asked, scopes, 7) == expected
    assert not list(tmp_path.iterdir()), "a copy would have cost more than what was read"
    other = SnapshotVectors(store.dataset(VECTORS), tmp_path, large)
    assert scoped(first, asked, scopes, 7) == expected and scoped(other, asked, scopes, 7) == expected
    assert len(list(tmp_path.glob("*.rows"))) == 1
    full = SnapshotVectors(
        store.dataset(VECTORS), tmp_path / "full", functools.partial(large, free=lambda where: 0)
    )
    assert [scoped(full, asked, scopes, 7) for _ in range(3)] == [expected] * 3


def test_calls_that_wait_are_computed_together_and_fail_together():
    sizes, first = [], threading.Event()

    def compute(items):
        first.wait(10)
        sizes.append(len(items))
        if 7 in items:
            raise ValueError("seven")
        return [i * 2 for i in items]

    async def many():
        double = Gathering(compute)
        alone = asyncio.create_task(double(1))
        await asyncio.sleep(0.01)
        rest = [asyncio.create_task(double(i)) for i in range(2, 6)]
        await asyncio.sleep(0.01)
        rest[0].cancel()
        first.set()
        assert await alone == 2 and await asyncio.gather(*rest[1:]) == [6, 8, 10]
        wrong = await asyncio.gather(double(7), double(8), return_exceptions=True)
        assert all(isinstance(w, ValueError) for w in wrong)
        return await double(9)

    assert asyncio.run(many()) == 18 and sizes[:2] == [1, 4]


def test_a_folder_that_cannot_be_written_is_told_and_the_table_is_read(store, corpus, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    dataset, asked = store.dataset(VECTORS), queries(corpus, 3)
    expected = [by_force(corpus[2], q, None, 7) for q in asked]
    assert found(dataset, tmp_path / "file" / "copies", asked, 7, in_memory=0) == expected
    assert "vectors are read from the store for each batch" in caplog.text


MAKES_COPIES = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
from raypipe.store import Store
from raypipe.store.vectors import vector_copy

dataset, folder = Store.open(sys.argv[1]).dataset(sys.argv[2]), Path(sys.argv[3])
expected = np.concatenate(vector_copy(dataset, folder).matrices)
with ThreadPoolExecutor(4) as threads:
    for n in range(10):
        made = list(threads.map(lambda _: vector_copy(dataset, folder / str(n), in_memory=0), range(4)))
        made.append(vector_copy(dataset, folder / str(n), in_memory=0))
        assert made[-1] is not None
        assert all(np.array_equal(copy.matrices[0], expected) for copy in made if copy is not None)
print("equal")
"""


@pytest.mark.slow
def test_where_a_lock_locks_nothing_copies_made_at_once_are_whole_or_none(store, tmp_path):
    given = ["flock", MAKES_COPIES, store.uri, VECTORS, tmp_path]
    command = [sys.executable, SUPPORT / "without_calls.py", *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode == 77:
        pytest.skip("this kernel takes no filter of calls")
    assert done.stdout == "equal\n", done.stderr


def test_a_loop_that_is_closed_is_not_held():
    gathering = Gathering(lambda items: items)

    async def twice():
        return await gathering(1), await asyncio.gather(gathering(2), gathering(3))

    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(twice()) == (1, [2, 3])
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    held = weakref.ref(loop)
    del loop
    gc.collect()
    assert held() is None


@pytest.mark.slow
def test_a_product_by_torch_finds_what_numpy_finds(store, corpus):
    torch = pytest.importorskip("torch")
    from raypipe.models.device import product_on, torch_product

    dataset, asked = store.dataset(VECTORS), queries(corpus, 30)
    before = torch.backends.cuda.matmul.allow_tf32
    for top in (1, 40):
        [by_torch] = SnapshotVectors(dataset, Path(), product=torch_product("cpu")).best([(asked, top)])
        [by_numpy] = SnapshotVectors(dataset, Path()).best([(asked, top)])
        assert by_torch == by_numpy
    assert torch.backends.cuda.matmul.allow_tf32 == before
    assert product_on("cpu") is numpy_product
    on_gpu = product_on("cuda") is not numpy_product
    assert on_gpu == torch.cuda.is_available(), "a pool without a GPU computes on its cores"


HALF = replace(MODEL, dtype="float16")


def test_float16_tables_are_searched_exactly_alone_in_batches_and_within_a_scope(corpus, tmp_path):
    """What is stored is rounded; what is found of it is what a full sort finds."""
    from test_index import PARTS, TEXTS, fill_all, model_identity

    store = Store.create(str(tmp_path / "store"))
    fill_all(store, corpus)
    rounded = np.stack(corpus[2]["vector"].to_pylist()).astype(np.float16)
    column = pa.FixedSizeListArray.from_arrays(pa.array(rounded.ravel()), DIM)
    table = corpus[2].drop(["vector"]).append_column("vector", column)
    name = f"vectors-{'9' * 32}"
    store.ensure(name, vectors_schema(DIM, half=True))
    fill(store, name, "half", table.cast(vectors_schema(DIM, half=True)))
    names, asked = id_texts(corpus[0]["source"]), queries(corpus, 40)
    whole = (
        corpus[2]
        .drop(["vector"])
        .append_column(
            "vector", pa.FixedSizeListArray.from_arrays(pa.array(rounded.astype(np.float32).ravel()), DIM)
        )
    )
    scopes = [(tuple(names[:9]), None, tuple(names[5:6]), ())[i % 4] for i in range(len(asked))]
    indexes = [
        LanceIndex(index_spec(store, TEXTS, PARTS, {model_identity(HALF): name})),
        MemoryIndex(corpus[0], corpus[1], {model_identity(HALF): table}),
    ]
    for index in indexes:
        hits = asyncio.run(index.search(HALF, asked, scopes, 6))
        for query, scope, some in zip(asked, scopes, hits, strict=True):
            expected = by_force(whole, query, scope, 6)
            assert [(-h.score, h.source, h.span, h.passage) for h in some] == expected
    [copied] = vector_copy(store.dataset(name), tmp_path / "copies", in_memory=0).matrices
    assert copied.dtype == np.float32
    assert found(store.dataset(name), tmp_path, asked, 7) == [by_force(whole, q, None, 7) for q in asked]


def test_a_model_of_16_bits_has_a_table_of_16_bits_and_another_name():
    assert (HALF.half, replace(HALF, dtype="bfloat16").half, MODEL.half) == (True, True, False)
    step = Embed(model=replace(HALF, loader="hash", dim=8))
    texts = pa.table({"source": id_column(["a" * 32]), "chunk_text": pa.array(["velora"], pa.large_string())})
    table = texts.append_column("fault", fault_column([None]))

    class Kit:
        def embedder(self, model):
            async def embed(texts, role):
                return unit(np.ones((len(texts), model.dim)))

            return embed

    built = asyncio.run(step.open(Kit())(table))
    assert built["vector"].type == pa.list_(pa.float16(), 8)
