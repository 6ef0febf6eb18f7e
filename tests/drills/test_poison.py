"""A row that breaks its worker costs itself and at most three attempts; every other row is done."""

import ctypes
import io
import os
import signal
import sys
import time
from dataclasses import dataclass, field, replace

import pytest
from checkout import ROOT
from reruns import CONF, FAKES, Bench, WorkerKit

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.errors import ConfError, FaultBudgetExceeded, Unavailable
from raypipe.core.progress import Progress
from raypipe.core.records import Source, source_id
from raypipe.evaluation.fault_budget import check, retry, row_faults
from raypipe.runs.cluster.cluster_file import Budget
from raypipe.runs.pipeline.dead_letters import Suspects
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import HandedBack, WorkerConfig, inline
from raypipe.store import Store, put
from raypipe.store.ids import Ids

ROWS = 1000


@dataclass(frozen=True)
class Poisoned:
    """Work on which one row breaks the worker, and a diary of how often it did."""

    task: object
    row: str
    how: str
    diary: str
    worker: WorkerConfig

    async def open(self, kit=None):
        do = await replace(self.task, worker=self.worker).open(kit)

        async def poisoned(part):
            part = part.with_ids(Store.open(self.worker.store))
            if self.row in part.ids and self.row not in part.failed:
                with open(self.diary, "a") as diary:
                    diary.write(f"{len(part.ids)}\n")
                if self.how == "segfault":
                    ctypes.string_at(0)
                elif self.how == "hang":
                    time.sleep(60)
                elif self.how == "memory":
                    os.kill(os.getpid(), signal.SIGKILL)  # what a kernel does that is out of memory
                elif self.how == "wrong setup":
                    raise ConfError("the setup is wrong")
            return await do(part)

        return poisoned


@pytest.fixture
def sources(tmp_path):
    """A pipeline over ROWS short texts, and their ids."""
    store = Store.create(str(tmp_path / "store"))
    made = [Source(source_id("snippet", t), "snippet", t) for t in (f"line {i} of many" for i in range(ROWS))]
    put(store, "sources", arrow.source.table(made))
    recipe = load_recipe(_fakes(tmp_path), None, CONF)
    silent = Progress(io.StringIO(), silent=True)
    place = WorkerConfig(store.uri, "transformers", "cpu", 1)
    return Pipeline(store, recipe, place, TaskSizes(100, 10), inline, silent), [s.id for s in made]


def _fakes(folder):
    (folder / "fakes.yaml").write_text(FAKES)
    return str(folder / "fakes.yaml")


def stored_faults(pipe):
    rows = pipe.store.dataset("faults").to_table().to_pylist()
    return [(r["id"], r["reason"], r["attempts"], r["transient"]) for r in rows]


@pytest.mark.parametrize(
    "how",
    [
        "segfault",
        pytest.param("hang", marks=pytest.mark.drill),
        pytest.param("memory", marks=pytest.mark.drill),
    ],
)
def test_one_row_in_a_thousand_that_kills_stops_or_fills_its_worker_costs_one_row(
    sources, how, tmp_path, local_ray, engine_groups, run_tasks
):
    local_ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers have no tests to import
    pipe, ids = sources
    poison, diary = ids[457], tmp_path / "diary"
    limits = engine_groups.Timeouts(
        row_timeout_s=0.03, open_timeout_s=6.0
    )  # a part of 100 has 9 s, a row alone 6

    def runner(verb, fill, parts):
        pool = engine_groups.Pool(actors=2, cpus=0.5)
        return run_tasks(Poisoned(fill, poison, how, str(diary), fill.worker), parts, pool, limits)

    pipe = replace(pipe, runner=runner)
    pipe.builder.build(pipe.corpus.texts(Ids.of(ids)), _done())
    assert pipe.store.missing(pipe.recipe.texts_table, "source", ids) == [poison]
    reason = {"segfault": "crash", "hang": "timeout", "memory": "crash"}[how]
    assert stored_faults(pipe) == [(poison, reason, 3, False)]
    tries = diary.read_text().split()
    assert len(tries) <= 3 and tries[-1] == "1", "in its part, twice, then alone"
    left = pipe.corpus.missing(pipe.recipe.texts_table, Ids.of(ids))
    assert not left, "and it is not tried by the next run"


