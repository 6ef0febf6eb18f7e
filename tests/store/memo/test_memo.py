"""A kit that remembers gives what the kit gives, and asks for less."""

import asyncio
import hashlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from reruns import refusing

from raypipe.core.digests import model_identity
from raypipe.core.errors import OutOfMemory
from raypipe.core.protocols import Model
from raypipe.core.records import digest
from raypipe.store import Store
from raypipe.store.errors import StoreUnavailable
from raypipe.store.files import Files
from raypipe.store.housekeeping import compact
from raypipe.store.memo.cached import CallCount, CallCounts, cached
from raypipe.store.memo.disk import MergeSummary, StoreMemo, memo_versions, merge_memo
from raypipe.store.memo.lookup import lookup
from raypipe.store.memo.memo import ENTRY_BYTES, MemoryMemo, MemoTable, score_keys, scores_of, vectors_of

MINI = Model("mini", "embedder", "flagembedding", "", "", "", "sha256:1", dim=8)
RANK = Model("rank", "reranker", "flagembedding", "", "", "", "sha256:2")


def numbers(*parts, count):
    seed = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(seed, "little")).standard_normal(count, np.float32)


class HashKit:
    """Computes vectors and scores from the texts alone, and writes down what it was asked."""

    def __init__(self):
        self.asked = []
        self.loaded = []

    def embedder(self, model):
        self.loaded.append(model.name)

        async def embed(texts, role):
            self.asked.append(list(texts))
            rows = [numbers(model.weights, role, t, count=model.dim) for t in texts]
            out = np.stack(rows) if rows else np.empty((0, model.dim), np.float32)
            return out / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-9)

        return embed

    def reranker(self, model):
        async def score(pairs):
            self.asked.append(list(pairs))
            return np.array([numbers(model.weights, *p, count=1)[0] for p in pairs], np.float32)

        return score

    def tokenizer(self, model):
        return lambda text: [(0, len(text))]

    def index(self):
        return "the index"


@pytest.fixture(params=["memory", "store"])
def memo(request, tmp_path):
    if request.param == "memory":
        return MemoryMemo()
    return StoreMemo(Store.create(str(tmp_path / "store")).uri, {})


def run(awaitable):
    return asyncio.run(awaitable)


TEXTS = ["a", "b", "a", "", "c", "b", "日本"]
PAIRS = [("q", "a"), ("q", "b"), ("q", "a"), ("qa", ""), ("", "qa")]


def test_the_answers_are_those_of_the_kit_bit_for_bit(memo):
    kit, plain = cached(HashKit(), memo, CallCounts()), HashKit()
    for _ in range(2):
        for role in ("query", "passage"):
            np.testing.assert_array_equal(
                run(kit.embedder(MINI)(TEXTS, role)), run(plain.embedder(MINI)(TEXTS, role))
            )
        np.testing.assert_array_equal(run(kit.reranker(RANK)(PAIRS)), run(plain.reranker(RANK)(PAIRS)))
    assert kit.index() == "the index"
    assert kit.tokenizer(MINI)("abc") == [(0, 3)]


def test_equal_requests_are_asked_once_and_counted(memo):
    inner, tally = HashKit(), CallCounts()
    kit = cached(inner, memo, tally)
    run(kit.embedder(MINI)(TEXTS, "passage"))
    assert inner.asked == [["a", "b", "", "c", "日本"]]
    assert tally == CallCounts(vectors=CallCount(5, 0))
    run(kit.embedder(MINI)(["c", "d", "a"], "passage"))
    assert inner.asked[1:] == [["d"]]
    assert tally == CallCounts(vectors=CallCount(6, 2))
    run(kit.reranker(RANK)(PAIRS))
    assert tally.scores == CallCount(4, 0)
    assert (tally.computed, tally.cached) == (10, 2)
    tally.add(CallCounts(CallCount(1, 2), CallCount(3, 4)))
    assert tally == CallCounts(CallCount(7, 4), CallCount(7, 4))


def test_another_role_or_model_is_another_request(memo):
    inner = HashKit()
    kit = cached(inner, memo, CallCounts())
    run(kit.embedder(MINI)(["a"], "passage"))
    run(kit.embedder(MINI)(["a"], "query"))
    run(kit.embedder(replace(MINI, weights="sha256:3"))(["a"], "query"))
    assert len(inner.asked) == 3
    run(kit.embedder(replace(MINI, path="/elsewhere", name="other"))(["a"], "query"))
    assert len(inner.asked) == 3


