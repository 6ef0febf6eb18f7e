"""What names a corpus, and what a table lacks of it: the same in any order, read again once it changes."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from raypipe.core import arrow
from raypipe.core.records import Source, source_id
from raypipe.store import Store, put
from raypipe.store.corpus_sum import corpus_sum, sum_of
from raypipe.store.coverage import all_sources, lacked
from raypipe.store.ids import HASHED, Ids, looked_up, repeats, stand_in
from raypipe.store.layout import CORPUS_SUMS, COVERAGE


def source(text):
    return Source(source_id("document", text), "document", text)


def filled(folder, *batches):
    store = Store.create(str(folder))
    for texts in batches:
        put(store, "sources", arrow.source.table([source(t) for t in texts]))
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
    assert sum_of(pa.array(ids)) == sum(int(i, 16) for i in ids)
    assert sum_of(pa.array([], pa.string())) == 0


def test_what_a_table_lacks_of_all_sources_is_noted_until_one_of_both_changes(tmp_path):
    store = filled(tmp_path / "store", ["a", "b"])
    store.ensure("texts-" + "0" * 32, pa.schema([pa.field("source", pa.string(), nullable=False)]))
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
        store.dataset(texts).insert(pa.table({"source": [source("a").id]}, store.dataset(texts).schema))
        assert set(now()) == {source("b").id, source("c").id}
    assert not set(lacked(store, store.dataset(texts), texts, Ids.of([source("a").id])))


def test_ids_behave_as_a_sequence_of_texts():
    ids = Ids(pa.array(["a", "b", "c"]), "all")
    assert (len(ids), list(ids), ids[1], list(ids[1:])) == (3, ["a", "b", "c"], "b", ["b", "c"])
    assert ids[1:].all_of == "", "some are not all"
    some = ids.among(pa.chunked_array([["c", "x"], ["a"]]), "texts 3")
    assert list(some) == ["a", "c"]
    assert some.all_of not in ("", "all")
    assert ids.without(["x"]) is ids and ids.joined(ids) is ids, "and keep their name"
    assert list(ids.without(["b", "x"])) == ["a", "c"] and list(ids.without(ids)) == []
    assert list(ids.joined(Ids.of(["c", "d"]))) == ["a", "b", "c", "d"]
    assert ids.joined(Ids.of([])) is ids and list(Ids.of([]).joined(ids)) == ["a", "b", "c"]


def test_ids_are_found_among_more_than_one_hash_table_holds():
    many = pa.array(np.char.mod("%08d", np.arange(HASHED + 10)).tolist())
    wanted = pa.array(["none", "00000003", f"{HASHED + 5:08d}"])
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
