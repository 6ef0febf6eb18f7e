"""Postings of a whole snapshot give the scores that its words give, however the snapshot was cut."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from rank_bm25 import BM25Okapi

from raypipe.core.arrow import DIGEST, id_texts, with_id_texts
from raypipe.core.errors import ConfError
from raypipe.core.records import Citation, Hit, Question, chunk_id, source_id
from raypipe.models.kit import LocalKit
from raypipe.steps.bm25 import Bm25
from raypipe.store import PASSAGES, Store, commit, with_chunkless, write_part
from raypipe.store.index import LanceIndex, MemoryIndex, index_spec
from raypipe.store.inverter import Inverter, merge_segments
from raypipe.store.tables import LENGTHS, POSTINGS
from raypipe.text.words import analyse

TEXTS, PARTS, WORDS, LENGTH = (f"{k}-{'b' * 32}" for k in ("texts", "passages", "postings", "lengths"))
TEXT = pa.schema(
    [
        ("source", DIGEST),
        ("text", pa.large_string()),
        ("words_plain", pa.list_(pa.uint64())),
        ("starts_plain", pa.list_(pa.int32())),
    ]
)
VARIANTS = [("lucene", {}), ("lucene", {"k1": 0.9, "b": 0.4}), ("okapi", {}), ("okapi", {"b": 0.0})]


def documents(seed, count):
    """Texts of Zipf words, the commonest in more than half of them; some empty, some equal to another."""
    rng = np.random.default_rng(seed)
    texts = [
        " ".join(f"w{w}" for w in rng.zipf(1.3, int(rng.integers(0, 60))) if w < 400) for _ in range(count)
    ]
    for at in range(0, count - 1, 7):
        texts[at + 1] = texts[at]
    return {source_id("document", f"{seed} {i}"): text for i, text in enumerate(texts)}


def tables(texts):
    """Rows of texts and passages: windows of 60 characters within overlapping parents of 120."""
    rows, chunks = [], []
    for source, text in texts.items():
        words, starts = analyse(text, "plain")
        rows.append(
            {"source": bytes.fromhex(source), "text": text, "words_plain": words, "starts_plain": starts}
        )
        for parent in range(0, len(text), 90):
            end = min(parent + 120, len(text))
            chunks += [
                (bytes.fromhex(source), a, min(a + 60, end), parent, end) for a in range(parent, end, 60)
            ]
    passages = [dict(zip(PASSAGES.names, c, strict=True)) for c in chunks]
    return pa.Table.from_pylist(rows, TEXT), pa.Table.from_pylist(passages, PASSAGES)


def add(store, texts, run, parts=2, segment_words=3000):
    """What the pipeline does for sources that a store lacks."""
    rows, passages = tables(texts)
    ids = list(texts)
    names = [str(i) for i in range(parts)]
    for table, data in ((TEXTS, rows), (PARTS, with_chunkless(passages, rows["source"].combine_chunks()))):
        store.ensure(table, data.schema)
        write_part(store, table, run, "0", data, {})
        commit(store, table, run, ["0"])
    store.ensure(WORDS, POSTINGS)
    store.ensure(LENGTH, LENGTHS)
    inverter = Inverter(store, TEXTS, PARTS, "plain", segment_words)
    for i, name in enumerate(names):
        lengths, postings = inverter.rows(ids[i::parts], run, name)
        write_part(store, WORDS, run, name, postings, {})
        write_part(store, LENGTH, run, name, lengths, {})
    commit(store, WORDS, run, names)
    commit(store, LENGTH, run, names)


def indexes(store):
    """The snapshot with its postings, without them, and in memory."""
    spec = index_spec(store, TEXTS, PARTS, {}, {"plain": (WORDS, LENGTH)})
    texts = store.scan(TEXTS)
    return LanceIndex(spec), LanceIndex(replace(spec, words=())), MemoryIndex(texts, store.scan(PARTS), {})


def asked(index, step, questions):
    found = asyncio.run(step.open(LocalKit(index))(questions))
    return [[(h.chunk, h.scores["bm25"]) for h in q.hits if "bm25" in h.scores] for q in found]


def questions(seed, count=12):
    """Queries with rare, common, unknown and repeated words, and one of no word."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(f"w{w}" for w in rng.zipf(1.4, 8)) for _ in range(count)]
    return [Question(f"q{i}", text) for i, text in enumerate([*texts, "w1 w1 w1", "nowhere", ""])]