@dataclass(frozen=True)
class NoMemory:
    """Work whose workers are killed with whatever they do, as long as a file is there."""

    task: object
    file: str
    worker: WorkerConfig

    async def open(self, kit=None):
        do = await replace(self.task, worker=self.worker).open(kit)

        async def killed(part):
            if os.path.exists(self.file):
                os.kill(os.getpid(), signal.SIGKILL)
            return await do(part)

        return killed


@pytest.mark.drill
def test_rows_each_of_which_ends_its_worker_are_not_to_blame(
    sources, tmp_path, local_ray, engine_groups, run_tasks
):
    local_ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    pipe, ids = sources
    short = tmp_path / "short of memory"
    short.touch()

    def runner(verb, fill, parts):
        work = NoMemory(fill, str(short), fill.worker)
        return run_tasks(work, parts, engine_groups.Pool(actors=1, cpus=0.5))

    pipe = replace(pipe, runner=runner, worker=replace(pipe.worker, wait_s=0.01))
    with pytest.raises(Unavailable, match=r"each of the 2 rows .*no row is blamed.* 3 workers tried"):
        pipe.builder.build(pipe.corpus.texts(Ids.of(ids[:2])), _done())
    short.unlink()
    pipe.builder.build(pipe.corpus.texts(Ids.of(ids[:2])), _done())
    assert pipe.store.missing(pipe.recipe.texts_table, "source", ids[:2]) == [] and stored_faults(pipe) == []


@dataclass(frozen=True)
class OneDevice:
    """Work whose first process in all has a device that fails with its third task."""

    task: object
    folder: str
    worker: WorkerConfig

    async def open(self, kit=None):
        do = await replace(self.task, worker=self.worker).open(kit)
        try:
            os.close(os.open(f"{self.folder}/first", os.O_CREAT | os.O_EXCL))
            left = 2
        except FileExistsError:
            left = 1000

        async def on_a_device(part):
            nonlocal left
            left -= 1
            with open(f"{self.folder}/tasks", "a") as diary:
                diary.write(f"{os.getpid()} {'broken' if left < 0 else 'well'}\n")
            if left < 0:
                return HandedBack(part.name, "CUDA error", "replace", Suspects(), {})
            return await do(part)

        return on_a_device


def test_a_worker_whose_device_fails_is_replaced_and_its_rows_go_to_another(
    sources, tmp_path, local_ray, engine_groups, run_tasks
):
    local_ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    pipe, ids = sources

    def runner(verb, fill, parts):
        work = OneDevice(fill, str(tmp_path), fill.worker)
        return run_tasks(work, parts, engine_groups.Pool(actors=1, cpus=0.5))

    pipe = replace(pipe, runner=runner, worker=replace(pipe.worker, wait_s=0.01))
    pipe.builder.build(pipe.corpus.texts(Ids.of(ids)), _done())
    assert pipe.store.missing(pipe.recipe.texts_table, "source", ids) == [] and stored_faults(pipe) == []
    lines = [line.split() for line in (tmp_path / "tasks").read_text().splitlines()]
    broken = [pid for pid, how in lines if how == "broken"]
    assert len(broken) == 1, "a broken worker computes nothing more"
    assert len({pid for pid, _ in lines}) > 1, "it is replaced"


def _done():
    from raypipe.runs.pipeline.counters import RunCounters

    return RunCounters()


def test_what_a_caller_can_mend_ends_the_run_at_once_with_its_own_type(
    sources, tmp_path, local_ray, engine_groups, run_tasks
):
    local_ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    pipe, ids = sources

    def runner(verb, fill, parts):
        wrong = Poisoned(fill, ids[5], "wrong setup", str(tmp_path / "diary"), fill.worker)
        return run_tasks(wrong, parts, engine_groups.Pool(actors=1, cpus=0.5))

    with pytest.raises(ConfError, match="the setup is wrong"):
        cut = replace(pipe, runner=runner)
        cut.builder.build(cut.corpus.texts(Ids.of(ids)), _done())
    assert (tmp_path / "diary").read_text().split() == ["100"]


def evaluated(bench, pipe):
    """Tallies and letters after an eval."""
    from raypipe.evaluation.golds import questions_of

    bench.run(pipe=pipe, in_vain=True)
    questions = list(questions_of(pipe, None, None))
    lost = row_faults(pipe, questions, {})
    return questions, lost, {t.kind: t for t in lost.counts}