def test_without_a_memo_equal_requests_of_one_call_are_still_asked_once():
    inner, tally = HashKit(), CallCounts()
    embed = cached(inner, None, tally).embedder(MINI)
    run(embed(["a", "a"], "query"))
    run(embed(["a"], "query"))
    assert inner.asked == [["a"], ["a"]]
    assert tally.vectors == CallCount(2, 0)


def test_a_model_is_loaded_by_the_first_request_that_nobody_remembers(memo):
    first, second = HashKit(), HashKit()
    run(cached(first, memo, CallCounts()).embedder(MINI)(["a"], "query"))
    embed = cached(second, memo, CallCounts()).embedder(MINI)
    run(embed(["a"], "query"))
    assert run(embed([], "query")).shape == (0, 8)
    assert (first.loaded, second.loaded) == (["mini"], [])


def test_no_requests_have_no_answers(memo):
    kit = cached(HashKit(), memo, CallCounts())
    assert run(kit.embedder(MINI)([], "query")).shape == (0, 8)
    assert run(kit.reranker(RANK)([])).shape == (0,)


class BrokenKit(HashKit):
    """Its vectors have a broken number for one text, and its scores another shape."""

    def embedder(self, model):
        async def embed(texts, role):
            out = await HashKit.embedder(self, model)(texts, role)
            out[[t == "bad" for t in texts]] = np.nan
            return out

        return embed

    def reranker(self, model):
        async def score(pairs):
            return np.zeros((len(pairs), 1), np.float32)

        return score


class RaisingKit(HashKit):
    """Raises on a call with a pair whose passage is among `bad`, or with more pairs than `most`."""

    def __init__(self, bad=(), most=1000):
        super().__init__()
        self.bad, self.most = set(bad), most

    def reranker(self, model):
        real = HashKit.reranker(self, model)

        async def score(pairs):
            out = await real(pairs)
            if self.bad & {p for _, p in pairs}:
                raise ValueError("no such word")
            if len(pairs) > self.most:
                raise OutOfMemory("no room")
            return out

        return score


def test_a_pair_that_raises_costs_one_more_call_for_the_others_and_each_is_counted(memo):
    tally, inner = CallCounts(), RaisingKit(bad=["p33"])
    pairs = [("q", f"p{i:02d}") for i in range(100)]
    with pytest.raises(ValueError, match="no such word"):
        run(cached(inner, memo, tally).reranker(RANK)(pairs))
    assert [len(a) for a in inner.asked] == [100] + [10] * 10 + [1] * 10
    assert tally.scores.computed == sum(map(len, inner.asked))
    inner.bad, inner.asked = set(), []
    assert run(cached(inner, memo, tally).reranker(RANK)(pairs)).shape == (100,)
    assert inner.asked == [[("q", "p33")]], "what came was kept"


def test_a_call_that_is_too_large_for_the_memory_is_made_in_pieces(memo):
    inner, pairs = RaisingKit(most=20), [("q", f"p{i:02d}") for i in range(100)]
    np.testing.assert_array_equal(
        run(cached(inner, memo, CallCounts()).reranker(RANK)(pairs)), run(HashKit().reranker(RANK)(pairs))
    )
    assert [len(a) for a in inner.asked] == [100] + [10] * 10


def test_a_model_that_computes_nothing_is_not_called_for_each_row(memo):
    inner = RaisingKit(bad=[f"p{i:02d}" for i in range(100)])
    with pytest.raises(ValueError):
        run(cached(inner, memo, CallCounts()).reranker(RANK)([("q", f"p{i:02d}") for i in range(100)]))
    assert len(inner.asked) == 11


def test_a_broken_number_reaches_the_caller_and_is_not_remembered(memo):
    inner = BrokenKit()
    embed = cached(inner, memo, CallCounts()).embedder(MINI)
    assert np.isnan(run(embed(["a", "bad"], "query"))).any(axis=1).tolist() == [False, True]
    run(embed(["a", "bad"], "query"))
    assert inner.asked == [["a", "bad"], ["bad"]]


