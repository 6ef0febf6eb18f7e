"""Trouble of a store or a device is nobody's dead letter, and a row's own trouble is its own.

Each with a second, well run: nothing is missing then, and nothing failed for good that was not broken itself.
"""

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from no_memory import parsers_killed
from reruns import FAKES, Bench, WorkerKit

from raypipe.core.errors import FaultBudgetExceeded, OutOfMemory, Unavailable, WorkerBroken
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.fault_budget import check, row_faults
from raypipe.evaluation.golds import questions_of
from raypipe.evaluation.options import EvalOptions
from raypipe.models.device import computing, loading
from raypipe.runs.cluster.cluster_file import Budget
from raypipe.runs.pipeline.counters import RunCounters
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.store.ids import Ids

pytestmark = pytest.mark.slow


def drill(*values):
    return pytest.param(*values, marks=pytest.mark.drill)


OTHER = FAKES.replace("rerank: {model: overlap-", "rerank: {model: other-")


@dataclass
class Plan:
    """What the reranker named `other-reranker` does, in all processes' place: this one."""

    fails: object  # queries -> an error or None
    sent: list = field(default_factory=list)  # pairs of each call


class PlannedKit(WorkerKit):
    def __init__(self, kit, plan):
        super().__init__(kit)
        self.plan = plan

    def reranker(self, model):
        real = self._kit.reranker(model)

        async def score(pairs):
            if model.name == "other-reranker":
                self.plan.sent.append(list(pairs))
                if error := self.plan.fails({query for query, _ in pairs}):
                    raise error
            return await real(pairs)

        return score


@dataclass(frozen=True)
class Planned(WorkerConfig):
    plan: object = None

    def kit(self, index):
        return PlannedKit(WorkerConfig.kit(self, index), self.plan)


def piped(bench, plan, text=OTHER):
    pipe = bench.pipeline(text)
    here = pipe.worker
    worker = Planned(here.store, here.backend, here.device, here.threads, wait_s=0.01, plan=plan)
    return replace(pipe, worker=worker)


def queries(bench):
    return [line["query"] for line in bench.lines()]


def undone(pipe):
    """The rows that are not done, and what became of the questions."""
    lost = row_faults(pipe, list(questions_of(pipe, None, None)), {})
    return lost, {c.kind: (c.done, c.failed, c.pending) for c in lost.counts}["questions"]


def answers(pipe):
    rows = pipe.store.dataset("answers").to_table(filter=f"recipe = X'{pipe.recipe.digest()}'").to_pylist()
    return sorted(json.dumps(r, default=str, sort_keys=True) for r in rows)


@pytest.fixture(scope="module")
def undisturbed(world, tmp_path_factory):
    """The answers of a run that nothing disturbs."""
    whole = Bench(tmp_path_factory.mktemp("whole"), world)
    whole.run(OTHER)
    return answers(whole.pipeline(OTHER))


CUDA = RuntimeError("CUDA error: uncorrectable ECC error encountered")


@pytest.mark.drill
@pytest.mark.parametrize(
    "error", [CUDA, drill(OSError("away")), drill(ConnectionError("refused")), drill(OutOfMemory("no room"))]
)
def test_rows_that_all_fail_alike_stop_the_run_and_the_next_one_does_them(bench, undisturbed, error):
    plan = Plan(lambda some: error)
    pipe = piped(bench, plan)
    with pytest.raises(Unavailable, match=r"all \d rows of a task fail.* 3 workers tried"):
        bench.run(pipe=pipe)
    assert undone(pipe) == (replace(undone(pipe)[0], rows=()), (0, 0, 6))
    plan.fails = lambda some: None
    bench.run(pipe=pipe, in_vain=True)
    assert undone(pipe)[0].rows == () and answers(pipe) == undisturbed


def test_a_device_that_fails_half_way_costs_its_worker_and_no_row(bench, undisturbed):
    calls = []

    def fails(some):
        calls.append(some)
        return RuntimeError("a word that nobody knows") if 2 <= len(calls) < 9 else None

    pipe = piped(bench, Plan(fails))
    bench.run(pipe=pipe, in_vain=True)
    assert undone(pipe)[0].rows == () and answers(pipe) == undisturbed and len(calls) > 9


@pytest.mark.parametrize(
    ("error", "at"),
    [(TimeoutError, 5), *(drill(e, at) for e in (ConnectionError, AssertionError, OSError) for at in (0, 5))],
)
def test_what_one_row_raises_is_its_own_and_the_others_are_done(bench, error, at):
    victim = queries(bench)[at]
    pipe = piped(bench, Plan(lambda some: error("no such word") if victim in some else None))
    bench.run(pipe=pipe, in_vain=True)
    lost, counts = undone(pipe)
    assert counts == (5, 1, 0)
    [row] = lost.rows
    assert (row.id, row.step, row.reason) == (bench.lines()[at]["interaction_id"], "rerank", "raised")
    assert f"{error.__name__}: no such word" in row.detail


def test_calls_in_vain_are_counted_and_what_came_is_not_sent_again(bench):
    victim = queries(bench)[2]
    plan = Plan(lambda some: ValueError() if victim in some else None)
    counts, _ = bench.run(pipe=piped(bench, plan), in_vain=True)
    _, computed = counts["rerank"]
    assert computed == sum(map(len, plan.sent))
    came = [pair for pairs in plan.sent for pair in pairs if victim not in {query for query, _ in pairs}]
    assert len(came) == len(set(came)), "no pair was scored twice"


