"""The memo merged and tables compacted by tasks: the tables of one process, and no value passes through the
driver."""

import asyncio
from collections import Counter

import numpy as np
import pytest

from raypipe.core import arrow
from raypipe.core.errors import Unavailable
from raypipe.core.llm import Generated
from raypipe.core.records import Source, digest
from raypipe.runs.pipeline.store_tasks import compact_all, merge
from raypipe.runs.pipeline.table_build import no_connection
from raypipe.runs.pipeline.tasks import HandedBack, WorkerConfig, inline
from raypipe.store import Store
from raypipe.store import put as put_rows
from raypipe.store.files import Files
from raypipe.store.memo.disk import StoreMemo, memo_versions, merge_memo
from raypipe.store.memo.memo import MemoTable

VECTORS, SCORES, REPLIES = (
    MemoTable(f"{kind}-{'0' * 31}{n}", dim)
    for n, (kind, dim) in enumerate((("embeddings", 32), ("scores", 0), ("replies", 0)))
)


class CountedFiles(Files):
    """Files of a store that count the bytes which were read of each whole file."""

    def __init__(self, uri):
        super().__init__(uri)
        self.read_bytes = Counter()

    def read(self, name):
        content = super().read(name)
        self.read_bytes[name.split("/")[0]] += len(content or b"")
        return content


@pytest.fixture
def store(tmp_path):
    made = Store.create(str(tmp_path / "store"))
    made.files = CountedFiles(made.uri)
    return made


def put(store, table, values, fresh=False):
    """Keeps name of a key -> value, as a worker does that computed them: in a file of their own."""
    rows = table.empty(len(values))
    rows[:] = [Generated(v, "stop", 1, 0, 1) if table.replies else v for v in values.values()]
    asyncio.run(
        StoreMemo(store.uri, memo_versions(store), fresh).put_many(table, list(map(digest, values)), rows)
    )


def got(store, table, keys):
    known, values = asyncio.run(
        StoreMemo(store.uri, memo_versions(store)).get_many(table, list(map(digest, keys)))
    )
    found = zip([k for k, there in zip(keys, known, strict=True) if there], values, strict=True)
    return {k: v.text if table.replies else v.tolist() for k, v in found}


def merged(store, runner=inline, here=0):
    return merge(
        store, WorkerConfig(store.uri, "transformers", "cpu", 1, wait_s=0.01), runner, no_connection, here
    )


def waiting_files(store):
    return [name for name in store.files.walk("_memo")]


def test_tasks_merge_what_one_process_merges_and_the_driver_reads_one_file_of_each_new_table(store, tmp_path):
    alone = Store.create(str(tmp_path / "alone"))
    for n in range(6):
        vectors = {f"k{i}": np.full(32, i + 1, np.float32) for i in range(5 * n, 5 * n + 7)}  # two come twice
        scores = {f"k{i}": float(i) for i in range(n, n + 3)}
        for to in (store, alone):
            put(to, VECTORS, vectors)
            put(to, SCORES, scores)
    one = max(store.files.size(name) for name in waiting_files(store))
    assert merged(store) == 0
    merge_memo(alone)
    assert store.files.read_bytes["_memo"] <= 2 * one, "to make both tables"
    for table, keys in ((VECTORS, 32), (SCORES, 8)):
        names = [f"k{i}" for i in range(keys)]
        assert got(store, table, names) == got(alone, table, names) and len(got(store, table, names)) == keys
        store.check_indexes(table.name)
    assert waiting_files(store) == [] and store.files.walk("_parts") == []
    put(store, VECTORS, {"more": np.ones(32, np.float32)})
    store.files.read_bytes.clear()
    merged(store)
    assert store.files.read_bytes["_memo"] == 0 and got(store, VECTORS, ["more"])


def test_replies_that_were_asked_for_afresh_replace_the_others_in_whatever_task_they_are(store):
    put(store, REPLIES, {"a": "old", "b": "old"})
    merged(store)
    for n in range(4):
        put(store, REPLIES, {"a": "cached", f"c{n}": "cached"})
    put(store, REPLIES, {"a": "fresh", "c1": "fresh"}, fresh=True)
    merged(store)
    said = {"a": "fresh", "b": "old", "c0": "cached", "c1": "fresh", "c2": "cached", "c3": "cached"}
    assert got(store, REPLIES, said) == said
    assert store.count(REPLIES.name, f"key = '{digest('a')}'") == 1, "the others found it there"


def test_a_damaged_file_is_counted_and_the_others_are_merged(store):
    put(store, SCORES, {"a": 1.0})
    [name] = waiting_files(store)
    raw = bytearray(store.files.read(name))
    raw[len(raw) // 2] ^= 1
    store.files.write(name, bytes(raw))
    assert merged(store) == 1, "alone: there is no table yet"
    put(store, SCORES, {"b": 2.0})
    store.files.write(name, bytes(raw))
    assert merged(store) == 1
    assert got(store, SCORES, "ab") == {"b": 2.0} and waiting_files(store) == []


def test_a_merge_that_dies_between_its_tasks_is_done_by_the_next_one(store):
    values = {f"k{i}": float(i) for i in range(4)}
    for key, value in values.items():
        put(store, SCORES, {key: value})

    def dying(verb, work, tasks):
        yield from inline(verb, work, tasks[:2])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merged(store, dying)
    assert len(waiting_files(store)) == 4 and got(store, SCORES, values) == {}
    merged(store)
    assert got(store, SCORES, values) == values and store.count(SCORES.name) == 4
    assert waiting_files(store) == []


def test_little_is_merged_without_a_worker_and_a_worker_without_a_store_ends_the_run(store):
    put(store, SCORES, {"a": 1.0})

    def down(verb, work, tasks):
        yield HandedBack(tasks[0].name, "the store is down", "stop", None, {})

    with pytest.raises(Unavailable, match="the store is down"):
        merged(store, down)
    assert merged(store, down, here=1 << 20) == 0
    assert got(store, SCORES, ["a"]) == {"a": 1.0}


def test_a_compaction_whose_tasks_come_back_leaves_the_table_and_the_next_one_does_it(store):
    for n in range(5):
        put_rows(store, "sources", arrow.source.table([Source(f"{n:032x}", "page", f"text {n}")]))
    before = store.dataset("sources")

    def compacted(runner):
        worker = WorkerConfig(store.uri, "transformers", "cpu", 1)
        compact_all(store, worker, runner, no_connection, most=1, here=0)

    def refusing(verb, work, tasks):
        yield from inline(verb, work, tasks)
        yield HandedBack(tasks[0].name, "the store is down", "stop", None, {})

    with pytest.raises(Unavailable, match="the store is down"):
        compacted(refusing)
    assert store.version("sources") == before.version
    compacted(inline)
    now = store.dataset("sources")
    assert len(now.get_fragments()) == 1 and now.to_table().equals(before.to_table())
    assert store.rows("sources", "id", [f"{3:032x}"], ["content"])["content"].to_pylist() == ["text 3"]
    store.check_indexes("sources")
