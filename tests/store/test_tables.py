"""What a table may be called, and what a row must be to be let in."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from storerows import DIGEST, DIM, hex_id, passage_rows, vector_rows

from raypipe.core import arrow
from raypipe.core.arrow import id_column, id_texts
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import Question, Source, source_id
from raypipe.store import PASSAGES, Store, StoreError, commit, put, vectors_schema, with_chunkless, write_part
from raypipe.store.errors import StoreUnavailable
from raypipe.store.ids import sources_with_chunks
from raypipe.store.tables import FAULTS


@pytest.mark.parametrize(
    "name",
    [
        "../sources",
        "sources/x",
        "vectors",
        f"vectors-{DIGEST}/..",
        f"sources-{DIGEST}",
        f"other-{DIGEST}",
        f"vectors-{DIGEST[1:]}",
        f"vectors-{DIGEST.upper()}",
        "",
        f"vectors-{DIGEST}\n",
    ],
)
def test_no_other_name_than_a_tables_is_let_through(store, name):
    with pytest.raises(ConfError, match="not the name of a table"):
        store.table_uri(name)


@pytest.mark.parametrize("name", ["../r", "a/b", "", ".", "-r", "x" * 101, "a b", "r\n"])
def test_a_run_or_part_cannot_name_a_path(store, passages, name):
    with pytest.raises(ConfError, match="cannot name a run"):
        write_part(store, passages, name, "0", passage_rows(["a"]), {})
    with pytest.raises(ConfError, match="cannot name a run"):
        write_part(store, passages, "run", name, passage_rows(["a"]), {})


def changed(rows, column, values):
    return rows.set_column(rows.schema.get_field_index(column), column, values)


def vectors_like(*rows, kind=None):
    return pa.array([list(r) if r is not None else None for r in rows], kind or pa.list_(pa.float32(), DIM))


NOT_UTF8 = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
GOOD = [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (lambda r: r.append_column("more", pa.array([1, 2])), "unexpected columns: .'more'"),
        (lambda r: r.drop(["end"]), "missing: .'end'"),
        (lambda r: changed(r, "end", pa.array([1, 2], pa.int64())), "end: expected int32, found int64"),
        (
            lambda r: changed(r, "source", pa.array([b"a" * 16, None], arrow.DIGEST)),
            "source: expected no null, found 1",
        ),
        (
            lambda r: changed(r, "source", pa.array([hex_id("a")] * 2)),
            r"source: expected fixed_size_binary\[16\], found string",
        ),
        (lambda r: changed(r, "vector", vectors_like(GOOD, [np.nan, 0, 0, 1])), "not finite .* row 1"),
        (lambda r: changed(r, "vector", vectors_like([np.inf, 0, 0, 1], GOOD)), "not finite .* row 0"),
        (lambda r: changed(r, "vector", vectors_like(GOOD, [0, 0, 0, 0])), "all zero.* row 1"),
        (lambda r: changed(r, "vector", vectors_like(GOOD, None)), "vector: expected no null, found 1"),
        (lambda r: changed(r, "vector", vectors_like(GOOD, [None, 1, 0, 0])), "not finite .* row 1"),
        (
            lambda r: changed(r, "vector", vectors_like([1.0], [1.0], kind=pa.list_(pa.float32(), 1))),
            r"vector: expected fixed_size_list<item: float>\[4\]",
        ),
        (lambda r: pa.concat_tables([r, r.slice(0, 1)]), "1 rows are duplicates"),
    ],
)
def test_a_row_that_would_spoil_the_table_is_refused_before_a_byte_is_written(
    store, vectors, rows, complaint
):
    with pytest.raises(DataError, match=complaint):
        write_part(store, vectors, "run", "0", rows(vector_rows(["a"])), {})
    assert not store.files.names(f"{vectors}.lance/data")


def test_a_part_without_a_vector_is_whole(store, vectors):
    record = write_part(store, vectors, "run", "000000", vector_rows([]), {})
    assert (record.rows, record.fragments) == (0, ())


def test_the_order_and_chunking_of_columns_do_not_matter(store, vectors):
    rows = pa.concat_tables([vector_rows(["a"]), vector_rows(["b"])])
    assert write_part(store, vectors, "run", "0", rows.select(rows.schema.names[::-1]), {}).rows == 4


def test_a_table_is_a_lancedb_table_with_its_content_compressed(store):
    import lancedb

    pages = [f"<p>{'the same words over and over ' * 4000}{i}</p>" for i in range(20)]
    sources = [Source(source_id("page", p), "page", p) for p in pages]
    put(store, "sources", arrow.source.table(sources))
    table = lancedb.connect(store.uri).open_table("sources")
    assert table.count_rows() == 20
    size = sum(store.files.size(f"sources.lance/data/{n}") for n in store.files.names("sources.lance/data"))
    assert size < sum(map(len, pages)) / 20
    assert sorted(arrow.source.records(store.dataset("sources").to_table()), key=repr) == sorted(
        sources, key=repr
    )


def test_a_table_keeps_its_columns(store, vectors):
    store.ensure(vectors, vectors_schema(DIM))
    with pytest.raises(StoreError, match="has columns"):
        store.ensure(vectors, vectors_schema(DIM + 1))
    with pytest.raises(DataError, match="column start must be int32"):
        store.ensure(f"passages-{'e' * 32}", pa.schema([("source", arrow.DIGEST)]))
    with pytest.raises(DataError, match=r"unexpected columns .'more'"):
        store.ensure(f"passages-{'e' * 32}", PASSAGES.append(pa.field("more", pa.string())))


def test_a_store_that_is_not_there_or_of_another_format_is_named(tmp_path):
    with pytest.raises(StoreError, match="raypipe ingest"):
        Store.open(str(tmp_path / "none"))
    store = Store.create(str(tmp_path / "s"))
    with pytest.raises(StoreError, match="no table texts-"):
        store.dataset(f"texts-{DIGEST}")
    for format in (4, 99):
        store.files.write("_store.json", json.dumps({"format": format}).encode())
        with pytest.raises(StoreError, match=f"has format {format}, this raypipe reads format 1"):
            Store.open(store.uri)


def test_a_version_that_is_not_there_is_named(store):
    with pytest.raises(StoreError, match=r"golds .* cannot be read at version 99"):
        store.dataset("golds", 99)


def test_a_table_that_cannot_be_opened_now_is_unavailable(store):
    for manifest in Path(store.table_uri("golds")).glob("_versions/*"):
        manifest.write_bytes(manifest.read_bytes()[:10])
    with pytest.raises(StoreUnavailable, match=r"golds .* cannot be reached now"):
        store.dataset("golds")


def test_a_place_where_nothing_can_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"no store can be made at .*file/store: .*--store"):
        Store.create(str(tmp_path / "file" / "store"))


def test_a_store_named_by_a_relative_path_is_found_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store.create("here")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert Store.open(store.uri).count("golds") == 0


@pytest.mark.parametrize("rows", [0, 500])
def test_missing_ids_are_found_by_look_up_and_by_scan_alike(store, rows):
    texts = f"texts-{DIGEST}"
    schema = pa.schema([("source", arrow.DIGEST), ("text", pa.large_string())])
    store.ensure(texts, schema)
    there = [hex_id(i) for i in range(rows)]
    data = pa.table({"source": id_column(there), "text": pa.array(there, pa.large_string())})
    write_part(store, texts, "run", "0", data, {})

    commit(store, texts, "run", ["0"])
    few = [hex_id("gone"), *there[:3], hex_id("none")]
    assert store.missing(texts, "source", few) == [i for i in few if i not in there]
    many = [hex_id(i) for i in range(600)]
    assert store.missing(texts, "source", many) == many[rows:]
    assert store.missing(texts, "source", []) == []


def test_what_is_in_an_id_stays_data(store):
    odd = ["it's", "a') OR ('1'='1", '"x"', "back\\slash", "日本", "%", ""]
    put(store, "questions", arrow.question.table([Question(name, name) for name in odd]))
    for name in odd:
        assert store.rows("questions", "id", [name])["text"].to_pylist() == [name]
        assert store.rows("sources", "id", [name]).num_rows == 0, "no source has such an id"
    assert store.rows("questions", "id", []).num_rows == 0


def test_a_source_without_chunks_is_done_and_has_none(store, passages):
    rows = with_chunkless(passage_rows(["a", "b"]), id_column(map(hex_id, ("a", "b", "bare"))))
    write_part(store, passages, "run", "0", rows, {})

    commit(store, passages, "run", ["0"])
    assert store.missing(passages, "source", list(map(hex_id, ("a", "bare", "c")))) == [hex_id("c")]
    assert set(id_texts(sources_with_chunks(store.dataset(passages)))) == {hex_id("a"), hex_id("b")}


def test_faults_of_two_stages_of_one_source_both_stay(store):
    row = {
        "id": "a",
        "step": "parse",
        "reason": "r",
        "detail": "d",
        "transient": False,
        "attempts": 1,
        "digest": "x",
        "run": "r",
    }
    both = pa.Table.from_pylist([row, {**row, "step": "split"}], schema=FAULTS)
    assert write_part(store, "faults", "run", "0", both, {}).rows == 2
