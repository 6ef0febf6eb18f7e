"""A recipe cut into slices: where, and that rows come out of them as out of one piece."""

import asyncio
import io

import pytest
from checkout import SUPPORT
from reruns import CONF

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.progress import Progress
from raypipe.runs.pipeline.answer_operators import AnswersTask, cut_by_kind, cut_for_gpus
from raypipe.runs.pipeline.blocks import PartRows
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.store import Store


@pytest.mark.parametrize(
    ("name", "on_cpus", "with_gpus"),
    [
        ("local", ["rank", "rerank"], ["rank"]),
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


def answers(world, uri, runner):
    recipe = load_recipe(str(SUPPORT / "fakes.yaml"), None, CONF)
    store = Store.create(str(uri))
    with Progress(io.StringIO(), silent=True) as progress:
        worker = WorkerConfig(store.uri, "transformers", "cpu", 1)
        pipe = Pipeline(store, recipe, worker, TaskSizes(50, 4), runner, progress)
        ids = ingest(store, [world], "synth", progress).questions
        asked = arrow.question.records(store.rows("questions", "id", ids))
        pipe.index(asked)
        done = pipe.answer(asked)
        return list(pipe.answers(asked)), {n: (c.rows, c.calls) for n, c in done.counts.items()}


def test_slices_give_the_answers_and_the_counts_of_one_piece(world, tmp_path):
    whole, counts = answers(world, tmp_path / "whole", inline)
    assert answers(world, tmp_path / "slices", through_rows) == (whole, counts)
    assert any(q.outcome == "answered" for q in whole)
