"""Postings of a collection: built once, added to, resumed after a kill, kept for releases."""

import asyncio
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import pyarrow.compute as pc
import pytest
from collection_bench import RANKS, Bench, papers, queries, write_beir

from raypipe.core import arrow
from raypipe.core.arrow import id_texts
from raypipe.core.records import Citation, Fault
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.fault_budget import row_faults
from raypipe.evaluation.options import EvalOptions
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import QuestionExecutor
from raypipe.runs.pipeline.dead_letters import faults_table
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.pipeline.recipe_tables import postings_tables, searched
from raypipe.runs.pipeline.tasks import inline
from raypipe.runs.prune import prune
from raypipe.runs.record import read
from raypipe.runs.release import live, promote, rollback
from raypipe.store import commit, write_part
from raypipe.store.index import LanceIndex

pytestmark = pytest.mark.slow

BM25 = "  - bm25: {words: stems, variant: okapi, top: 30}\n"


def run(bench, beir, out):
    return evaluate(bench.pipeline(RANKS), [beir], bench.folder / out, EvalOptions("beir"))


def tables(pipe):
    [(postings, lengths)] = postings_tables(pipe.recipe).values()
    return postings, lengths


def ranked(pipe, spec):
    questions = arrow.question.records(pipe.store.scan("questions").sort_by("id"))
    kit = LocalKit(LanceIndex(spec), "transformers")
    done = asyncio.run(QuestionExecutor(pipe.recipe, kit)(questions))
    return [(q.id, [(h.chunk, h.scores) for h in q.hits]) for q in done]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A store in which a collection of thirty papers was ranked, and promoted."""
    folder = tmp_path_factory.mktemp("collection")
    bench = Bench(folder, folder)
    run(bench, write_beir(folder / "beir", papers(1, 30), queries(6)), "one")
    promote(bench.pipeline(RANKS).store, read(folder / "one"), [])
    return bench


@pytest.fixture
def bench(first, tmp_path):
    shutil.copytree(first.folder, tmp_path, dirs_exist_ok=True)
    return Bench(tmp_path, tmp_path)


def test_a_second_run_builds_nothing_and_more_papers_leave_old_segments(bench):
    pipe = bench.pipeline(RANKS)
    versions = [pipe.store.version(t) for t in tables(pipe)]
    run(bench, bench.folder / "beir", "two")
    assert [pipe.store.version(t) for t in tables(pipe)] == versions
    before = pipe.store.scan(tables(pipe)[0])
    old = pipe.store.dataset(tables(pipe)[0]).get_fragments()[0].metadata.files[0].path
    run(bench, write_beir(bench.folder / "more", papers(2, 3), queries(6)), "three")
    after = pipe.store.scan(tables(pipe)[0])
    assert after.slice(0, before.num_rows) == before and after.num_rows > before.num_rows
    assert pipe.store.dataset(tables(pipe)[0]).get_fragments()[0].metadata.files[0].path == old
    spec = live(pipe.store).opened(pipe.store)[1]
    assert [name for name, *_ in spec.words] == ["stems"]


@pytest.mark.drill
def test_papers_that_came_in_two_runs_are_ranked_as_those_of_one(bench, tmp_path_factory):
    run(bench, write_beir(bench.folder / "more", papers(2, 20), queries(6)), "two")
    folder = tmp_path_factory.mktemp("fresh")
    fresh = Bench(folder, folder)
    run(fresh, write_beir(folder / "beir", [*papers(1, 30), *papers(2, 20)], queries(6)), "one")
    grown, whole = (b.pipeline(RANKS) for b in (bench, fresh))
    assert ranked(grown, searched(grown.store, grown.recipe)) == ranked(
        whole, searched(whole.store, whole.recipe)
    )
    # And as without postings: the words of the whole snapshot.
    spec = searched(grown.store, grown.recipe)
    found = zip(ranked(grown, spec), ranked(grown, replace(spec, words=())), strict=True)
    for (_, one), (_, other) in found:
        assert [c for c, _ in one] == [c for c, _ in other]


@pytest.mark.drill
def test_questions_with_pages_of_their_own_build_no_postings(first, tmp_path):
    pipe = Bench(tmp_path, tmp_path).pipeline(RANKS)
    ingest(pipe.store, [first.folder / "beir"], "beir", pipe.progress)
    [question, *_] = arrow.question.records(pipe.store.scan("questions"))
    source = id_texts(pipe.store.scan("sources", ["id"])["id"])[0]
    cited = Citation(question.id, 0, "https://a.example", "", source, None, None)
    pipe.index([replace(question, citations=(cited,))])
    assert not any(map(pipe.store.has, tables(pipe)))
    pipe.index(None)
    assert all(map(pipe.store.has, tables(pipe)))


@pytest.mark.drill
def test_prune_and_rollback_keep_what_a_release_searches(bench):
    pipe = bench.pipeline(RANKS)
    release = live(pipe.store)
    before = ranked(pipe, release.opened(pipe.store)[1])
    run(bench, write_beir(bench.folder / "more", papers(2, 20), queries(6)), "two")
    promote(pipe.store, read(bench.folder / "two"), [])
    prune(pipe.store, dry_run=False, kept=timedelta(0))
    assert ranked(pipe, live(pipe.store).opened(pipe.store)[1]) != before
    rollback(pipe.store)
    assert live(pipe.store).id == release.id
    assert ranked(pipe, live(pipe.store).opened(pipe.store)[1]) == before


def test_questions_that_ask_embedders_alone_make_tasks_of_128(bench):
    write_beir(bench.folder / "many", papers(1, 30), queries(140))
    ranks = "".join(x for x in RANKS.splitlines(keepends=True) if "rerank" not in x)
    sizes = {}

    def watched(verb, work, tasks):
        sizes.setdefault(verb, []).extend(t.rows for t in tasks)
        return inline(verb, work, tasks)

    pipe = replace(bench.pipeline(ranks), runner=watched)
    assert pipe.sizes.questions < 128
    ingest(pipe.store, [bench.folder / "many"], "beir", pipe.progress)
    pipe.index(None)
    pipe.answer(arrow.question.records(pipe.store.scan("questions")))
    assert sizes["answer"] == [128, 12]


def test_a_paper_that_is_taken_out_is_not_found_and_does_not_count(bench):
    pipe = bench.pipeline(RANKS)
    gone = id_texts(pipe.store.scan("sources", ["id"])["id"])[:30]
    for table in (pipe.recipe.texts_table, pipe.recipe.passages_table, tables(pipe)[1], "sources"):
        pipe.store.forget(table, "id" if table == "sources" else "source", gone)
    [model] = pipe.recipe.embedders()
    pipe.store.forget(pipe.recipe.vectors_table(model), "source", gone)
    spec = searched(pipe.store, pipe.recipe)
    one, other = ranked(pipe, spec), ranked(pipe, replace(spec, words=()))
    for (_, a), (_, b) in zip(one, other, strict=True):
        assert [c for c, _ in a] == [c for c, _ in b]
        assert not {c.partition(":")[0] for c, _ in a} & set(gone)


def test_postings_that_lack_newer_sources_are_not_searched_until_they_have_them(bench):
    pipe = bench.pipeline(RANKS)
    other = bench.pipeline(RANKS.replace(BM25, "").replace("dense: 1.0, bm25: 1.0", "dense: 1.0"))
    assert other.recipe.passages_table == pipe.recipe.passages_table and not postings_tables(other.recipe)
    more = write_beir(bench.folder / "more", papers(2, 20), queries(6))
    ingest(other.store, [more], "beir", other.progress)
    other.index(None)
    spec = searched(pipe.store, pipe.recipe)
    assert spec.words == ()
    pipe.index(None)
    kept = searched(pipe.store, pipe.recipe)
    assert [name for name, *_ in kept.words] == ["stems"]
    one, other = ranked(pipe, spec), ranked(pipe, kept)
    assert [(i, [c for c, _ in hits]) for i, hits in one] == [(i, [c for c, _ in hits]) for i, hits in other]


def test_a_source_whose_words_were_not_inverted_is_a_dead_letter_and_names_the_answers_key(bench):
    pipe = bench.pipeline(RANKS)
    questions = arrow.question.records(pipe.store.scan("questions"))
    [source, other, *_] = id_texts(pipe.store.scan("sources", ["id"])["id"])
    whole = pipe.answer_sources(questions)
    pipe.store.forget(tables(pipe)[1], "source", [source])
    lost = [(source, asdict(Fault("postings", "worker_died", "died", transient=False)), 2, tables(pipe)[1])]
    write_part(pipe.store, "faults", "before", "0", faults_table(lost, "before"), {})
    commit(pipe.store, "faults", "before", ["0"])
    without = pipe.answer_sources(questions)
    assert without.missing == {source: ("words stems",)}
    assert without.key("r", questions[0]) != whole.key("r", questions[0])
    counted = row_faults(pipe, questions, {})
    assert [(r.kind, r.id, r.reason) for r in counted.rows] == [("sources", source, "worker_died")]
    assert next((c.kind, c.failed, c.pending) for c in counted.counts) == ("sources", 1, 0)
    assert searched(pipe.store, pipe.recipe).words, "it is told, so the others are found by postings"
    # Who is searched for in pages of their own reads no postings.
    cited = [Citation("q", i, "https://a.example", "", s, None, None) for i, s in enumerate([source, other])]
    own = replace(questions[0], citations=tuple(cited))
    assert without.absent(own) == "" and pipe.answer_sources([own]).missing == {}


@pytest.mark.drill
def test_cited_questions_of_a_recipe_that_searches_everything_build_postings(first, tmp_path):
    wide = RANKS.replace(BM25, BM25.replace("top: 30", "top: 30, scope: all"))
    pipe = Bench(tmp_path, tmp_path).pipeline(wide)
    ingest(pipe.store, [first.folder / "beir"], "beir", pipe.progress)
    [question, *_] = arrow.question.records(pipe.store.scan("questions"))
    source = id_texts(pipe.store.scan("sources", ["id"])["id"])[0]
    cited = Citation(question.id, 0, "https://a.example", "", source, None, None)
    pipe.index([replace(question, citations=(cited,))])
    assert all(map(pipe.store.has, tables(pipe)))


POINTS = [
    "call:write_part:2",
    "return:write_part:2",
    "return:write_part:3",
    "call:commit:2",
    "return:commit:2",
    "call:append:2",
    "return:append:2",
    "return:append:3",
    "call:drop_records:3",
    "call:end:1",
]


@pytest.mark.drill
@pytest.mark.parametrize("at", POINTS)
def test_a_build_that_is_killed_is_resumed_and_leaves_equal_tables(first, tmp_path, at):
    pipe = Bench(tmp_path, tmp_path).pipeline(RANKS)
    ingest(pipe.store, [first.folder / "beir"], "beir", pipe.progress)
    script = Path(__file__).parent / "killed_build.py"
    killed = subprocess.run([sys.executable, str(script), str(tmp_path), at], capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    pipe.index(None)
    expected, bench = first.pipeline(RANKS), first
    for table in tables(pipe):
        columns = [c for c in pipe.store.dataset(table).schema.names if c != "segment"]
        found, known = (
            b.store.scan(table, columns).sort_by([(columns[0], "ascending"), (columns[1], "ascending")])
            for b in (pipe, expected)
        )
        assert found.num_rows == known.num_rows
        assert pc.equal(found[columns[0]], known[columns[0]])
    ingest(pipe.store, [bench.folder / "beir"], "beir", pipe.progress)
    assert ranked(pipe, searched(pipe.store, pipe.recipe)) == ranked(
        expected, searched(expected.store, expected.recipe)
    )
