"""Graph of Ray Data that does work on tables: the source `Missing`, operators, and the sink `Parts`.

All settings of the graph's speed are here. A part is the rows of one task, and a block holds one part. A
block passes whole from operator to operator: Ray Data never cuts or joins blocks by size. Operators on CPUs
are tasks. Ray Data fuses neighbours with equal needs into one task. Ray reuses the processes of tasks, so
models stay loaded between graphs (`process.HERE`). An operator with a GPU, or with several blocks per process
(`in_hand`), is a pool of actors.
"""

from __future__ import annotations

import functools
import logging
import math
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa
import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext, Dataset, Datasource, TaskPoolStrategy
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasink, ReadTask, WriteResult
from ray.util.annotations import RayDeprecationWarning

from raypipe.core.protocols import Model
from raypipe.models.kit import LocalKit
from raypipe.runs.cluster.cluster_file import Pool, PoolName
from raypipe.runs.cluster.process import HERE, GraphRun
from raypipe.runs.pipeline.operators import Key, Operate, Operator, Outcome, PartRows, Sink, StagedWork
from raypipe.runs.pipeline.tasks import HandedBack, Share, TableTask, Task, TaskResult, Verb, WorkerConfig

TRIES = 2  # tries of a part whose worker dies; Ray's default has no limit. A row alone gets one more try

IN_FLIGHT, CALLS = 4, 2
"""Blocks of one actor with a GPU: one computes, one is fetched or handed on, two wait. Ray's defaults are 2
and 1. Pools have a fixed size: a pool that could shrink did so while the first pages were parsed, and did not
grow again (four fake GPUs, 40 parts of 2 s: one did them all; bench/drills/streamed.py)."""

LIGHT = {"num_cpus": 0}
"""Needs of operators that wait for engines or services; also of reading ids and of storing rows, if these are
not fused with an operator. They compute nothing, and wait for no core that a pool holds."""

INIT_DEATHS = 3  # actors in a row that may die before they are ready: a node may fail while a model loads

LEFT: set[str] = set()  # names of graphs that this driver gave up; `_Leaving` ends the loops of Ray Data
NAME = "raypipe.graph"  # key of a graph's name in Ray Data's context

RETRIES = {"max_retries": TRIES - 1}

Pools: TypeAlias = Mapping[PoolName, Pool]


class Whole:
    """Work whose single operator computes and stores a part. The sink only passes the outcome on."""

    key: ClassVar[Key] = "id"
    in_hand: ClassVar[int] = 0

    def __init__(self, work: TableTask, verb: Verb) -> None:
        self.work, self.name, self.worker = work, verb, work.worker
        self.pool: PoolName = "embed" if verb == "index" else verb

    def operators(self) -> Sequence[Operator]:
        return (self,)

    async def open(self, kit: LocalKit) -> Operate:
        do = await self.work.open(kit)

        async def operate(block: PartRows) -> PartRows:
            done = await do(Task(block.part, block.ids, suspects=block.note.suspects))
            if isinstance(done, HandedBack):
                return block.over(done)
            seconds = sum(share.seconds for share in done.by.values())
            note = block.note.with_share(self.pool, Share(done.counts, seconds, kit.process))
            rows = pa.table({"id": [block.part], "stored": [done.rows], "lost": [done.faults]})
            return PartRows(block.part, note, self.key, rows)

        return operate

    async def open_sink(self, process: str) -> Sink:
        async def store(block: PartRows) -> Outcome:
            if block.note.back is not None:
                return block.note.back
            [row] = block.rows.to_pylist()
            return TaskResult(block.part, block.note.ids, row["stored"], row["lost"], block.note.by)

        return store


class GraphLeft(Exception):
    """Exception that ends Ray Data's loop after the driver has given up the graph."""


