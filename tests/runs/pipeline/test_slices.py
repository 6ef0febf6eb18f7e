"""A recipe cut into slices: where, and that rows come out of them as out of one piece."""

import asyncio
import io
import json
import re
import runpy

import pytest
from checkout import SUPPORT, TESTS
from reruns import CONF

from raypipe.api.session import load_recipe
from raypipe.contrib.crag.server import serve as serve_graph
from raypipe.core import arrow
from raypipe.core.progress import Progress
from raypipe.readers.example_pool import ExampleRow, write_pool
from raypipe.readers.qasper import ARXIV
from raypipe.runs.pipeline.answer_operators import AnswersTask, cut_by_kind, cut_for_gpus
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.pipeline.operators import PartRows
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.store import Store


@pytest.mark.parametrize(
    ("name", "on_cpus", "with_gpus"),
    [
        ("local", ["rank", "rerank", "rank"], ["rank"]),
        (
            "db3-task3",
            ["generate", "rerank", "rank", "rerank", "generate"],
            ["rank", "generate"],
        ),
        ("weknow", ["generate", "rank", "rerank", "generate"], ["rank", "generate"]),
        ("qasper-documents-fewshot", ["generate", "rank", "generate"], ["rank", "generate"]),
        ("vanilla", ["generate"], ["generate"]),
    ],
)
def test_a_slice_ends_where_the_next_stage_asks_another_kind_of_model(name, on_cpus, with_gpus):
    stages = load_recipe(name, None, CONF).question
    for cut, expected in ((cut_by_kind, on_cpus), (cut_for_gpus, with_gpus)):
        found = cut(stages)
        assert [n for n, *_ in found] == expected
        assert [a for _, a, _ in found] == [0, *(b for *_, b in found[:-1])]
        assert found[-1][2] == len(stages)


def through_rows(verb, work, tasks):
    """As `inline`, but each operator gets what the one before it made as rows of Arrow."""
    if not isinstance(work, AnswersTask):
        yield from inline(verb, work, tasks)
        return

    kit, store = work.worker.kit(None), Store.open(work.worker.store)

    async def one(task):
        block = PartRows.of_task(task.with_ids(store), work.key)
        for operator in work.operators():
            block = PartRows.of(block.table())
            block = await (await operator.open(kit))(block)
        sink = await work.open_sink("")
        return await sink(PartRows.of(block.table()))

    with asyncio.Runner() as loop:
        for task in tasks:
            yield loop.run(one(task))


def answers(recipe, data, kind, uri, runner):
    store = Store.create(str(uri))
    with Progress(io.StringIO(), silent=True) as progress:
        worker = WorkerConfig(store.uri, "transformers", "cpu", 1)
        pipe = Pipeline(store, recipe, worker, TaskSizes(50, 4), runner, progress)
        ids = ingest(store, [data], kind, progress).questions[:6]
        asked = arrow.question.records(store.rows("questions", "id", ids))
        pipe.index(asked)
        done = pipe.answer(asked)
        made = [
            re.sub(r"\bms\b\W+[\d.e-]+", "ms", repr(q)) for q in pipe.answers(asked)
        ]  # traces of graphs say how long
        return made, {n: (c.rows, c.calls) for n, c in done.counts.items()}


def written_papers(folder):
    """A paper with two questions, and a pool of examples."""
    answers = {"extractive_spans": ["corpus a1"], "evidence": ["They train on corpus a1."]}, {"yes_no": True}
    asked = zip(("Which corpora do they use for training?", "Is it long?"), answers, strict=True)
    qas = [{"question": q, "question_id": q, "answers": [{"answer": a}]} for q, a in asked]
    said = ["Nothing of it. " * 40, "They train on corpus a1."]
    text = [{"section_name": "Data", "paragraphs": said}]
    paper = {"title": "Paper a1", "abstract": "On a1.", "full_text": text, "qas": qas}
    (folder / "papers.json").write_text(json.dumps({"a1": paper}))
    rows = [ExampleRow(f"What is number {n}?", f"It is {n}", f"{ARXIV}{n}", "Since.") for n in range(12)]
    write_pool(folder / "pool.jsonl", rows)
    return folder / "papers.json"


@pytest.fixture(scope="module")
def small_graph():
    build = runpy.run_path(str(TESTS / "contrib/crag/smallgraph.py"))["build"]
    with serve_graph(build().tables) as url:
        yield url


FAKES, STAND_INS = str(SUPPORT / "fakes.yaml"), str(SUPPORT / "fake_models.yaml")


@pytest.mark.parametrize(
    ("name", "models", "llm"),
    [
        pytest.param("db3-task3", STAND_INS, None, marks=pytest.mark.drill),
        pytest.param(FAKES, None, None, marks=pytest.mark.drill),
        pytest.param("local", STAND_INS, None, marks=pytest.mark.drill),
        pytest.param("weknow", STAND_INS, None, marks=pytest.mark.drill),
        pytest.param("rag-multihop", STAND_INS, "llama-3-8b", marks=pytest.mark.drill),
        ("qasper-documents-fewshot", STAND_INS, None),
    ],
)
def test_slices_give_the_answers_and_the_counts_of_one_piece(
    name, models, llm, request, small_graph, tmp_path
):
    papers = name.startswith("qasper")
    data = written_papers(tmp_path) if papers else request.getfixturevalue("world")
    graphs = {"qasper-train": str(tmp_path / "pool.jsonl")} if papers else {"crag-mock": small_graph}
    recipe = load_recipe(name, models, CONF, graphs, llm)
    given = recipe, data, "qasper" if papers else "synth"
    whole, counts = answers(*given, tmp_path / "whole", inline)
    assert answers(*given, tmp_path / "slices", through_rows) == (whole, counts)
    assert sum(c.replies.computed + c.scores.computed for _, c in counts.values()) > 0
    assert not any("outcome=''" in q or "outcome='fault'" in q for q in whole)
