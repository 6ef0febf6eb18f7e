"""Parts of work on Ray Data: the cluster file, the check before anything starts, the actor pools, and the
engines that live beside the pool that asks them.

What a part computes and stores is in `work.py`, what an engine is in `engines.py`; here is only where they
run. One pool runs at a time, so a pool may take the whole cluster and none waits for another.
"""

from __future__ import annotations

import base64
import functools
import json
import logging
import math
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
import uuid
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.annotations import RayDeprecationWarning

from raypipe import engines
from raypipe.alarm import Alarm
from raypipe.budget import Budget
from raypipe.errors import ClusterTooSmall, ConfError, RaypipeError
from raypipe.identity import model_identity
from raypipe.models import load
from raypipe.models.engine import Engine
from raypipe.models.load import Room
from raypipe.records import Fault
from raypipe.run import StageCount
from raypipe.step import Model
from raypipe.work import Do, Fill, Lost, Part, PartDone, Verb, with_threads

TRIES = 2  # of a part whose actor dies: Ray's own default is without end. A row alone has one more


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
class Engines:
    """What the engine of each vLLM model of a recipe takes, and the workers beside it."""

    answer: Pool  # in place of pools.answer, since engines take their share of the cluster
    cpus: float = 0.5  # that Ray sets aside for one
    gpus: float = 0.0  # that Ray sets aside for one; a model with tensor_parallel takes that many whole ones
    each: int = 1  # engines of one model, asked in turns
    cache_gib: float = 1.0  # cpu: memory for keys and values
    gpu_share: float = 0.9  # cuda: share of its GPUs' memory
    sequences: int = 128  # replies written at the same time, at most

    def __post_init__(self) -> None:
        if self.each < 1 or self.cpus < 0 or self.gpus < 0:
            raise ValueError("engines: expected each of at least 1, and no negative CPUs or GPUs")

    def place(self, model: Model) -> engines.Place:
        """What Ray sets aside for one engine of a model."""
        return engines.Place(self.cpus, model.tensor_parallel if model.tensor_parallel > 1 else self.gpus)

    def room(self, device: str) -> Room:
        kind: Literal["cpu", "cuda"] = "cuda" if device.startswith("cuda") else "cpu"
        return Room(kind, self.cache_gib, self.gpu_share, self.sequences)


