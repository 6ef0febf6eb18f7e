"""What names a corpus, and what a table lacks of it: the same in any order, read again once it changes."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from raypipe.core import arrow
from raypipe.core.arrow import DIGEST, id_column
from raypipe.core.records import Source, source_id
from raypipe.store import Store, put
from raypipe.store.files import CORPUS_SUMS, COVERAGE
from raypipe.store.housekeeping import compact
from raypipe.store.ids import HASHED, Ids, looked_up, repeats, stand_in
from raypipe.store.sources import all_sources, corpus_sum, lacked, noted, sum_of


def source(text):
    return Source(source_id("document", text), "document", text)


def filled(folder, *batches):
    store = Store.create(str(folder))
    for some in batches:
        put(store, "sources", arrow.source.table([source(t) for t in some]))
    return store


def test_the_name_of_a_corpus_depends_on_what_is_in_it_alone(tmp_path):
    one = filled(tmp_path / "one", ["a", "b", "c"])
    two = filled(tmp_path / "two", ["c"], ["x", "b"], ["a"])
    assert corpus_sum(two) != corpus_sum(one)
    assert corpus_sum(one, [source("x").id, source("a").id]) == corpus_sum(two), "a is there already"
    two.forget("sources", "id", [source("x").id])
    assert corpus_sum(two) == corpus_sum(one)
    assert one.files.read(CORPUS_SUMS) is None, "only the driver writes"
    with two.lease("driver", "test"):
        before = corpus_sum(two)
    assert len(json.loads(two.files.read(CORPUS_SUMS))) == len(two.dataset("sources").get_fragments())
    assert corpus_sum(two) == before


def test_the_sum_of_ids_is_that_of_their_numbers():
    ids = [source(str(n)).id for n in range(50)]
    assert sum_of(id_column(ids)) == sum(int(i, 16) for i in ids)
    assert sum_of(id_column(ids)[7:9]) == sum(int(i, 16) for i in ids[7:9])
    assert sum_of(id_column([])) == 0


def test_what_a_table_lacks_of_all_sources_is_noted_until_one_of_both_changes(tmp_path):
    store = filled(tmp_path / "store", ["a", "b"])
    store.ensure("texts-" + "0" * 32, pa.schema([pa.field("source", DIGEST, nullable=False)]))
    texts = "texts-" + "0" * 32

    def now():
        return list(lacked(store, store.dataset(texts), texts, all_sources(store, ["document", "page"])))

    whole = {source("a").id, source("b").id}
    assert set(now()) == whole
    assert not store.files.names(COVERAGE), "only the driver notes"
    with store.lease("driver", "test"):
        assert set(now()) == whole
        [note] = store.files.names(COVERAGE)
        [lacks] = json.loads(store.files.read(f"{COVERAGE}/{note}")).values()
        assert set(lacks) == whole
        assert set(now()) == whole
        put(store, "sources", arrow.source.table([source("c")]))
        assert set(now()) == {*whole, source("c").id}
        store.dataset(texts).insert(
            pa.table({"source": id_column([source("a").id])}, store.dataset(texts).schema)
        )
        assert set(now()) == {source("b").id, source("c").id}
    assert not set(lacked(store, store.dataset(texts), texts, Ids.of([source("a").id])))


@pytest.mark.parametrize("kind", [DIGEST, pa.string()])
def test_ids_behave_as_a_sequence_of_texts(kind):
    a, b, c, d, x = (source(t).id for t in "abcdx")
    ids = Ids(id_column([a, b, c], kind), "all")
    assert (len(ids), list(ids), ids[1], ids[-1], list(ids[1:])) == (3, [a, b, c], b, c, [b, c])
    assert ids[1:].all_of == "", "some are not all"
    some = ids.among(pa.chunked_array([id_column([c, x], kind), id_column([a], kind)]), "texts 3")
    assert list(some) == [a, c]
    assert some.all_of not in ("", "all")
    assert ids.without([x]) is ids and ids.joined(ids) is ids, "and keep their name"
    assert list(ids.without([b, x])) == [a, c] and list(ids.without(ids)) == []
    assert list(ids.joined(Ids.of([c, d], kind))) == [a, b, c, d]
    assert ids.joined(Ids.of([])) is ids and list(Ids.of([]).joined(ids)) == [a, b, c]


def test_what_was_noted_of_a_table_holds_after_its_compaction(tmp_path):
    store, table = filled(tmp_path / "store", ["a", "b", "c"]), "texts-" + "0" * 32
    store.ensure(table, pa.schema([pa.field("source", DIGEST, nullable=False)]))
    every = all_sources(store, ["document"])

    def insert(text):
        store.dataset(table).insert(
            pa.table({"source": id_column([source(text).id])}, store.dataset(table).schema)
        )

    def known():
        return noted(store, store.dataset(table), table, every.all_of)

    insert("a")
    insert("b")
    with store.lease("driver", "test"):
        assert list(lacked(store, store.dataset(table), table, every)) == [source("c").id]
        before = store.dataset(table)
        assert compact(store, table, most=1) and len(store.dataset(table).get_fragments()) == 1
        assert list(known()) == list(noted(store, before, table, every.all_of)) == [source("c").id]
        insert("a")
        assert known() is None
        assert compact(store, table, most=1) and known() is None, "of other rows nothing was noted"


def numbered(count):
    """Digests that are numbers."""
    raw = np.zeros((count, 2), ">u8")
    raw[:, 1] = np.arange(count)
    return pa.Array.from_buffers(DIGEST, count, [None, pa.py_buffer(raw)])


@pytest.mark.drill
def test_ids_are_found_among_more_than_one_hash_table_holds():
    many = numbered(HASHED + 10)
    wanted = id_column([source("none").id, f"{3:032x}", f"{HASHED + 5:032x}"])
    assert stand_in(wanted, many).to_pylist() == [False, True, True]
    assert pc.sum(stand_in(many, wanted)).as_py() == 2
    numbers = np.arange(len(many))
    assert looked_up(wanted, [(many, numbers)]).tolist() == [-1, 3, HASHED + 5]
    assert looked_up(many, [(wanted, np.array([1, 2, 3]))])[[3, 4]].tolist() == [2, -1]
    assert repeats(many) == 0 and repeats(pa.concat_arrays([many, wanted])) == 2


@pytest.mark.parametrize("kinds", [["page"], ["document", "snippet"]])
def test_all_sources_are_those_of_the_kinds(tmp_path, kinds):
    store = filled(tmp_path / "store", ["a", "b"])
    assert len(all_sources(store, kinds)) == (2 if "document" in kinds else 0)
