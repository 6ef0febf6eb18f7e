"""Parts of work on Ray Data: the actor pools, and the engines that live beside the pool that asks them.

What a part computes and stores is in `work.py`, what an engine is in `engines.py`, what fits is said by
`rooms.py` before anything starts. One pool runs at a time, so a pool may take the whole cluster and none
waits for another.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import signal
import sys
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext
from ray.util.annotations import RayDeprecationWarning

from raypipe import engines
from raypipe.cluster_file import Cluster, Engines, Pool
from raypipe.errors import ConfError
from raypipe.identity import model_identity
from raypipe.models import load
from raypipe.models.engine import Engine
from raypipe.rooms import Node, on_paper, preflight_engines
from raypipe.step import Model
from raypipe.work import Fill, Part, PartDone, with_threads

ATTEMPTS = 3  # of one part, when its actor dies: Ray's own default is without end


def startable(cluster: Cluster, models: Sequence[Model]) -> list[Model]:
    """The vLLM models among these, each once. Raises ConfError for a cluster without room for engines, and
    ModelMissing or ConfError for a model that could not be started."""
    wanted = list({model_identity(m): m for m in models if m.loader == "vllm"}.values())
    if not wanted:
        return []
    if (some := cluster.engines) is None:
        raise ConfError(
            f"model {wanted[0].name!r} needs an engine, and the cluster file ({cluster.about}) has no "
            f"`engines`. Say there what one may take: conf/clusters/laptop.yaml has an example"
        )
    for model in wanted:
        load.engine_setup(model, some.room(cluster.device))
    return wanted


def place_of(some: Engines, model: Model) -> engines.Place:
    """What Ray sets aside for one engine of a model."""
    needs = some.needs(model)
    return engines.Place(needs["CPU"], needs["GPU"])


@dataclass(frozen=True, slots=True)
class Team:
    """The engines that a job may start, by name. They are the job's own: it ends them."""

    engines: Engines
    device: str
    models: tuple[Model, ...]
    names: Mapping[str, tuple[str, ...]]  # model identity -> names in Ray; known before any is started
    paper: tuple[Node, ...] = ()  # nodes that an autoscaler may make of the cluster; none: it does not grow

    @classmethod
    def of(cls, cluster: Cluster, models: Sequence[Model]) -> Team | None:
        """The team for the vLLM models among these on a sized cluster; None if there are none. Raises as
        `startable`."""
        wanted = {model_identity(m): m for m in startable(cluster, models)}
        if not wanted or (some := cluster.engines) is None:
            return None
        job = uuid.uuid4().hex  # two jobs at a time have engines of their own: each ends its own
        names = {i: tuple(engines.name_of(f"{job}/{i}", n) for n in range(some.count)) for i in wanted}
        paper = tuple(on_paper(cluster)) if cluster.grows else ()
        return cls(some, cluster.device, tuple(wanted.values()), names, paper)

    def preflight(self, nodes: Sequence[Node]) -> None:
        """Raises ClusterTooSmall with numbers if the engines and the workers beside them do not fit."""
        preflight_engines(self.engines, self.models, self.paper or nodes)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Starts all engines, at the same time, and ends them however the block ends."""
        wanted = [(model, name) for model in self.models for name in self.names[model_identity(model)]]
        places = [place_of(self.engines, model) for model, _ in wanted]
        with engines.reserved(places, self.engines.wait_s) as groups, ExitStack() as stack:
            starting = [
                engines.begin(name, self._make(model), place, group)
                for (model, name), place, group in zip(wanted, places, groups, strict=True)
            ]
            for client in starting:
                stack.callback(client.close)
            for client in starting:
                client.ready()
            yield

    def _make(self, model: Model) -> functools.partial[Engine]:
        setup = load.engine_setup(model, self.engines.room(self.device))
        return functools.partial(Engine, setup, exit_when_dead=True)


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
            with _stderr_without(b"RAY_BACKEND_LOG_LEVEL"):
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            signal.signal(signal.SIGTERM, stop)  # Ray's core puts its own there, which aborts the process


@contextmanager
def _stderr_without(words: bytes) -> Iterator[None]:
    """Holds back what is written to file descriptor 2 till the block ends, then hands it on but for lines
    with these words: Ray's core says from C++ that its log level was set."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            held.seek(0)
            os.write(kept, b"".join(line for line in held if words not in line))
            os.close(kept)


def nodes() -> list[Node]:
    """What each living node of the joined cluster has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


class _Worker:
    """One actor: opens its work once, then does part after part."""

    def __init__(self, fill: Fill) -> None:
        self._do = fill.open()
        context = ray.get_runtime_context()
        gpus = ",".join(context.get_accelerator_ids().get("GPU", []))
        node = f"node {context.get_node_id()[:8]}"  # several may stand on one host
        self._where = f"{node} gpu {gpus}" if gpus else f"{node} process {os.getpid()}"

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, list[str]]]:
        for name, ids in zip(batch["part"], batch["ids"], strict=True):
            done = await self._do(Part(str(name), tuple(json.loads(ids))))
            yield {"done": [replace(done, where=self._where).to_json()]}


def run_beside(team: Team, fill: Fill, parts: Sequence[Part]) -> Iterator[PartDone]:
    """As `run_parts`, with the team's engines up as long as it takes. Without parts nothing is started."""
    if parts:
        with team.at_work():
            yield from run_parts(fill, parts, team.engines.answer)


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
    fill = with_threads(fill, max(1, int(pool.cpus)))  # torch would take cores that other actors use
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
        compute=ActorPoolStrategy(size=min(pool.size, len(rows))),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus or None,
        ray_remote_args_fn=lambda: {"max_restarts": ATTEMPTS - 1, "max_task_retries": ATTEMPTS - 1},
    )
