"""One batch == one row at a time == a store filled in this process == Ray Data in four blocks == `ask`."""

import asyncio
import io
import json
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
from checkout import ROOT, SUPPORT

from raypipe import readers
from raypipe.api.cli.main import main
from raypipe.api.session import load_recipe
from raypipe.contrib.world.write import write
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.digests import model_identity
from raypipe.core.progress import Progress
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.store import Store
from raypipe.store.index import MemoryIndex

CONF = Conf((ROOT / "conf",))
FAKES = str(SUPPORT / "fakes.yaml")


def read(world):
    """Questions, and sources each once, straight from the files."""
    rows = list(readers.open([world], "synth", readers.ReadCounts()))
    seen: set[str] = set()
    sources = [s for r in rows for s in readers.unseen(r.sources, seen)]
    return [r.question for r in rows], sources


def in_memory(recipe, world, batch):
    """The answers without a store and without Ray, `batch` questions at a time."""
    questions, sources = read(world)
    kit = LocalKit(None, "transformers")

    async def answers():
        corpus = await CorpusExecutor(recipe, kit)(arrow.corpus_table(sources))
        vectors = {model_identity(m): corpus.vectors[m.name] for m in recipe.embedders()}
        ask = QuestionExecutor(recipe, kit.with_index(MemoryIndex(corpus.texts, corpus.passages, vectors)))
        return [q for i in range(0, len(questions), batch) for q in await ask(questions[i : i + batch])]

    return asyncio.run(answers())


def stored(recipe, world, uri, runner, progress):
    """The answers out of a fresh store, filled by a runner: at least four parts of the corpus."""
    store = Store.create(str(uri))
    pipeline = Pipeline(
        store, recipe, WorkerConfig(store.uri, "transformers", "cpu", 1), TaskSizes(20, 2), runner, progress
    )
    ids = ingest(store, [world], "synth", progress).questions
    questions = {q.id: q for q in arrow.question.records(store.rows("questions", "id", ids))}
    asked = [questions[i] for i in ids]
    pipeline.index(asked)
    pipeline.answer(asked)
    return list(pipeline.answers(asked))


@pytest.fixture
def on_ray(run_tasks, engine_groups):
    """Runs parts on two actors."""

    def run(verb, fill, parts):
        return run_tasks(fill, parts, engine_groups.Pool(actors=2, cpus=1))

    return run


@pytest.fixture
def progress():
    with Progress(io.StringIO(), silent=True) as p:
        yield p


@pytest.mark.drill
@pytest.mark.ray
def test_fakes_give_bit_equal_answers_however_they_are_run(world, tmp_path, progress, on_ray, monkeypatch):
    recipe = load_recipe(FAKES, None, CONF)
    whole = in_memory(recipe, world, batch=100)
    assert in_memory(recipe, world, batch=1) == whole
    assert stored(recipe, world, tmp_path / "here", inline, progress) == whole
    assert stored(recipe, world, tmp_path / "ray", on_ray, progress) == whole
    assert any(q.outcome == "answered" for q in whole) and all(q.hits for q in whole)

    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))
    for question in whole[:2]:
        out = io.StringIO()
        with redirect_stdout(out):
            assert main(["ask", FAKES, question.id, "--store", str(tmp_path / "ray"), "--json"]) == 0
        said = json.loads(out.getvalue())
        assert (said["answer"], said["outcome"]) == (question.answer, question.outcome)
        assert {h["chunk"]: h["scores"] for h in said["hits"]} == {
            h.chunk: dict(h.scores) for h in question.hits
        }


@pytest.mark.drill
@pytest.mark.slow
def test_minilm_gives_the_same_ids_and_scores_within_1e5(tmp_path, progress):
    recipe = load_recipe("local", None, CONF)
    world = tmp_path / "world"
    write(world, 2, pages=4, seed=3, page_chars=1500)
    whole = in_memory(recipe, world, batch=100)
    for other in (
        in_memory(recipe, world, batch=1),
        stored(recipe, world, tmp_path / "here", inline, progress),
    ):
        for a, b in zip(whole, other, strict=True):
            assert (a.id, a.order, a.outcome, a.answer) == (b.id, b.order, b.outcome, b.answer)
            assert {h.chunk for h in a.hits} == {h.chunk for h in b.hits}
            scores = {h.chunk: h.scores for h in b.hits}
            for hit in a.hits:
                assert hit.scores == pytest.approx(scores[hit.chunk], abs=1e-5)


@pytest.mark.slow
def test_golds_are_invisible_to_whatever_answers(world, tmp_path, progress):
    recipe = load_recipe(FAKES, None, CONF)
    clean = stored(recipe, world, tmp_path / "clean", inline, progress)
    poisoned = tmp_path / "poisoned"
    poisoned.mkdir()
    for file in world.glob("questions*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            line["answer"] = f"poison {line['query']}"
            line["domain"] = line["question_type"] = line["static_or_dynamic"] = "poison"
        (poisoned / file.name).write_text("\n".join(json.dumps(line) for line in lines))
    answers = stored(recipe, poisoned, tmp_path / "store", inline, progress)
    assert [replace(q, id="") for q in answers] == [replace(q, id="") for q in clean]
