"""The tables of a store and tables in memory answer alike, and as brute force does."""

import asyncio
import pickle
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from raypipe.core.arrow import BLOCK, DIGEST, SPAN, id_column, id_texts, with_id_texts
from raypipe.core.digests import model_identity
from raypipe.core.errors import ConfError
from raypipe.core.protocols import Model
from raypipe.core.records import Block, chunk_id, source_id
from raypipe.store import PASSAGES, Store, StoreError, commit, vectors_schema, with_chunkless, write_part
from raypipe.store.index import IndexSpec, LanceIndex, MemoryIndex, index_spec

DIM = 16
MODEL = Model("mini", "embedder", "flagembedding", "", "", "", "sha256:1", dim=DIM)
TEXTS, PARTS, VECTORS = (f"{k}-{'a' * 32}" for k in ("texts", "passages", "vectors"))
SPANS = PASSAGES.names
NOWHERE = source_id("page", "nowhere")


def run(awaitable):
    return asyncio.run(awaitable)


def unit(rows):
    rows = np.asarray(rows, np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def make_corpus(seed, pages=40):
    """Pages of words, cut into chunks of 60 and parents of 150 characters with overlap; a third of all chunks
    share their vectors, as equal texts do; two sources have no chunk."""
    rng = np.random.default_rng(seed)
    texts, chunks = [], []
    for page in range(pages):
        text = " ".join(f"w{i}" for i in rng.integers(0, 300, rng.integers(0, 200) if page > 1 else 0))
        source = bytes.fromhex(source_id("page", f"{seed} {page}"))
        starts = [m.start() for m in re.finditer(r"\S+", text)]
        hashes = [int(m[0][1:]) * 2**55 + 7 for m in re.finditer(r"\S+", text)]
        hides = [{"start": a, "end": a + 7} for a in range(page, len(text) - 7, 90)] if page % 3 == 0 else []
        blocks = [{"start": a, "end": a + 29, "kind": "item"} for a in range(0, len(text) - 29, 30)]
        row = {"source": source, "text": text, "hidden": hides, "blocks": blocks}
        texts.append({**row, "words_plain": hashes, "starts_plain": starts})
        for parent in range(0, len(text), 100):
            for start in range(parent, min(parent + 150, len(text)), 60):
                ends = (min(start + 60, parent + 150, len(text)), min(parent + 150, len(text)))
                chunks.append((source, start, ends[0], parent, ends[1]))
    order = rng.permutation(len(chunks))
    passages = pa.Table.from_pylist(
        [dict(zip(SPANS, chunks[i], strict=True)) for i in order], schema=PASSAGES
    )
    vectors = unit(rng.standard_normal((len(chunks), DIM)))
    same = rng.random(len(chunks)) < 0.33
    vectors[same] = vectors[rng.integers(0, 5, int(same.sum()))]
    schema = pa.schema(
        [
            ("source", DIGEST),
            ("text", pa.large_string()),
            ("hidden", pa.list_(SPAN)),
            ("blocks", pa.list_(BLOCK)),
            ("words_plain", pa.list_(pa.uint64())),
            ("starts_plain", pa.list_(pa.int32())),
        ]
    )
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
    return pa.Table.from_pylist(texts, schema=schema), passages, passages.append_column("vector", column)


@pytest.fixture(scope="module")
def corpus():
    return make_corpus(1)


def fill(store, table, run_name, rows):
    store.ensure(table, rows.schema)
    half = sorted(set(id_texts(rows["source"])))[::2]
    first = pc.is_in(rows["source"], value_set=id_column(half))
    write_part(store, table, run_name, "0", rows.filter(first), {})
    write_part(store, table, run_name, "1", rows.filter(pc.invert(first)), {})
    commit(store, table, run_name, ["0", "1"])


def fill_all(store, corpus, run_name="run"):
    texts, passages, vectors = corpus
    fill(store, TEXTS, run_name, texts)
    fill(store, PARTS, run_name, with_chunkless(passages, texts["source"].combine_chunks()))
    store.ensure(VECTORS, vectors_schema(DIM))
    fill(store, VECTORS, run_name, vectors.cast(vectors_schema(DIM)))


@pytest.fixture(scope="module")
def spec(corpus, tmp_path_factory):
    store = Store.create(str(tmp_path_factory.mktemp("index") / "store"))
    fill_all(store, corpus)
    return index_spec(store, TEXTS, PARTS, {model_identity(MODEL): VECTORS})


@pytest.fixture(params=["lance", "memory"])
def index(request, corpus, spec):
    if request.param == "lance":
        return LanceIndex(pickle.loads(pickle.dumps(spec)))
    texts, passages, vectors = corpus
    return MemoryIndex(texts, passages, {model_identity(MODEL): vectors})


def by_force(vectors, query, scope, top):
    """(score, source, span, passage) of the best, from a full sort in double precision."""
    matrix = np.stack(vectors["vector"].to_pylist()).astype(np.float64)
    scores = (matrix * query.astype(np.float64)).sum(axis=1)
    rows = [
        (-s, r["source"].hex(), (r["start"], r["end"]), (r["parent_start"], r["parent_end"]))
        for s, r in zip(scores.tolist(), vectors.select(SPANS).to_pylist(), strict=True)
        if scope is None or r["source"].hex() in scope
    ]
    return sorted(rows)[:top]


def scopes_of(corpus, rng, count):
    names = id_texts(corpus[0]["source"])
    scopes = [tuple(rng.choice(names, size=rng.integers(1, 12), replace=False)) for _ in range(count)]
    return [None, (), (NOWHERE,), (names[0],), (names[2], names[2], NOWHERE), *scopes]


@pytest.mark.parametrize("top", [1, 7, 50, 10_000])
def test_search_gives_exactly_the_best_with_ties_by_source_and_span(index, corpus, top):
    rng = np.random.default_rng(top)
    scopes = scopes_of(corpus, rng, 8)
    shared = np.stack(corpus[2]["vector"].to_pylist()[:5])  # vectors that many chunks have
    queries = unit(np.concatenate([shared, rng.standard_normal((len(scopes) - 5, DIM))]))
    found = run(index.search(MODEL, queries, scopes, top))
    for row, query, scope in zip(found, queries, scopes, strict=True):
        expected = by_force(corpus[2], query, scope, top)
        assert [(-f.score, f.source, f.span, f.passage) for f in row] == expected


def test_a_query_gets_the_same_alone_as_among_others(index, corpus):
    rng = np.random.default_rng(3)
    scopes = scopes_of(corpus, rng, 4)
    queries = unit(rng.standard_normal((len(scopes), DIM)))
    together = run(index.search(MODEL, queries, scopes, 20))
    alone = [
        run(index.search(MODEL, queries[i : i + 1], scopes[i : i + 1], 20))[0] for i in range(len(scopes))
    ]
    assert together == alone
    assert run(index.search(MODEL, queries[:0], [], 20)) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_query_that_is_not_finite_is_refused(index, bad):
    query = unit(np.ones((2, DIM)))
    query[1, 3] = bad
    with pytest.raises(ValueError, match="not finite"):
        run(index.search(MODEL, query, [None, None], 5))


def test_a_query_of_another_shape_or_model_is_refused(index):
    with pytest.raises(ValueError, match=r"expected query vectors of shape \(1, 16\), found \(1, 8\)"):
        run(index.search(MODEL, unit(np.ones((1, 8))), [None], 5))
    with pytest.raises(ValueError, match="top must be at least 1"):
        run(index.search(MODEL, unit(np.ones((1, DIM))), [None], 0))
    other = replace(MODEL, name="other", weights="sha256:2")  # same dimension
    with pytest.raises(ConfError, match="no vectors of model other are here"):
        run(index.search(other, unit(np.ones((1, DIM))), [None], 5))
    assert run(index.search(replace(MODEL, name="renamed"), unit(np.ones((1, DIM))), [None], 5))


def test_texts_are_those_of_the_passages(index, corpus):
    whole = dict(zip(id_texts(corpus[0]["source"]), corpus[0]["text"].to_pylist(), strict=True))
    spans = with_id_texts(corpus[1].to_pylist()[:30])
    chunks = [chunk_id(r["source"], (r["parent_start"], r["parent_end"])) for r in spans]
    expected = [whole[r["source"]][r["parent_start"] : r["parent_end"]] for r in spans]
    assert run(index.texts([*chunks, chunks[0]])) == [*expected, expected[0]]
    assert run(index.texts([])) == []
    third = list(whole)[2]
    assert run(index.source_texts([third, NOWHERE, third])) == [whole[third], None, whole[third]]
    beyond = len(whole[third]) + 1
    for bad in (f"{NOWHERE}:0-3", f"{third}:0-{beyond}"):
        with pytest.raises(KeyError):
            run(index.texts([bad]))


def test_what_pages_hide_is_known_by_source(index, corpus):
    names = [*id_texts(corpus[0]["source"]), NOWHERE]
    rows = {r["source"].hex(): r["hidden"] for r in corpus[0].to_pylist()}
    expected = [tuple((h["start"], h["end"]) for h in rows.get(n, [])) for n in names]
    assert sum(map(len, expected)) > 10
    assert run(index.hidden(names[::-1])) == expected[::-1]
    assert run(index.hidden([])) == []


def test_texts_that_do_not_say_what_is_hidden_are_refused(corpus):
    index = MemoryIndex(corpus[0].drop(["hidden"]), corpus[1], {})
    with pytest.raises(ConfError, match="have no column 'hidden'"):
        run(index.hidden([NOWHERE]))


def test_blocks_are_known_by_source_and_texts_without_them_are_refused(index, corpus):
    names = [*id_texts(corpus[0]["source"]), NOWHERE]
    rows = {r["source"].hex(): r["blocks"] for r in corpus[0].to_pylist()}
    expected = [tuple(Block(**b) for b in rows.get(n, [])) for n in names]
    assert run(index.blocks(names[::-1])) == expected[::-1]
    assert sum(map(len, expected)) > 10
    with pytest.raises(ConfError, match="have no column 'blocks': index again"):
        run(MemoryIndex(corpus[0].drop(["blocks"]), corpus[1], {}).blocks([NOWHERE]))


def words_by_hand(corpus, scope):
    """Passage ids and the words that start in each, from the definition."""
    texts = {r["source"].hex(): r for r in corpus[0].to_pylist()}
    order = sorted(texts) if scope is None else list(dict.fromkeys(scope))
    spans = {(r["source"].hex(), r["parent_start"], r["parent_end"]) for r in corpus[1].to_pylist()}
    ids, words = [], []
    for source in order:
        for _, start, end in sorted(s for s in spans if s[0] == source):
            row = texts[source]
            ids.append(chunk_id(source, (start, end)))
            pairs = zip(row["words_plain"], row["starts_plain"], strict=True)
            words.append([w for w, at in pairs if start <= at < end])
    return ids, words


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_words_are_those_that_start_in_each_passage(index, corpus, seed):
    for scope in scopes_of(corpus, np.random.default_rng(seed), 5):
        found = run(index.words("plain", scope))
        ids, words = words_by_hand(corpus, scope)
        assert list(found.chunks) == ids
        assert found.offsets.dtype == np.int64 and found.hashes.dtype == np.uint64
        assert [w.tolist() for w in np.split(found.hashes, found.offsets[1:-1])][: len(ids)] == words


def test_words_of_an_analyzer_that_was_not_run_are_a_mistake_of_the_recipe(index):
    with pytest.raises(ConfError, match="no words of analyzer 'porter'"):
        run(index.words("porter", None))


def test_the_whole_snapshot_is_gathered_once_for_all_that_ask(spec):
    index = LanceIndex(spec)

    async def ask():
        first, second = await asyncio.gather(index.words("plain", None), index.words("plain", None))
        return first, second, await index.words("plain", None)

    first, second, third = run(ask())
    assert first is second is third


def test_an_index_shows_what_was_there_when_it_was_pinned(corpus, tmp_path):
    store = Store.create(str(tmp_path / "store"))
    fill_all(store, corpus)
    spec = index_spec(store, TEXTS, PARTS, {model_identity(MODEL): VECTORS})
    later = make_corpus(5, pages=6)
    index = LanceIndex(spec)
    before = run(index.search(MODEL, unit(np.ones((1, DIM))), [None], 30))
    fill_all(store, later, "later")
    assert run(LanceIndex(spec).search(MODEL, unit(np.ones((1, DIM))), [None], 30)) == before
    assert run(index.source_texts(id_texts(later[0]["source"])[:1])) == [None]
    now = LanceIndex(index_spec(store, TEXTS, PARTS, {model_identity(MODEL): VECTORS}))
    assert run(now.source_texts(id_texts(later[0]["source"])[:1])) != [None]
    assert isinstance(spec, IndexSpec)


@pytest.mark.parametrize("table", [TEXTS, PARTS, VECTORS])
def test_a_missing_scalar_index_is_an_error_at_start_that_says_how_to_mend_it(corpus, tmp_path, table):
    store = Store.create(str(tmp_path / "store"))
    fill_all(store, corpus)
    store.dataset(table).drop_index("source_idx")
    with pytest.raises(
        StoreError, match=rf"{table} .* has no BTREE index on source: .*raypipe eval RECIPE --until index"
    ):
        index_spec(store, TEXTS, PARTS, {model_identity(MODEL): VECTORS})
    store.index(table)
    index_spec(store, TEXTS, PARTS, {model_identity(MODEL): VECTORS})


def test_a_table_that_is_not_there_is_named(corpus, tmp_path):
    store = Store.create(str(tmp_path / "store"))
    with pytest.raises(StoreError, match=f"no table {VECTORS} .*raypipe eval RECIPE --until index"):
        index_spec(store, TEXTS, PARTS, {model_identity(MODEL): VECTORS})