def test_a_model_that_gives_another_shape_than_it_should_is_found_out():
    with pytest.raises(ValueError, match=r"expected values of shape \(1,\), got \(1, 1\)"):
        run(cached(BrokenKit(), None, CallCounts()).reranker(RANK)([("a", "b")]))


def test_a_full_memory_forgets_what_came_first():
    table = MemoTable("scores-x", 0)

    async def fill():
        memo = MemoryMemo(limit_bytes=3 * (4 + ENTRY_BYTES))
        for key in "abcd":
            await memo.put_many(table, [key], np.array([ord(key)], np.float32))
        return await memo.get_many(table, list("abcd"))

    known, values = run(fill())
    assert known.tolist() == [False, True, True, True]
    assert values.tolist() == [98, 99, 100]


# ------------------------------------------------------------------------------------------------ on disk


@pytest.fixture
def store(tmp_path):
    return Store.create(str(tmp_path / "store"))


def fresh(store):
    return StoreMemo(store.uri, memo_versions(store))


VECTORS, SCORES = vectors_of(MINI), scores_of(RANK)
KEYS = [digest(str(i)) for i in range(6)]
ODD = np.array([0.1, -0.0, 1e-45, 3.4e38, 2 / 3, 1], np.float32)


def key_of(name):
    return name if len(name) == 32 else digest(name)


def put(store, table, keys, values):
    """`keys`: digests, or short names of some."""
    run(fresh(store).put_many(table, list(map(key_of, keys)), np.asarray(values, np.float32)))


def get(store, table, keys):
    known, values = run(fresh(store).get_many(table, list(map(key_of, keys))))
    return dict(zip([k for k, there in zip(keys, known, strict=True) if there], values, strict=True))


def test_what_was_folded_comes_back_bit_for_bit(store):
    matrix = np.random.default_rng(0).standard_normal((6, 8), np.float32)
    put(store, VECTORS, KEYS, matrix)
    put(store, SCORES, KEYS, ODD)
    assert get(store, SCORES, KEYS) == {}
    assert merge_memo(store) == MergeSummary(files=2, values=12, damaged=0)
    found = get(store, VECTORS, [*KEYS[::-1], "none"])
    assert np.stack([found[k] for k in KEYS]).tobytes() == matrix.tobytes()
    found = get(store, SCORES, KEYS)
    assert np.array([found[k] for k in KEYS]).tobytes() == ODD.tobytes()
    for table in (VECTORS, SCORES):
        store.check_indexes(table.name)


def test_a_value_whose_write_failed_is_no_cached_one_until_the_next_call_has_written_it(store):
    inner, memo = HashKit(), fresh(store)
    score = cached(inner, memo, CallCounts()).reranker(RANK)
    pairs = [("q", "a"), ("q", "b")]
    keys = score_keys(model_identity(RANK), pairs)
    with refusing(store, f"_memo/{SCORES.name}"):
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                run(score(pairs))
    assert lookup(store, SCORES, keys) == set()
    again = run(score(pairs))
    assert inner.asked == [pairs], "it is not asked again"
    assert lookup(store, SCORES, keys) == set(keys)
    assert merge_memo(store).values == 2
    assert [get(store, SCORES, keys)[k] for k in keys] == again.tolist()


def test_a_value_that_is_owed_is_asked_by_no_caller_while_it_is_written(store):
    memo = fresh(store)
    with refusing(store, f"_memo/{SCORES.name}"), pytest.raises(StoreUnavailable):
        run(memo.put_many(SCORES, [key_of("a")], np.ones(1, np.float32)))

    async def three():
        return await asyncio.gather(*(memo.get_many(SCORES, [key_of("a")]) for _ in range(3)))

    assert [known.tolist() for known, _ in run(three())] == [[True]] * 3


class Noting(Files):
    """Files that note what is put on disk, and what goes."""

    def __init__(self, uri):
        super().__init__(uri)
        self.noted = []

    def sync(self, name):
        super().sync(name)
        self.noted.append(name)

    def remove(self, name):
        super().remove(name)
        self.noted.append(name)


