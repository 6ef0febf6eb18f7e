"""What the published systems need of the corpus and of ranking, end to end over a store, with fakes."""

import asyncio
import io
import json
from pathlib import Path

import pytest
from checkout import ROOT, SUPPORT

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.arrow import id_texts
from raypipe.core.conf import Conf
from raypipe.core.progress import Progress
from raypipe.core.records import parse_chunk_id
from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.pipeline.recipe_tables import searched
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.serving.documents import answer_over_documents
from raypipe.store import Store
from raypipe.store.index import LanceIndex

pytestmark = pytest.mark.slow

CONF = Conf((ROOT / "conf",))


def result(name, snippet, html):
    return {
        "page_name": name,
        "page_url": f"https://e.org/{name}",
        "page_snippet": snippet,
        "page_result": html,
        "page_last_modified": "",
    }


def line(id, query, results):
    return {
        "interaction_id": id,
        "query": query,
        "query_time": "03/05/2024, 23:18:31 PT",
        "answer": "x",
        "alt_ans": [],
        "search_results": results,
    }


FILLER = "Nothing of interest stands in this paragraph about weather. " * 12
PLANTED = "the heron of lake ulmo"
PAGES = [
    result(
        f"page{i}",
        f"notes {i} on weather",
        f"<p>{FILLER}</p><p>Page {i} ends. {PLANTED if i == 3 else ''}</p>",
    )
    for i in range(20)
]


@pytest.fixture
def filled(tmp_path):
    """A function: lines -> a pipeline over a store filled with them, the recipe changed by `edit`."""

    def fill(lines, edit=lambda text: text, name="store"):
        recipe_file, data = tmp_path / "made.yaml", tmp_path / f"{name}.jsonl"
        recipe_file.write_text(edit((SUPPORT / "fakes.yaml").read_text()))
        data.write_text("\n".join(json.dumps(x) for x in lines))
        store = Store.create(str(tmp_path / name))
        recipe = load_recipe(str(recipe_file), None, CONF)
        with Progress(io.StringIO(), silent=True) as progress:
            pipe = Pipeline(
                store,
                recipe,
                WorkerConfig(store.uri, "transformers", "cpu", 1),
                TaskSizes(50, 4),
                inline,
                progress,
            )
            ids = ingest(store, [data], "crag", progress).questions
            stored = {q.id: q for q in arrow.question.records(store.rows("questions", "id", ids))}
            questions = [stored[i] for i in ids]
            pipe.index(questions)
            pipe.answer(questions)
        return pipe, questions, list(pipe.answers(questions))

    return fill


def texts_of(pipe, question):
    index = LanceIndex(searched(pipe.store, pipe.recipe))
    return asyncio.run(index.texts([h.chunk for h in question.hits]))


def test_a_fact_that_only_a_snippet_holds_is_found(filled):
    results = [*PAGES[:5], result("bare", "the owl of mount brenn sleeps by day", "<p>no owl</p>")]
    pipe, _, [answered] = filled([line("q", "what of mount brenn", results)])
    assert any("mount brenn" in text for text in texts_of(pipe, answered))


def test_a_question_finds_chunks_of_its_own_sources_only(filled):
    pipe, questions, answered = filled(
        [line("a", PLANTED, PAGES[:4]), line("b", PLANTED, PAGES[4:9]), line("none", PLANTED, [])]
    )
    for question, found in zip(questions, answered, strict=True):
        assert {h.source for h in found.hits} <= set(question.sources())
    assert answered[0].hits and answered[1].hits and not answered[2].hits
    assert any(PLANTED in text for text in texts_of(pipe, answered[0]))


def test_a_new_embedder_makes_a_new_table_and_leaves_the_old_one_readable(filled):
    lines = [line("a", PLANTED, PAGES[:4])]
    old, _, _ = filled(lines)
    models = Path(old.store.uri).parent / "models.yaml"
    text = (ROOT / "conf/models.yaml").read_text()
    models.write_text(text.replace("loader: hash\n  dim: 256", "loader: hash\n  dim: 128"))
    other = load_recipe(str(models.with_name("made.yaml")), str(models), CONF)
    with Progress(io.StringIO(), silent=True) as progress:
        new = Pipeline(old.store, other, old.worker, old.sizes, inline, progress)
        new.index(None)
    [before], [after] = old.recipe.embedders(), new.recipe.embedders()
    assert old.recipe.vectors_table(before) != new.recipe.vectors_table(after)
    assert old.recipe.texts_table == new.recipe.texts_table
    assert old.recipe.passages_table == new.recipe.passages_table
    counts = [old.store.count(t) for t in (old.recipe.vectors_table(before), new.recipe.vectors_table(after))]
    assert counts[0] == counts[1] > 0
    for recipe in (old.recipe, new.recipe):
        LanceIndex(searched(old.store, recipe))


def test_a_planted_sentence_is_found_and_its_parents_are_distinct_in_best_child_order(filled):
    pipe, _, [answered] = filled([line("q", PLANTED, PAGES)])
    recalled = [h for h in answered.hits if "dense" in h.scores]
    chunks = [h.chunk for h in recalled]
    assert len(chunks) == len(set(chunks))
    assert [h.scores["dense"] for h in recalled] == sorted(
        (h.scores["dense"] for h in recalled), reverse=True
    )
    best = asyncio.run(LanceIndex(searched(pipe.store, pipe.recipe)).texts([answered.order[0]]))
    assert PLANTED in best[0]


def test_a_shortlist_keeps_five_pages_and_every_snippet(filled):
    results = [*PAGES[:12], result("aim", "the heron of lake ulmo, a report", "<p>report</p>" + FILLER)]
    pipe, [question], [answered] = filled([line("q", PLANTED, results)])
    pages = {c.page for c in answered.citations if c.page}
    assert len(pages) == 5
    assert {c.snippet for c in answered.citations} == {c.snippet for c in question.citations}
    hit_pages = {parse_chunk_id(h.chunk)[0] for h in answered.hits} & {c.page for c in question.citations}
    assert hit_pages <= pages
    parsed = set(id_texts(pipe.store.dataset(pipe.recipe.texts_table).to_table(["source"])["source"]))
    assert {c.page for c in question.citations} <= parsed, "the corpus job parses every page once"


def test_documents_sent_with_a_question_are_parsed_only_if_the_shortlist_keeps_them(filled, tmp_path):
    results = [*PAGES[:12], result("aim", "the heron of lake ulmo, a report", "<p>report</p>" + FILLER)]
    pipe, [question], [stored] = filled([line("q", PLANTED, results)])
    named = set(question.sources())
    sources = [s for s in arrow.source.records(pipe.store.dataset("sources").to_table()) if s.id in named]
    done = asyncio.run(answer_over_documents(pipe.recipe, LocalKit(None), question, sources))
    pages = {s.id for s in sources if s.kind == "page"}
    texts = asyncio.run(done.index.source_texts(sorted(pages)))
    assert sum(text is not None for text in texts) == 5
    assert done.question == stored
