"""A store's tables as Ray Data's Datasets, and raypipe's steps between operators of one's own."""

import pyarrow as pa
import pytest
from checkout import ROOT, SUPPORT

import raypipe
from raypipe.core import arrow
from raypipe.core.arrow import id_texts, with_id_texts
from raypipe.core.errors import ConfError
from raypipe.core.records import parse_chunk_id
from raypipe.store import Store

FAKES = str(SUPPORT / "fakes.yaml")
pytestmark = pytest.mark.drill  # tests/docs/test_formats_page.py has a table and a step


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    home = str(tmp_path_factory.mktemp("home"))
    return raypipe.Session(
        raypipe.from_environment({"RAYPIPE_HOME": home, "RAYPIPE_CONF": str(ROOT / "conf")})
    )


@pytest.fixture
def opened(bench, session):
    """A copy of a store in which a recipe has answered, and how its tables are opened."""
    store = Store.open(str(bench.folder / "store"))
    return store, lambda table, **how: raypipe.dataset(table, FAKES, store, session=session, **how)


def table_of(rows):
    """All rows of a Dataset in one table."""
    return pa.concat_tables(batch for batch in rows.iter_batches(batch_format="pyarrow", batch_size=None))


def by(column, table):
    return {row[column]: row for row in with_id_texts(table.to_pylist())}


def test_each_table_of_a_recipe_is_a_dataset_with_its_rows(local_ray, opened, session):
    store, dataset = opened
    recipe = session.recipe(FAKES)
    texts = table_of(dataset("texts", columns=["source", "text"]))
    assert sorted(id_texts(texts["source"])) == sorted(id_texts(store.scan(recipe.texts_table)["source"]))
    passages, chunks = table_of(dataset("passages")), store.scan(recipe.passages_table, filter="end > start")
    assert passages.num_rows == chunks.num_rows > 0
    whole = by("source", texts)
    for row in with_id_texts(passages.to_pylist()):
        assert row["text"] == whole[row["source"]]["text"][row["start"] : row["end"]]
        assert parse_chunk_id(row["chunk"]) == (row["source"], (row["parent_start"], row["parent_end"]))
    vectors = table_of(dataset("vectors", columns=["chunk", "vector"]))
    assert vectors.num_rows == passages.num_rows and vectors.column_names == ["chunk", "vector"]
    hits = {h.chunk for q in arrow.question.records(table_of(dataset("answers"))) for h in q.hits}
    assert hits and hits <= set(passages["chunk"].to_pylist())


def test_deleted_rows_are_not_read_and_later_commits_do_not_show(local_ray, opened, session):
    store, dataset = opened
    before, table = dataset("texts", columns=["source"]), session.recipe(FAKES).texts_table
    gone = id_texts(store.scan(table, ["source"])["source"])[0]
    store.forget(table, "source", [gone])
    after = id_texts(table_of(dataset("texts", columns=["source"]))["source"])
    assert gone not in after and table_of(before).num_rows == len(after) + 1


def test_answers_are_those_of_the_recipe_and_of_the_present_evidence(local_ray, opened, session):
    store, dataset = opened
    answers = store.scan("answers")
    old = answers.slice(0, 1)
    for name in ("key", "row"):
        other = old.schema.field(name)
        old = old.set_column(old.column_names.index(name), other, pa.array([bytes(16)], other.type))
    store.dataset("answers").insert(old)
    assert store.count("answers") == answers.num_rows + 1
    found = table_of(dataset("answers", columns=["id", "answer"]))
    assert by("id", found) == by("id", answers.select(["id", "answer"]))