def test_values_are_on_disk_before_the_files_that_held_them_go(store):
    put(store, SCORES, ["a", "b"], [1, 2])
    [held] = store.files.walk(f"_memo/{SCORES.name}")
    store.files = Noting(store.uri)
    merge_memo(store)
    noted = store.files.noted
    data = store.files.walk(f"{SCORES.name}.lance/data")
    assert data and set(data) <= set(noted[: noted.index(held)])


def test_the_first_value_wins_within_files_and_against_the_table(store):
    put(store, SCORES, ["a", "b", "a"], [1, 2, 3])
    merge_memo(store)
    put(store, SCORES, ["b", "c"], [4, 5])
    assert merge_memo(store) == MergeSummary(files=1, values=1, damaged=0)
    assert get(store, SCORES, list("abc")) == {"a": 1, "b": 2, "c": 5}
    assert merge_memo(store) == MergeSummary(0, 0, 0)


def test_a_key_that_two_folds_added_is_read_once(store):
    put(store, SCORES, ["a"], [1])
    (name,) = store.files.names(f"_memo/{SCORES.name}")
    content = store.files.read(f"_memo/{SCORES.name}/{name}")
    merge_memo(store)
    dataset = store.dataset(SCORES.name)
    dataset.insert(dataset.to_table())
    assert store.count(SCORES.name) == 2
    assert get(store, SCORES, ["a", "b"]) == {"a": 1}
    store.files.write(f"_memo/{SCORES.name}/{name}", content)
    assert merge_memo(store) == MergeSummary(files=1, values=0, damaged=0)


def test_compaction_drops_what_two_folds_added_and_keeps_the_first(store):
    for value in (1, 2):
        put(store, SCORES, ["a", f"only {value}"], [value, value])
        merge_memo(store)
    dataset = store.dataset(SCORES.name)
    rows = dataset.to_table()
    dataset.insert(rows.set_column(1, "score", pa.array([7.0] * rows.num_rows, pa.float32())))
    assert store.count(SCORES.name) == 6
    assert compact(store, SCORES.name, most=1) and not compact(store, SCORES.name, most=1)
    assert store.count(SCORES.name) == 3
    assert get(store, SCORES, ["a", "only 1", "only 2"]) == {"a": 1, "only 1": 1, "only 2": 2}


def test_a_damaged_file_is_dropped_and_counted(store):
    put(store, SCORES, ["a"], [1])
    (name,) = store.files.names(f"_memo/{SCORES.name}")
    raw = bytearray(store.files.read(f"_memo/{SCORES.name}/{name}"))
    raw[len(raw) // 2] ^= 1
    store.files.write(f"_memo/{SCORES.name}/{name}", bytes(raw))
    put(store, SCORES, ["b"], [2])
    assert merge_memo(store) == MergeSummary(files=1, values=1, damaged=1)
    assert get(store, SCORES, ["a", "b"]) == {"b": 2}


def test_what_is_folded_meanwhile_does_not_show_in_a_pinned_memo(store):
    put(store, SCORES, ["a"], [1])
    merge_memo(store)
    pinned = fresh(store)
    put(store, SCORES, ["b"], [2])
    merge_memo(store)
    known, values = run(pinned.get_many(SCORES, [key_of("b"), key_of("a")]))
    assert (known.tolist(), values.tolist()) == ([False, True], [1.0])


KILLED = """
import os, signal, sys
from raypipe.store.memo import disk
from raypipe.store import Store

def watch(frame, happened, _):
    code = frame.f_code
    removing = (happened, code.co_name) == ("call", "remove") and code.co_filename.endswith("files.py")
    if removing and frame.f_locals["name"].startswith("_memo"):
        os.kill(os.getpid(), signal.SIGKILL)

sys.setprofile(watch)
disk.merge_memo(Store.open(sys.argv[1]))
"""


@pytest.mark.drill
@pytest.mark.slow
def test_a_fold_killed_before_it_removes_its_files_leaves_no_value_twice(store):
    put(store, SCORES, KEYS, ODD)
    assert subprocess.run([sys.executable, "-c", KILLED, store.uri]).returncode == -9
    assert store.count(SCORES.name) == 6
    assert merge_memo(store) == MergeSummary(files=1, values=0, damaged=0)
    assert store.count(SCORES.name) == 6
    assert store.files.names(f"_memo/{SCORES.name}") == []