class BrittleKit(WorkerKit):
    """A kit one of whose rerankers raises on one query."""

    def __init__(self, kit, query, broken):
        super().__init__(kit)
        self.query, self.broken = query, broken

    def reranker(self, model):
        async def score(pairs):
            brittle = self.broken["on"] and model.name == "other-reranker"
            if brittle and any(query == self.query for query, _ in pairs):
                raise RuntimeError("cannot read this one")
            return await self._kit.reranker(model)(pairs)

        return score


@dataclass(frozen=True)
class Brittle(WorkerConfig):
    """A worker one of whose rerankers raises on one query."""

    query: str = ""
    broken: dict = field(default_factory=dict)

    def kit(self, index):
        return BrittleKit(WorkerConfig.kit(self, index), self.query, self.broken)


@pytest.mark.drill
@pytest.mark.slow
def test_rows_in_are_rows_done_dead_letters_and_rows_to_do_and_a_retry_does_them(world, tmp_path):
    broken = {"on": True}
    bench = Bench(tmp_path, world)
    pipe = bench.pipeline(FAKES.replace("rerank: {model: overlap-", "rerank: {model: other-"))
    victim, text = (bench.lines()[2][name] for name in ("interaction_id", "query"))
    here = pipe.worker
    worker = Brittle(here.store, here.backend, here.device, here.threads, query=text, broken=broken)
    pipe = replace(pipe, worker=worker)
    questions, lost, kinds = evaluated(bench, pipe)
    assert [(x.kind, x.id, x.step, x.reason) for x in lost.rows] == [
        ("questions", victim, "rerank", "raised")
    ]
    of = kinds["questions"]
    assert (of.rows, of.done, of.failed, of.pending) == (6, 5, 1, 0)
    check(Budget(share=0.2), lost)
    with pytest.raises(FaultBudgetExceeded, match="1 of 6 questions failed, 0 may fail") as over:
        check(Budget(rows=10), lost)
    assert "cannot read this one" in str(over.value) and "--retry-faults" in str(over.value)
    assert FaultBudgetExceeded.exit_code == 6
    broken["on"] = False
    assert evaluated(bench, pipe)[2]["questions"].failed == 1, "a dead letter is not tried again by itself"
    assert retry(pipe, questions) == 1
    _, lost, kinds = evaluated(bench, pipe)
    assert lost.rows == () and kinds["questions"].done == 6


@pytest.mark.drill
def test_too_many_faults_are_exit_code_6_after_everything_else_is_stored(world, tmp_path, capsys, local_ray):
    import json

    from raypipe.api.cli.main import main

    bench = Bench(tmp_path, world)
    lines = bench.lines()
    lines[0]["search_results"][0]["page_result"] = "%PDF-1.4\n1 0 obj"
    laptop = (ROOT / "conf/clusters/laptop.yaml").read_text()
    (tmp_path / "strict.yaml").write_text(laptop.replace("share: 0.005, rows: 10", "share: 0.001, rows: 0"))
    args = ["eval", _fakes(tmp_path), "--data", str(bench.data(lines)), "--store", str(tmp_path / "store")]
    args += ["--out", str(tmp_path / "out")]
    assert main([*args, "--cluster", str(tmp_path / "strict.yaml")]) == 6
    said = capsys.readouterr().err
    assert "sources failed, 0 may fail" in said and "not_html" in said
    predicted = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
    assert len(predicted) == len(lines) and all(json.loads(p)["prediction"] for p in predicted)
    assert main(["inspect", str(tmp_path / "out"), "--faults", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    [letter] = found["faults"]
    assert (letter["kind"], letter["reason"], letter["attempts"]) == ("sources", "not_html", 1)
    assert {r["kind"]: (r["failed"], r["pending"]) for r in found["rows"]} == {
        "sources": (1, 0),
        "questions": (0, 0),
    }
    assert main(args) == 0, "within the budget of the laptop's file"
    assert "planned, 0 computed" in capsys.readouterr().out
    assert main([*args, "--retry-faults"]) == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "out"), "--faults", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["faults"] == found["faults"], (
        "tried again, and it is still no page"
    )
