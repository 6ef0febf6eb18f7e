"""Parts of work on Ray Data: the cluster file, the check before anything starts, and the actor pools.

The only module of the package that imports Ray. What a part computes and stores is in `work.py`; here is only
where it runs. One pool runs at a time, so a pool may take the whole cluster and none waits for another.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext
from ray.util.annotations import RayDeprecationWarning

from raypipe.errors import ClusterTooSmall
from raypipe.work import Fill, Part, PartDone

ATTEMPTS = 3  # of one part, when its actor dies: Ray's own default is without end

Verb = Literal["parse", "embed", "answer"]


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of equal actors, and what each of them holds."""

    actors: int
    cpus: float  # per actor; also the threads of its model
    gpus: float = 0.0  # per actor

    def __post_init__(self) -> None:
        if self.actors < 1 or self.cpus <= 0 or self.gpus < 0:
            raise ValueError(
                "a pool needs at least one actor, a positive share of a CPU and no negative GPUs"
            )


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster file (conf/clusters/*.yaml): where a recipe runs. In no digest."""

    about: str  # one line for people
    engine: Literal["sorted", "flag"]  # how embedders and rerankers are run: kit.LocalKit
    device: str  # cpu, cuda, cuda:0
    sources_per_part: int  # per completion record of the corpus half
    questions_per_part: int  # per completion record of the question half
    pools: Mapping[Literal["parse", "embed", "answer"], Pool]

    def __post_init__(self) -> None:
        missing = {"parse", "embed", "answer"} - set(self.pools)
        if missing:
            raise ValueError(f"pools: {', '.join(sorted(missing))} missing; expected parse, embed and answer")
        if self.sources_per_part < 1 or self.questions_per_part < 1:
            raise ValueError("sources_per_part and questions_per_part must be at least 1")


def preflight(pools: Mapping[Verb, Pool], resources: Mapping[str, float]) -> None:
    """Raises ClusterTooSmall with numbers if a pool could never start.

    Ray itself would wait for ever without an error.
    """
    for name, pool in pools.items():
        for kind, each in (("CPU", pool.cpus), ("GPU", pool.gpus)):
            need, have = pool.actors * each, float(resources.get(kind, 0.0))
            if need > have:
                raise ClusterTooSmall(
                    f"pool {name}: {pool.actors} actors x {each:g} {kind} = {need:g} {kind}, the cluster has "
                    f"{have:g}. Lower pools.{name} in the cluster file, or start a larger cluster"
                )


def connect(address: str) -> None:
    """Joins the Ray at `address` ("local" starts one), unless this process has joined one already."""
    if not ray.is_initialized():
        # Ray's core prints at level E that actors cannot restart without this process; they end with it.
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        logging.getLogger("ray.data").setLevel(logging.ERROR)  # its own progress lines; ours are in report/
        with warnings.catch_warnings():
            # Lance warns of forks. Ray forks to start its processes and executes them at once.
            warnings.filterwarnings("ignore", message="lance is not fork-safe|lancedb fork support")
            stop = signal.getsignal(signal.SIGTERM)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            signal.signal(signal.SIGTERM, stop)  # Ray's core puts its own there, which aborts the process


def resources() -> Mapping[str, float]:
    """What the joined cluster has in all."""
    total: Mapping[str, float] = ray.cluster_resources()
    return total


class _Worker:
    """One actor: opens its work once, then does part after part."""

    def __init__(self, fill: Fill) -> None:
        self._do = fill.open()

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, list[str]]]:
        for name, ids in zip(batch["part"], batch["ids"], strict=True):
            done = await self._do(Part(str(name), tuple(json.loads(ids))))
            yield {"done": [done.to_json()]}


def run_parts(fill: Fill, parts: Sequence[Part], pool: Pool) -> Iterator[PartDone]:
    """Does every part on a pool of actors and yields what each became, in any order.

    A part whose actor dies is tried again, ATTEMPTS times in all. An exception inside a part ends the run:
    parts that were done before stay done.
    """
    if not parts:
        return
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    rows = [{"part": p.name, "ids": json.dumps(p.ids)} for p in parts]
    with warnings.catch_warnings():
        # There is no other way yet to bound restarts than the arguments that 2.64 will name otherwise.
        warnings.filterwarnings("ignore", category=RayDeprecationWarning)
        done = _pooled(fill, rows, pool)
    for row in done.iter_rows():
        yield PartDone.from_json(row["done"])


def _pooled(fill: Fill, rows: list[dict[str, str]], pool: Pool) -> ray.data.Dataset:
    """The parts through a pool of actors, lazily: one row for each that is done."""
    return ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Worker,
        fn_constructor_args=(fill,),
        batch_size=1,
        compute=ActorPoolStrategy(size=min(pool.actors, len(rows))),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus or None,
        ray_remote_args_fn=lambda: {"max_restarts": ATTEMPTS - 1, "max_task_retries": ATTEMPTS - 1},
    )