def same(found, expected, variant):
    """Lucene's scores are sums of the same numbers in the same order; Okapi's floor is a mean."""
    if variant == "lucene":
        assert found == expected
        return
    for a, b in zip(found, expected, strict=True):
        assert [s for _, s in a] == pytest.approx([s for _, s in b], abs=1e-9)
        assert len(a) == len(b)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Sources that came in two runs, in ten segments; some of the first are taken out again."""
    made = Store.create(str(tmp_path_factory.mktemp("postings") / "store"))
    add(made, documents(1, 300), "first", parts=3)
    add(made, documents(2, 40), "second")
    gone = list(documents(1, 300))[::9]
    for table in (TEXTS, PARTS, LENGTH):
        made.forget(table, "source", gone)
    return made


@pytest.mark.parametrize(("variant", "given"), VARIANTS)
@pytest.mark.parametrize("top", [1, 5, 10_000])
def test_postings_give_the_hits_of_the_words_after_sources_came_and_went(store, variant, given, top):
    step = Bm25(top=top, words="plain", variant=variant, **given)
    looked_up, gathered, memory = (asked(i, step, questions(top)) for i in indexes(store))
    same(looked_up, gathered, variant)
    same(looked_up, memory, variant)


@pytest.mark.slow
def test_ties_at_the_cut_are_broken_by_chunk(store):
    looked_up, gathered, _ = indexes(store)
    some = questions(3)
    for top in range(1, 30):
        step = Bm25(top=top, words="plain")
        assert asked(looked_up, step, some) == asked(gathered, step, some)


def test_a_snapshot_in_one_segment_scores_as_one_in_many(store, tmp_path):
    left = {**documents(1, 300), **documents(2, 40)}
    for gone in list(documents(1, 300))[::9]:
        left.pop(gone)
    whole = Store.create(str(tmp_path / "store"))
    add(whole, left, "only", parts=1, segment_words=10**9)
    for variant, given in VARIANTS:
        step = Bm25(top=20, words="plain", variant=variant, **given)
        same(*(asked(indexes(s)[0], step, questions(4)) for s in (whole, store)), variant)
    assert len(whole.scan(WORDS, ["segment"])["segment"].unique()) == 1


def test_more_documents_leave_every_segment_as_it_was(tmp_path):
    grown = Store.create(str(tmp_path / "store"))
    add(grown, documents(1, 100), "first")
    before = grown.scan(WORDS)
    add(grown, documents(2, 1), "second", parts=1)
    after = grown.scan(WORDS)
    assert after.slice(0, before.num_rows) == before
    files = [f.path for x in grown.dataset(WORDS).get_fragments() for f in x.metadata.files]
    assert len(files) == 3 and grown.scan(LENGTH).num_rows > before.num_rows / 100


def test_a_pinned_index_does_not_see_what_comes_later(tmp_path):
    grown = Store.create(str(tmp_path / "store"))
    add(grown, documents(1, 60), "first")
    step, some = Bm25(top=20, words="plain"), questions(5)
    pinned = indexes(grown)[0]
    before = asked(indexes(grown)[0], step, some)
    add(grown, documents(2, 60), "second")
    assert asked(pinned, step, some) == before != asked(indexes(grown)[0], step, some)


def test_segments_that_lengths_does_not_name_are_not_read(tmp_path):
    killed = Store.create(str(tmp_path / "store"))
    add(killed, documents(1, 60), "first")
    before = asked(indexes(killed)[0], Bm25(top=20, words="plain"), questions(6))
    extra = killed.scan(WORDS).to_pylist()
    rows = pa.Table.from_pylist([{**r, "segment": r["segment"] // 2} for r in extra], POSTINGS)
    write_part(killed, WORDS, "void", "0", rows, {})
    commit(killed, WORDS, "void", ["0"])  # and the process died before `lengths`
    for variant in ("lucene", "okapi"):
        step = Bm25(top=20, words="plain", variant=variant)
        same(*(asked(i, step, questions(6)) for i in indexes(killed)[:2]), variant)
    assert asked(indexes(killed)[0], Bm25(top=20, words="plain"), questions(6)) == before


def test_among_finds_only_passages_that_have_a_score_with_the_scores_of_the_whole_snapshot(store):
    first = asked(indexes(store)[0], Bm25(top=30, words="plain"), questions(8))
    pools = [
        replace(q, hits=tuple(Hit(c, c.partition(":")[0], (0, 1), {"other": 1.0}) for c, _ in f[::2]))
        for q, f in zip(questions(8), first, strict=True)
    ]
    step = Bm25(top=7, words="plain", among=("other",))
    looked_up, gathered, memory = (asked(i, step, pools) for i in indexes(store))
    assert looked_up == gathered == memory and any(looked_up)


def test_a_snapshot_has_only_pages_for_the_field_kinds(store):
    found = [
        asked(indexes(store)[0], Bm25(top=5, words="plain", kinds=k), questions(9))
        for k in (("page",), ("snippet", "name"))
    ]
    assert found[0] == asked(indexes(store)[1], Bm25(top=5, words="plain"), questions(9))
    assert not any(found[1])


def test_scopes_and_the_whole_snapshot_may_stand_in_one_batch(store):
    ids = id_texts(store.scan(TEXTS, ["source"])["source"])
    some = questions(10)
    for i in range(0, len(some), 2):
        cited = tuple(Citation("q", r, "https://a.example", "", s, None, None) for r, s in enumerate(ids[:9]))
        some[i] = replace(some[i], citations=cited)
    looked_up, gathered, _ = (asked(i, Bm25(top=6, words="plain"), some) for i in indexes(store))
    assert looked_up == gathered


@pytest.mark.slow
@pytest.mark.parametrize("common", [False, True])
def test_okapi_over_postings_gives_the_scores_of_rank_bm25(tmp_path, common):
    """2,000 documents; with and without a word in more than half of them."""
    rng = np.random.default_rng(11)
    words = [[f"w{w}" for w in rng.integers(common, 3000, rng.integers(5, 30))] for _ in range(2000)]
    if common:
        words = [[*w, "w0"] if i % 3 else w for i, w in enumerate(words)]
    texts = {source_id("document", str(i)): " ".join(w) for i, w in enumerate(words)}
    made = Store.create(str(tmp_path / "store"))
    rows, _ = tables(texts)
    spans = [(bytes.fromhex(s), 0, len(t), 0, len(t)) for s, t in texts.items()]
    passages = pa.Table.from_pylist([dict(zip(PASSAGES.names, x, strict=True)) for x in spans], PASSAGES)
    lengths, postings = _inverted(made, rows, passages, list(texts))
    for table, schema, data in ((WORDS, POSTINGS, postings), (LENGTH, LENGTHS, lengths)):
        made.ensure(table, schema)
        write_part(made, table, "run", "0", data, {})
        commit(made, table, "run", ["0"])
    peer = BM25Okapi(words)
    step = Bm25(top=2000, words="plain", variant="okapi")
    queries = [" ".join(rng.choice([f"w{i}" for i in range(300)], 6)) + " w0 w0" for _ in range(5)]
    found = asked(indexes(made)[0], step, [Question(str(i), q) for i, q in enumerate(queries)])
    order = [chunk_id(s, (0, len(t))) for s, t in texts.items()]
    for query, hits in zip(queries, found, strict=True):
        expected = dict(zip(order, peer.get_scores(query.split()), strict=True))
        assert all(expected[c] == pytest.approx(s, abs=1e-9) for c, s in hits)
        held = {c for c, w in zip(order, words, strict=True) if set(w) & set(query.split())}
        assert {c for c, _ in hits} == held
        assert [c for c, _ in hits] == sorted(dict(hits), key=lambda c: (-dict(hits)[c], c))


def _inverted(store, rows, passages, ids):
    for table, data in ((TEXTS, rows), (PARTS, passages)):
        store.ensure(table, data.schema)
        write_part(store, table, "run", "0", data, {})
        commit(store, table, "run", ["0"])
    return Inverter(store, TEXTS, PARTS, "plain").rows(ids, "run", "0")


def test_words_of_another_analyzer_are_refused(store):
    with pytest.raises(ConfError, match="no words of analyzer 'stems'"):
        Inverter(store, TEXTS, PARTS, "stems")
    with pytest.raises(ConfError, match=r"tokenize: \{analyzer: stems\}"):
        asked(indexes(store)[0], Bm25(top=3, words="stems"), questions(1))


def test_no_segment_has_more_words_than_it_may_unless_it_is_one_source(tmp_path):
    store = Store.create(str(tmp_path / "store"))
    texts = documents(5, 60)
    long = source_id("document", "long")
    texts[long] = "w1 w2 w3 " * 100
    add(store, texts, "run", 1, 200)
    counted = {s: len(analyse(t, "plain")[0]) for s, t in texts.items()}
    rows = with_id_texts(store.scan(LENGTH, ["source", "segment"]).to_pylist())
    held = {}
    for row in rows:
        held.setdefault(row["segment"], set()).add(row["source"])
    assert {s for some in held.values() for s in some} == set(texts)
    sizes = [(len(some), sum(counted[s] for s in some)) for some in held.values()]
    assert len(sizes) > 5 and all(words <= 200 or count == 1 for count, words in sizes)
    assert (1, 300) in sizes


def ingested_in_small_pieces(folder, large=0):
    """One small ingest after the other, of which some papers are taken out again."""
    made = Store.create(str(folder))
    if large:
        add(made, documents(1, large), "large", parts=1)
    for i in range(8):
        add(made, documents(20 + i, 12), f"run{i}", parts=1)
    gone = [s for i in range(8) for s in list(documents(20 + i, 12))[3::5]]
    for table in (TEXTS, PARTS, LENGTH):
        made.forget(table, "source", gone)
    return made


def inverter(store, *segment_words):
    return Inverter(store, TEXTS, PARTS, "plain", *segment_words)


def hits(store, top=25):
    steps = [Bm25(top=top, words="plain", variant=variant) for variant in ("lucene", "okapi")]
    return [asked(indexes(store)[0], step, questions(11)) for step in steps]


def words_of_segments(store):
    found = indexes(store)[0]._postings["plain"].segments().values()
    return sorted(int(s.lengths[s.lengths >= 0].sum()) for s in found)


@pytest.mark.slow
def test_merging_segments_changes_no_score_and_frees_what_was_taken_out(tmp_path):
    store = ingested_in_small_pieces(tmp_path / "store", large=90)
    before, rows, pinned = hits(store), store.count(WORDS), indexes(store)[0]
    left = set(id_texts(store.scan(LENGTH, ["source"])["source"]))
    *small, large = words_of_segments(store)
    kept = store.dataset(WORDS).get_fragments()[0].fragment_id
    assert merge_segments(store, WORDS, LENGTH, inverter(store, sum(small[:5]))) > 0
    some = words_of_segments(store)
    assert len(some) < 9 and sum(some) == sum(small) + large, "groups stay below the size of a segment"
    assert max(some[:-1]) <= sum(small[:5])
    assert kept in {f.fragment_id for f in store.dataset(WORDS).get_fragments()}, "it is large"
    assert hits(store) == before
    assert merge_segments(store, WORDS, LENGTH, inverter(store), at=2) == len(some) - 1
    assert len(words_of_segments(store)) == 1 and store.count(WORDS) < rows
    assert hits(store) == before
    assert asked(pinned, Bm25(top=25, words="plain"), questions(11)) == before[0], "as it was opened"
    assert set(id_texts(store.scan(LENGTH, ["source"])["source"])) == left
    assert merge_segments(store, WORDS, LENGTH, inverter(store)) == 0
    looked_up, gathered, _ = (asked(i, Bm25(top=9999, words="plain"), questions(12)) for i in indexes(store))
    assert looked_up == gathered


@pytest.mark.drill
@pytest.mark.parametrize("at", [f"{e}:transact:{n}" for e in ("call", "return") for n in (1, 2, 3)])
def test_a_merge_that_is_killed_changes_no_score_and_the_next_one_ends_it(tmp_path, at):
    store = ingested_in_small_pieces(tmp_path / "store")
    before = hits(store)
    script = Path(__file__).parent / "killed_merge.py"
    killed = subprocess.run(
        [sys.executable, str(script), store.uri, TEXTS, PARTS, WORDS, LENGTH, at],
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -9, killed.stderr
    assert hits(store) == before
    merge_segments(store, WORDS, LENGTH, inverter(store))
    assert len(store.scan(WORDS, ["segment"])["segment"].unique()) == 1 and hits(store) == before