@dataclass(frozen=True, slots=True)
class EndpointAt:
    """An endpoint that speaks the OpenAI chat protocol."""

    url: str  # up to and with /v1
    key_env: str = ""  # the environment variable that has its key; "": it takes none
    dialect: Literal["openai", "vllm"] = "openai"  # vllm: takes every constraint
    concurrency: int = 16  # requests in flight, of one worker
    per_minute: float = math.inf  # requests sent, of one worker
    timeout_s: float = 120.0  # of one try
    tries: int = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """What one row may take outside the child process that pages are parsed in (text/limits.py)."""

    row_s: float = 120.0  # wall time; a part may take as often that as it has rows
    open_s: float = 300.0  # on top, for a worker to load its models

    def __post_init__(self) -> None:
        if self.row_s <= 0 or self.open_s < 0:
            raise ValueError(f"limits: expected row_s above 0 and open_s of at least 0, found {self}")

    def part_s(self, rows: int) -> float:
        return self.open_s + self.row_s * rows


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster file (conf/clusters/*.yaml): where a recipe runs. In no digest."""

    about: str  # one line for people
    engine: Literal["sorted", "flag"]  # how embedders and rerankers are run: kit.LocalKit
    device: str  # cpu, cuda, cuda:0
    sources_per_part: int  # per completion record of the corpus half
    questions_per_part: int  # per completion record of the question half
    pools: Mapping[Literal["parse", "embed", "answer"], Pool]
    engines: Engines | None = None  # None: recipes with vLLM models are refused
    endpoints: Mapping[str, EndpointAt] = field(default_factory=dict)  # by the names that models.yaml uses
    limits: Limits = field(default_factory=Limits)
    faults: Budget = field(default_factory=Budget)  # rows that a run may leave undone

    def __post_init__(self) -> None:
        missing = {"parse", "embed", "answer"} - set(self.pools)
        if missing:
            raise ValueError(f"pools: {', '.join(sorted(missing))} missing; expected parse, embed and answer")
        if self.sources_per_part < 1 or self.questions_per_part < 1:
            raise ValueError("sources_per_part and questions_per_part must be at least 1")


Node: TypeAlias = Mapping[str, float]
"""What one machine of the cluster has: CPU, GPU, and whatever else Ray names."""


def preflight(pools: Mapping[Verb, Pool], nodes: Sequence[Node]) -> None:
    """Raises ClusterTooSmall with numbers if a pool could never start.

    Ray itself would wait for ever without an error, also for an actor that no node can hold, whatever all
    nodes have together.
    """
    for name, pool in pools.items():
        needs = {"CPU": pool.cpus, "GPU": pool.gpus}
        for kind, each in needs.items():
            need, have = pool.actors * each, total(nodes, kind)
            if need > have:
                raise ClusterTooSmall(
                    f"pool {name}: {pool.actors} actors x {each:g} {kind} = {need:g} {kind}, the cluster has "
                    f"{have:g}. Lower pools.{name} in the cluster file, or start a larger cluster"
                )
        room = sum(holds(node, needs) for node in nodes)
        if room < pool.actors:
            raise ClusterTooSmall(
                f"pool {name}: {pool.actors} actors of {_said(needs)} each, and there is room for {room} on "
                f"the nodes: {_listed(nodes)}. An actor is on one node: lower pools.{name} in the cluster "
                "file, or start larger nodes"
            )


def total(nodes: Sequence[Node], kind: str) -> float:
    """What all nodes have of a kind."""
    return sum(node.get(kind, 0.0) for node in nodes)


def holds(node: Node, needs: Mapping[str, float]) -> int:
    """How many actors of these needs fit on an empty node; needs of 0 do not count.

    >>> holds({"CPU": 4.0}, {"CPU": 1.5, "GPU": 0.0}), holds({"CPU": 4.0}, {"CPU": 1.0, "GPU": 0.5})
    (2, 0)
    """
    # Shares as .1 are not exact in binary: ten of them fit one CPU.
    return min(int(node.get(kind, 0.0) / each + 1e-6) for kind, each in needs.items() if each)


def _said(needs: Mapping[str, float]) -> str:
    return " and ".join(f"{each:g} {kind}" for kind, each in needs.items() if each)


def _listed(nodes: Sequence[Node]) -> str:
    sizes = Counter(_said({kind: node.get(kind, 0.0) for kind in ("CPU", "GPU")}) for node in nodes)
    return ", ".join(f"{count} with {size or 'nothing'}" for size, count in sorted(sizes.items()))


@dataclass(frozen=True, slots=True)
class Team:
    """The engines that a job may start, by name. They are the job's own: it ends them."""

    engines: Engines
    device: str
    models: tuple[Model, ...]
    names: Mapping[str, tuple[str, ...]]  # model identity -> names in Ray; known before any is started

    @classmethod
    def of(cls, cluster: Cluster, models: Sequence[Model]) -> Team | None:
        """The team for the vLLM models among these; None if there are none. Raises ConfError for a cluster
        without room for engines, and ModelMissing or ConfError for a model that could not be started."""
        wanted = {model_identity(m): m for m in models if m.loader == "vllm"}
        if not wanted:
            return None
        if (some := cluster.engines) is None:
            name = next(iter(wanted.values())).name
            raise ConfError(
                f"model {name!r} needs an engine, and the cluster file ({cluster.about}) has no `engines`. "
                f"Say there what one may take: conf/clusters/laptop.yaml has an example"
            )
        for model in wanted.values():
            load.engine_setup(model, some.room(cluster.device))
        job = uuid.uuid4().hex  # two jobs at a time have engines of their own: each ends its own
        names = {i: tuple(engines.name_of(f"{job}/{i}", n) for n in range(some.each)) for i in wanted}
        return cls(some, cluster.device, tuple(wanted.values()), names)

    def preflight(self, nodes: Sequence[Node]) -> None:
        """Raises ClusterTooSmall with numbers if the engines and the workers beside them do not fit."""
        pool = self.engines.answer
        places = [self.engines.place(m) for m in self.models for _ in range(self.engines.each)]
        taken = {"CPU": sum(p.cpus for p in places), "GPU": sum(p.gpus for p in places)}
        for kind, each in (("CPU", pool.cpus), ("GPU", pool.gpus)):
            need, have = taken[kind] + pool.actors * each, total(nodes, kind)
            if need > have:
                raise ClusterTooSmall(
                    f"pool engines.answer: {pool.actors} actors x {each:g} {kind} beside {len(places)} "
                    f"engines of {taken[kind]:g} {kind} in all = {need:g} {kind}, the cluster "
                    f"has {have:g}. Lower `engines` in the cluster file, or start a larger cluster"
                )
        needs = [("an engine", {"CPU": p.cpus, "GPU": p.gpus}) for p in places if p.cpus or p.gpus]
        needs.append(("an actor of pool engines.answer", {"CPU": pool.cpus, "GPU": pool.gpus}))
        for who, each_needs in needs:
            if not any(holds(node, each_needs) for node in nodes):
                raise ClusterTooSmall(
                    f"{who} needs {_said(each_needs)} on one node, and no node has that: {_listed(nodes)}. "
                    "Lower `engines` in the cluster file, or start larger nodes"
                )

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Starts all engines, and ends them however the block ends."""
        with ExitStack() as stack:
            for model in self.models:
                setup = load.engine_setup(model, self.engines.room(self.device))
                make = functools.partial(Engine, setup, exit_when_dead=True)
                for name in self.names[model_identity(model)]:
                    stack.callback(engines.start(name, make, self.engines.place(model)).close)
            yield


def connect(address: str) -> None:
    """Joins the Ray at `address` ("local" starts one), unless this process has joined one already."""
    if not ray.is_initialized():
        # Ray's core prints at level E that actors cannot restart without this process; they end with it.
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        # Its progress lines, for ours are in report/, and dead workers, which are tried again or raised.
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
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


class WorkerDied(RaypipeError):
    """A worker died of a part although each of its rows alone is fine: of the machine, or of their sum."""


class _Worker:
    """One actor: opens its work once, then does part after part under a limit."""

    def __init__(self, fill: Fill, limits: Limits) -> None:
        self._fill, self._limits = fill, limits
        self._alarm = Alarm()
        self._do: Do | None = None

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, list[str]]]:
        for name, ids in zip(batch["part"], batch["ids"], strict=True):
            try:
                done = await self.do(Part(str(name), tuple(json.loads(ids))))
            except Exception as e:  # as a value: an exception would count as one more dead worker
                yield {"done": [""], "error": [_packed(e)]}
            else:
                yield {"done": [done.to_json()], "error": [""]}

    async def do(self, part: Part) -> PartDone:
        await self.open()
        assert self._do is not None
        with self._alarm.limit(self._limits.part_s(len(part.ids))):
            return await self._do(part)

    async def open(self) -> None:
        """Ready to work: from here on the time of rows counts. The first row that needs a model loads it."""
        if self._do is None:
            self._do = self._fill.open()


def _packed(e: Exception) -> str:
    """An exception as text. One that cannot be sent becomes a message with its trace."""
    try:
        pickle.loads(data := pickle.dumps(e))
    except Exception:
        data = pickle.dumps(RuntimeError("".join(traceback.format_exception(e))))
    return base64.b64encode(data).decode()


def run_beside(
    team: Team, fill: Fill, parts: Sequence[Part], limits: Limits = Limits()
) -> Iterator[PartDone]:
    """As `run_parts`, with the team's engines up as long as it takes. Without parts nothing is started."""
    if parts:
        with team.at_work():
            yield from run_parts(fill, parts, team.engines.answer, limits)


def run_parts(fill: Fill, parts: Sequence[Part], pool: Pool, limits: Limits = Limits()) -> Iterator[PartDone]:
    """Does every part on a pool of actors and yields what each became, in any order.

    A part whose actor dies is tried again, TRIES times in all. Then each of its rows is tried alone, once:
    one that still takes its worker with it, or more time than a row may take, is lost, and the part is done
    without it. An exception inside a part ends the run: parts that were done before stay done.
    """
    if not parts:
        return
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.max_errored_blocks = -1  # a block is a part: one whose workers died is found missing below
    rows = [{"part": p.name, "ids": json.dumps(p.ids)} for p in parts]
    fill = with_threads(fill, max(1, int(pool.cpus)))  # torch would take cores that other actors use
    with warnings.catch_warnings():
        # There is no other way yet to bound restarts than the arguments that 2.64 will name otherwise.
        warnings.filterwarnings("ignore", category=RayDeprecationWarning)
        pooled = _pooled(fill, rows, pool, limits)
    left = {p.name: p for p in parts}
    for row in pooled.iter_rows():
        if row["error"]:
            raise pickle.loads(base64.b64decode(row["error"]))  # what our own worker packed
        done = PartDone.from_json(row["done"])
        del left[done.name]
        yield done
    for part in left.values():
        yield _row_by_row(fill, part, pool, limits)


def _pooled(fill: Fill, rows: list[dict[str, str]], pool: Pool, limits: Limits) -> ray.data.Dataset:
    """The parts through a pool of actors, lazily: one row for each that is done."""
    return ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Worker,
        fn_constructor_args=(fill, limits),
        batch_size=1,
        compute=ActorPoolStrategy(size=min(pool.actors, len(rows))),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus or None,
        # Restarts without end: a pool whose actors may not restart any more waits for ever.
        ray_remote_args_fn=lambda: {"max_restarts": -1, "max_task_retries": TRIES - 1},
    )


def _row_by_row(fill: Fill, part: Part, pool: Pool, limits: Limits) -> PartDone:
    """A part of which workers died: each row alone, then all that can be done. Raises what a worker raises,
    and WorkerDied."""
    worker = ray.remote(_Worker).options(num_cpus=pool.cpus, num_gpus=pool.gpus or None, max_restarts=0)
    lost: dict[str, Lost] = {}
    asked: dict[str, StageCount] = {}
    actor = worker.remote(fill, limits)
    try:
        for id in part.ids:
            tried = _tried(actor, Part(part.name, (id,), trial=True), limits)
            if isinstance(tried, Fault):
                lost[id] = Lost(tried, TRIES + 1)
                ray.kill(actor)
                actor = worker.remote(fill, limits)
                continue
            for name, count in tried.counts.items():
                asked.setdefault(name, StageCount()).tally.add(count.tally)
        done: PartDone = ray.get(actor.do.remote(replace(part, lost=lost)))
        for name, count in done.counts.items():  # what the trials asked is remembered now, and was asked
            count.tally.add(asked.get(name, StageCount()).tally)
        return done
    except RayTaskError as e:
        raise e.cause if isinstance(e.cause, Exception) else e from e
    except RayActorError as e:
        raise WorkerDied(
            f"part {part.name}: its worker died {TRIES + 1} times, and not of one of its {len(part.ids)} "
            f"rows alone ({len(lost)} are lost). Make sources_per_part or questions_per_part smaller, or "
            f"give a worker more memory. Ray says: {e}"
        ) from e
    finally:
        ray.kill(actor)


def _tried(actor: Any, part: Part, limits: Limits) -> PartDone | Fault:
    """What a row alone comes to; or why it cannot be done: its worker died of it, or it takes too long."""
    ray.get(actor.open.remote())
    start = time.monotonic()
    late = Fault("worker", "timeout", f"expected at most {limits.row_s:g} s, it took more", transient=False)
    try:
        done: PartDone = ray.get(actor.do.remote(part), timeout=limits.part_s(1))
    except GetTimeoutError:
        return late
    except RayActorError:
        if time.monotonic() - start >= limits.part_s(1):  # its own alarm was faster
            return late
        return Fault(
            "worker", "crash", "expected a result, found its worker dead, three times", transient=False
        )
    return done