class Missing(Datasource):  # type: ignore[misc]  # Ray has no types
    """Source of the first blocks, one per part. A worker reads the ids of the part's rows."""

    def __init__(self, graph: GraphRun, tasks: Sequence[Task], key: Key) -> None:
        super().__init__()
        self._graph, self._tasks, self._key = graph, tasks, key

    def estimate_inmemory_data_size(self) -> int:
        return 0

    def get_read_tasks(self, parallelism: int, *more: Any, **named: Any) -> list[ReadTask]:
        tasks = []
        for task in self._tasks:
            rows = BlockMetadata(num_rows=task.rows, size_bytes=None, exec_stats=None, input_files=None)
            tasks.append(ReadTask(functools.partial(_read, self._graph, task, self._key), rows))
        return tasks


def _read(graph: GraphRun, task: Task, key: Key) -> list[pa.Table]:
    return [HERE.read(graph, task, key)]


class Parts(Datasink[list[str]]):  # type: ignore[misc]
    """Sink that stores each part, its faults, and the record that completes it. The driver commits parts."""

    def __init__(self, graph: GraphRun, work: StagedWork) -> None:
        self._graph, self._work = graph, work
        self.outcomes: list[str] = []  # outcomes of all parts as JSON, after the graph has ended

    def write(self, blocks: Iterable[pa.Table], ctx: Any) -> list[str]:
        return [HERE.store(self._graph, self._work, block) for block in blocks if block.num_rows]

    def on_write_complete(self, write_result: WriteResult[list[str]]) -> None:
        self.outcomes = [text for texts in write_result.write_returns for text in texts or ()]


class _Operating:
    """Callable that runs an operator in a process. Ray Data's statistics show the name of its subclass."""

    def __init__(self, graph: GraphRun, place: int, operator: Operator, worker: WorkerConfig) -> None:
        self._given = graph, place, operator, worker

    def __call__(self, rows: pa.Table) -> pa.Table:
        return HERE.operate(*self._given, rows)


class _Leaving(ExecutionCallback):  # type: ignore[misc]
    """Callback that ends a graph which its driver has given up (`LEFT`)."""

    def on_execution_step(self, executor: Any) -> None:
        if executor._data_context.get_config(NAME) in LEFT:
            raise GraphLeft


def graph_of(graph: GraphRun, work: StagedWork, tasks: Sequence[Task], pools: Pools) -> tuple[Dataset, Parts]:
    """Builds the graph and its sink. Does not start the graph."""
    operators, parts = list(work.operators()), len(tasks)
    first = pools[operators[0].pool]
    apart = first.gpus or operators[0].in_hand
    on = {"compute": TaskPoolStrategy(), **LIGHT} if apart else _tasks(first, parts)
    with warnings.catch_warnings():
        # Only these arguments bound restarts; Ray 2.64 will rename them.
        warnings.filterwarnings("ignore", category=RayDeprecationWarning)
        rows = ray.data.read_datasource(
            Missing(graph, tasks, work.key), override_num_blocks=parts, ray_remote_args=RETRIES, **on
        )
        _settings(rows.context, graph, tasks)
        for place, operator in enumerate(operators):
            rows = _mapped(rows, graph, place, operator, work, pools[operator.pool], tasks)
    rows.set_name("-".join(operator.name for operator in operators))  # in the dashboard
    return rows, Parts(graph, work)


def _not_left(record: logging.LogRecord) -> bool:
    """Returns False while a graph that was given up ends, so that Ray's report of `GraphLeft` is dropped."""
    return not LEFT


def write(rows: Dataset, sink: Parts, work: StagedWork, pools: Pools, parts: int) -> None:
    """Runs a graph to its end."""
    # Silences lines that would interrupt our progress: Ray Data's lines on each graph, its bars, CPUs held by
    # loading processes for a moment, CPUs needed next to GPUs. Making a dataset sets the first level.
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger("ray.data.exceptions").addFilter(_not_left)
    for name in ("_internal.progress", "dataset", "_internal.execution.operators.map_operator"):
        logging.getLogger(f"ray.data.{name}").setLevel(logging.ERROR)
    operator = list(work.operators())[-1]
    last = pools[operator.pool]
    if last.gpus or operator.in_hand:
        at_once = min(IN_FLIGHT * last.size, parts)
        rows.write_datasink(sink, ray_remote_args={**LIGHT, **RETRIES}, concurrency=at_once)
    else:  # fused with the last operator into one task
        args = {"num_cpus": last.cpus, **RETRIES}
        rows.write_datasink(sink, ray_remote_args=args, concurrency=min(last.size, parts))