def test_pages_of_ones_own_go_through_parse_split_and_embed_and_keep_their_columns(local_ray, session):
    import ray.data

    page = b"<title>Velora</title><p>Velora is a film of 1994, directed by Anna Lindqvist.</p>"
    pages = [{"url": f"https://example.org/{n}", "content": page if n < 2 else b"<p>Brask"} for n in range(3)]
    parse = raypipe.step("parse", html="lxml", via="fast", session=session)
    split = raypipe.step(
        "split", child_chars=30, child_overlap=5, parent_chars=60, parent_overlap=10, session=session
    )
    embed = raypipe.step("embed", model="hash-embedder", session=session)
    made = ray.data.from_items(pages, override_num_blocks=2)
    for step in (parse, split, embed):
        pool = ray.data.ActorPoolStrategy(size=1)
        made = made.map_batches(step, batch_format="pyarrow", batch_size=2, compute=pool, num_cpus=0.1)
    table = table_of(made)
    assert "parse" in made.stats() and "embed" in made.stats()
    assert {r["url"] for r in table.to_pylist()} == {p["url"] for p in pages}
    texts = {}
    for row in sorted(table.to_pylist(), key=lambda r: r["start"]):
        texts.setdefault(row["url"], []).append((row["chunk_text"], tuple(row["vector"])))
    first, second, third = (texts[p["url"]] for p in pages)
    assert first == second != third and len(first) > 1 and third[0][0] == "Brask"
    assert table["fault"].null_count == table.num_rows


def test_ids_of_sources_are_bytes_in_a_batch(session):
    parse, page = raypipe.step("parse", html="lxml", via="fast", session=session)(), ["<p>Velora"]
    id = b"0123456789abcdef"
    made = parse(pa.table({"content": page, "source": pa.array([id], pa.binary())}))
    assert made["source"].to_pylist() == [id] and made["text"].to_pylist() == ["Velora"]
    with pytest.raises(ConfError, match=r"column source: expected ids of 16 bytes, found string .*fromhex"):
        parse(pa.table({"content": page, "source": [id.hex()]}))


def test_answers_are_reranked_between_two_operators_of_ones_own(local_ray, opened, session):
    store, dataset = opened
    rerank = raypipe.step("rerank", FAKES, store, session, model="overlap-reranker", top=2, into="again")
    kept = ["id", "text", "citations", "hits", "order", "outcome"]
    own = dataset("answers", columns=kept).map_batches(
        lambda t: t.append_column("length", pa.array([len(x) for x in t["text"].to_pylist()])),
        batch_format="pyarrow",
    )
    after = table_of(
        own.map_batches(rerank, batch_format="pyarrow", compute=local_ray.data.ActorPoolStrategy(size=1))
    )
    before = {q.id: q for q in arrow.question.records(store.scan("answers"))}
    for row, q in zip(after.to_pylist(), arrow.question.records(after), strict=True):
        scores = {h.chunk: h.scores["again"] for h in q.hits if "again" in h.scores}
        assert row["length"] == len(q.text) and q.outcome == before[q.id].outcome
        assert set(scores) == set(before[q.id].order)
        assert list(q.order) == sorted(scores, key=lambda c: (-scores[c], c))[:2]
    assert any(len(q.order) == 2 for q in before.values()) or after.num_rows == len(before)


def test_a_stage_of_a_recipe_does_in_a_pipeline_what_it_did_in_the_run(opened, session):
    store, _ = opened
    extract = raypipe.step("extract", FAKES, store, session)()
    answers = store.scan("answers")
    given = answers.drop_columns(["replies"])
    again = arrow.question.records(extract(given))
    for new, q in zip(again, arrow.question.records(answers), strict=True):
        assert new.replies["extract"] == q.replies["extract"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda s: raypipe.step("rerankk", session=s), "rerank"),
        (lambda s: raypipe.step("rerank", session=s, model="overlap-reranker", top=0), "at least 1"),
        (lambda s: raypipe.step("rerank", session=s, model="overlap-reranker", top=1), "found no recipe"),
        (lambda s: raypipe.step("parse", session=s)()({"content": ["a"]}), 'batch_format="pyarrow"'),
        (lambda s: raypipe.step("parse", session=s)()(pa.table({"html": ["a"]})), "expected column content"),
        (lambda s: raypipe.dataset("text", FAKES, "unused", session=s), "texts"),
    ],
)
def test_what_cannot_be_right_is_refused_before_a_dataset_runs(call, says, session):
    with pytest.raises((ConfError, raypipe.RaypipeError), match=says):
        call(session)