def test_a_run_that_stopped_has_its_calls_in_vain_counted_by_the_next_report(bench):
    plan = Plan(lambda some: CUDA)
    pipe = piped(bench, plan)
    with pytest.raises(Unavailable):
        bench.run(pipe=pipe)
    plan.fails = lambda some: None
    done = evaluate(pipe, [bench.world], bench.folder / "again", EvalOptions("crag", rule="official"))
    [line] = [s for s in done.record.steps if s.step == "rerank"]
    assert line.computed == sum(map(len, plan.sent)) and line.computed <= line.planned
    assert {s.rows for s in done.record.steps if s.step in ("dense", "rerank", "decide")} == {6}


@contextmanager
def spoiled(store, table, how):
    """The data files of a table, cut or gone until the block ends."""
    files = sorted((store / f"{table}.lance/data").glob("*.lance"))
    assert files, table
    whole = [f.read_bytes() for f in files]
    for f, content in zip(files, whole, strict=True):
        f.unlink()
        if how == "cut":
            f.write_bytes(content[: len(content) // 2])
    yield
    for f, content in zip(files, whole, strict=True):
        f.write_bytes(content)


@pytest.mark.parametrize(
    ("table", "how", "back"),
    [
        ("vectors", "cut", True),
        ("texts", "gone", False),
        drill("texts", "cut", True),
        drill("passages", "gone", True),
        drill("passages", "cut", False),
        drill("vectors", "gone", True),
        drill("vectors", "cut", False),
        drill("texts", "cut", False),
    ],
)
def test_a_table_file_that_is_cut_or_gone_for_a_moment_is_no_rows_fault(
    bench, undisturbed, tmp_path, table, how, back
):
    left = []

    def runner(verb, work, tasks):
        if verb == "answer" and not left:
            left.append(verb)
            name = {"texts": pipe.recipe.texts_table, "passages": pipe.recipe.passages_table}.get(table)
            name = name or pipe.recipe.vectors_table(pipe.recipe.embedders()[0])
            spoil = spoiled(tmp_path / "store", name, how)
            spoil.__enter__()
            if back:  # it is well again while the worker waits for its next try
                threading.Timer(0.05, spoil.__exit__, (None, None, None)).start()
                yield from inline(verb, work, tasks)
                return
            try:
                yield from inline(verb, work, tasks)
            finally:
                spoil.__exit__(None, None, None)
            return
        yield from inline(verb, work, tasks)

    pipe = replace(piped(bench, Plan(lambda some: None)), runner=runner)
    pipe = replace(pipe, worker=replace(pipe.worker, wait_s=0.2 if back else 0.001))
    if not back:
        with pytest.raises(Unavailable, match="cannot be reached now"):
            bench.run(pipe=pipe)
        assert undone(pipe)[0].rows == ()
    bench.run(pipe=pipe, in_vain=True)
    assert undone(pipe)[0].rows == () and answers(pipe) == undisturbed


@pytest.mark.drill
def test_a_machine_without_memory_for_parsers_loses_no_page(world, tmp_path):
    bench = Bench(tmp_path, world)
    pipe = piped(bench, None, FAKES)
    how = EvalOptions("crag", rule="official")
    with parsers_killed(), pytest.raises(Unavailable, match=r"No row is blamed"):
        evaluate(pipe, [world], tmp_path / "out", how)
    pages = Ids(pipe.store.scan("sources", ["id"], filter="kind != 'name'")["id"].combine_chunks())
    with parsers_killed(), pytest.raises(Unavailable, match=r"No row is blamed.* 3 workers tried"):
        pipe.builder.build(pipe.corpus.texts(pages), RunCounters())
    evaluate(pipe, [world], tmp_path / "out", how)
    assert pipe.store.count("faults") == 0 and pipe.store.count(pipe.recipe.texts_table) == len(pages)


def test_what_torch_says_is_classed_where_it_is_called():
    said = {
        "CUDA error: uncorrectable ECC error encountered": WorkerBroken,
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED": WorkerBroken,
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`": WorkerBroken,
        "NCCL error in: ProcessGroupNCCL.cpp": WorkerBroken,
        "CUDA error: device-side assert triggered": WorkerBroken,
        "CUDA out of memory. Tried to allocate 2.00 GiB": OutOfMemory,
        "[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory": OutOfMemory,
        "The size of tensor a (3) must match the size of tensor b (4)": RuntimeError,
    }
    for text, kind in said.items():
        with pytest.raises(kind) as raised, computing("m", "cuda"):
            raise RuntimeError(text)
        assert type(raised.value) is kind and text in str(raised.value)
    with pytest.raises(OutOfMemory), computing("m", "cpu"):
        np.zeros((1 << 60,), np.float32)
    with pytest.raises(WorkerBroken, match="could not be loaded on cuda:1: OSError"), loading("m", "cuda:1"):
        raise OSError("no such file")


def test_a_run_that_answered_nothing_is_exit_code_6_whatever_is_allowed(bench):
    pipe = piped(bench, Plan(lambda some: None))
    bench.run(pipe=pipe)
    lost, _ = undone(pipe)
    [of] = [c for c in lost.counts if c.kind == "questions"]
    none = replace(of, done=0, failed=6)
    with pytest.raises(FaultBudgetExceeded, match="6 of 6 questions failed"):
        check(Budget(share=1.0, rows=100), replace(lost, counts=(none,)))
    assert [Budget(rows=10).allowed(n) for n in (1, 6, 20, 40, 200, 5000)] == [0, 0, 1, 2, 10, 25]