def _tasks(pool: Pool, parts: int) -> dict[str, Any]:
    return {"num_cpus": pool.cpus, "compute": TaskPoolStrategy(min(pool.size, parts))}


def _mapped(
    rows: Dataset,
    graph: GraphRun,
    place: int,
    operator: Operator,
    work: StagedWork,
    pool: Pool,
    tasks: Sequence[Task],
) -> Dataset:
    worker = replace(work.worker, threads=max(1, int(pool.cpus)))  # else torch takes others' cores
    named = type(operator.name, (_Operating,), {})
    given = graph, place, operator, worker
    whole: dict[str, Any] = {"batch_size": None, "batch_format": "pyarrow"}
    size, calls = min(pool.size, len(tasks)), CALLS
    needs: Mapping[str, Any] = {"num_cpus": pool.cpus, "num_gpus": pool.gpus}
    if operator.in_hand:
        rows_a_part = max(task.rows for task in tasks)
        calls, needs = math.ceil(operator.in_hand / size / rows_a_part), LIGHT
        if calls == 1:  # otherwise a process holds several blocks
            light = {**LIGHT, "compute": TaskPoolStrategy(size)}
            return rows.map_batches(named(*given), **whole, **light, **RETRIES)
    elif not pool.gpus:
        return rows.map_batches(named(*given), **whole, **_tasks(pool, len(tasks)), **RETRIES)
    strategy = ActorPoolStrategy(
        size=size,
        max_tasks_in_flight_per_actor=IN_FLIGHT - CALLS + calls,
        max_concurrent_calls_per_actor=calls,
        enable_true_multi_threading=bool(operator.in_hand),  # else only one call computes at a time
    )
    # With a GPU `map_batches` requires a number of rows; here a batch is a whole part.
    return rows.map_batches_internal(
        named,
        fn_constructor_args=given,
        **whole,
        compute=strategy,
        **needs,
        max_restarts=-1,
        max_task_retries=TRIES - 1,
    )


def _settings(context: DataContext, graph: GraphRun, tasks: Sequence[Task]) -> None:
    """Sets the options of Ray Data that a graph of this kind needs, for this dataset only."""
    context.enable_progress_bars = False  # raypipe prints its own: core.progress
    context.print_on_execution_start = False
    context.issue_detectors_config.detectors = []  # they advise on memory, which a cluster file decides
    context.target_max_block_size = None  # a block is a part: never cut
    # -1: a part whose processes died is dropped, and the driver finds its record missing. 0 would end the
    # graph, and with it the models of all pools. Dead actors are noticed, since their parts have no record.
    context.max_errored_blocks = -1
    context.max_consecutive_actor_init_deaths = INIT_DEATHS
    context.wait_for_min_actors_s = -1  # an autoscaler's nodes may start late
    # A process that exceeds its time for a part ends itself (`process.Alarm`), so a working graph is never
    # still for twice that time. After it, Ray Data reports which operators wait.
    longest = max((task.rows for task in tasks), default=1)
    context.execution_no_progress_timeout_s = 2 * graph.limits.task_timeout_s(longest)
    context.custom_execution_callback_classes = [*context.custom_execution_callback_classes, _Leaving]
    context.set_config(NAME, graph.name)


AHEAD, AHEAD_S = 8, 0.2
"""Processes that load models before the number of parts is known; and seconds for which each is held after
its load, so that no two loads go to one process."""


def load_ahead(config: WorkerConfig, models: Sequence[Model], pool: Pool) -> list[Any]:
    """Makes processes of a CPU pool load models for a later graph. Returns Ray's references to the tasks."""
    config = replace(config, threads=max(1, int(pool.cpus)))
    task = ray.remote(_load).options(num_cpus=pool.cpus, max_retries=0)
    return [task.remote(config, models) for _ in range(min(pool.size, AHEAD))]


def _load(config: WorkerConfig, models: Sequence[Model]) -> None:
    HERE.load(config, models)
    time.sleep(AHEAD_S)
