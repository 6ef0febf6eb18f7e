"""The cluster file (conf/clusters/*.yaml): where a recipe runs. Plain values, checked one by one.

What fits where is in `capacity.py` and `placement.py`, what starts it in `pools.py`. In no digest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from raypipe.core.protocols import Model
from raypipe.models.hosts import KEY_VARIABLES, EngineLimits

FEW = 0.05
"""The share of its rows that a small run may leave undone: one in twenty. Our own choice."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Rows of a kind that a run may leave undone: the greater of `share` and `rows`, but of few rows no
    more than the share `FEW`. And for how many of its rows a step may get no reply, whatever another step
    makes of them. In no digest."""

    share: float = 0.005  # of the rows
    rows: int = 10
    # Of the rows that a step asks a model or a graph about. Our own choice: beyond half, most answers rest on
    # other steps, and the score is theirs.
    step_share: float = 0.5

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and 0 <= self.step_share <= 1) or self.rows < 0:
            raise ValueError("faults: expected share and step_share of 0 to 1, and rows of at least 0")

    def allowed(self, rows: int) -> int:
        """Of this number of rows.

        >>> [Budget().allowed(rows) for rows in (1, 6, 20, 100, 200, 2_706)]
        [0, 0, 1, 5, 10, 13]
        """
        return max(int(self.share * rows), min(self.rows, int(FEW * rows)))


FIT = "fit"  # as many as the cluster has room for

PoolName: TypeAlias = Literal["parse", "embed", "answer"]


@dataclass(frozen=True, slots=True)
class Machines:
    """Some equal machines of a cluster."""

    nodes: int
    cpus: float  # of each
    gpus: float = 0.0  # of each
    gpu_gib: float = 0.0  # memory of one of its GPUs
    usd_per_hour: float | None = None  # of one machine; None: not known

    def __post_init__(self) -> None:
        if self.usd_per_hour is not None and self.usd_per_hour < 0:
            raise ValueError(f"machines: expected usd_per_hour of at least 0, found {self.usd_per_hour:g}")
        if self.nodes < 1 or self.cpus < 0 or self.gpus < 0:
            raise ValueError("machines: expected at least one node, and no negative CPUs or GPUs")
        if (self.gpus > 0) != (self.gpu_gib > 0):
            raise ValueError("machines: gpus and gpu_gib, the memory of one, belong together")


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of equal actors, and what each of them holds."""

    actors: int | Literal["fit"]  # fit: as many as the cluster has room for, engines first
    cpus: float  # per actor; also the threads of its model
    gpus: float = 0.0  # per actor

    def __post_init__(self) -> None:
        if (isinstance(self.actors, int) and self.actors < 1) or self.cpus <= 0 or self.gpus < 0:
            raise ValueError(
                "a pool needs at least one actor, a positive share of a CPU and no negative GPUs"
            )

    @property
    def size(self) -> int:
        """Returns how many actors. Raises ValueError for a pool that is not fitted to a cluster yet."""
        if isinstance(self.actors, str):
            raise ValueError("this pool takes as many actors as fit; capacity.sized says how many")
        return self.actors

    @property
    def needs(self) -> dict[str, float]:
        """Returns what one actor holds, in Ray's words."""
        return {"CPU": self.cpus, "GPU": self.gpus}


@dataclass(frozen=True, slots=True)
class Replicas:
    """Engines of one model whose number changes while a job runs."""

    min: int  # that the job waits for before its first question
    max: int  # that it takes where there is room next to the workers, until another job waits for room

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.max:
            raise ValueError(f"replicas: expected 1 <= min <= max, found {self.min} and {self.max}")


@dataclass(frozen=True, slots=True)
class Engines:
    """Resources of the engines of a recipe's vLLM models, and of the workers next to them."""

    answer: Pool  # in place of pools.answer, since engines take their share of the cluster
    cpus: float = 0.5  # that Ray sets aside for one
    gpus: float = 0.0  # that Ray sets aside for one; a model with tensor_parallel takes that many whole ones
    replicas: int | Literal["fit"] | Replicas = 1  # engines of one model; fit: one for each place
    kv_cache_gib: float = 1.0  # cpu: memory for keys and values
    gpu_memory_utilization: float = 0.9  # cuda: share of its GPUs' memory
    max_num_seqs: int = 128  # replies written at the same time, at most
    batch_invariant: bool = False  # a reply is the same whatever its batch: GPUs of capability 8.0 and up
    engine: Mapping[str, Any] = field(default_factory=dict)  # vLLM's own arguments, which change no reply
    wait_s: float = 120.0  # for room that others hold, or for machines that an autoscaler starts

    def __post_init__(self) -> None:
        if (isinstance(self.replicas, int) and self.replicas < 1) or self.cpus < 0 or self.gpus < 0:
            raise ValueError("engines: expected replicas of at least 1, and no negative CPUs or GPUs")
        if not 0 < self.gpu_memory_utilization <= 1:
            found = f"{self.gpu_memory_utilization:g}"
            raise ValueError(f"engines: gpu_memory_utilization is a share of a GPU's memory, found {found}")

    @property
    def count(self) -> int:
        """Returns how many engines each model has as long as the job runs. Raises ValueError for a file not
        fitted to a cluster yet."""
        if isinstance(self.replicas, str):
            raise ValueError("a model has as many engines as fit; capacity.sized says how many")
        return self.replicas.min if isinstance(self.replicas, Replicas) else self.replicas

    @property
    def most(self) -> int:
        """Returns how many engines each model may have at a time."""
        return self.replicas.max if isinstance(self.replicas, Replicas) else self.count

    def needs(self, model: Model) -> dict[str, float]:
        """Returns what Ray sets aside for one engine of a model."""
        whole = model.tensor_parallel > 1
        return {"CPU": self.cpus, "GPU": float(model.tensor_parallel) if whole else self.gpus}

    def limits(self, device: str) -> EngineLimits:
        kind: Literal["cpu", "cuda"] = "cuda" if device.startswith("cuda") else "cpu"
        return EngineLimits(
            kind,
            self.kv_cache_gib,
            self.gpu_memory_utilization,
            self.max_num_seqs,
            self.batch_invariant,
            self.engine,
        )


@dataclass(frozen=True, slots=True)
class EndpointEntry:
    """An endpoint that speaks the OpenAI chat protocol: one server, or several of one model."""

    url: str  # up to and with /v1; of several servers: with commas between them
    key_env: str = ""  # the environment variable that has its key; "": it takes none
    concurrency: int = 16  # requests in flight at each address, of one worker
    per_minute: float = math.inf  # requests sent to each address, of one worker
    tokens_per_minute: float = math.inf  # of these requests, the longest replies included
    timeout_s: float = 120.0  # of one try
    tries: int = 5
    batch: Literal["", "openai"] = ""  # openai: jobs send chats in files to its batch API, at half the price


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits of time for one row outside the child process that pages are parsed in (text/html.py)."""

    row_timeout_s: float = 120.0  # wall time; a task may take as often that as it has rows
    open_timeout_s: float = 300.0  # on top, for a worker to load its models
    question_timeout_s: float | None = (
        None  # for one question; what is not done by then is omitted, and pending for the next run
    )

    def __post_init__(self) -> None:
        if self.question_timeout_s is not None and self.question_timeout_s <= 0:
            raise ValueError(f"limits: expected question_timeout_s above 0, found {self.question_timeout_s}")
        if self.row_timeout_s <= 0 or self.open_timeout_s < 0:
            raise ValueError(
                f"limits: expected row_timeout_s above 0 and open_timeout_s of at least 0, found {self}"
            )

    def task_timeout_s(self, rows: int) -> float:
        return self.open_timeout_s + self.row_timeout_s * rows


LIMITS = Timeouts()  # unless a file says otherwise


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster file."""

    about: str  # one line for people
    backend: Literal["transformers", "flagembedding"]  # how embedders and rerankers are run: kit.LocalKit
    device: str  # cpu, cuda, cuda:0
    sources_per_task: int  # per completion record of the corpus half, at most: capacity.workers
    questions_per_task: int  # per completion record of the question half, at most
    pools: Mapping[PoolName, Pool]
    machines: tuple[Machines, ...]  # that the file is written for: a plan is made for these
    grows: bool = False  # whether an autoscaler starts machines when work waits, up to these
    engines: Engines | None = None  # None: recipes with vLLM models are refused
    endpoints: Mapping[str, EndpointEntry] = field(default_factory=dict)  # by the names that models.yaml uses
    limits: Timeouts = field(default_factory=Timeouts)
    faults: Budget = field(default_factory=Budget)  # rows that a run may leave undone

    def __post_init__(self) -> None:
        missing = {"parse", "embed", "answer"} - set(self.pools)
        if missing:
            raise ValueError(f"pools: {', '.join(sorted(missing))} missing; expected parse, embed and answer")
        if self.sources_per_task < 1 or self.questions_per_task < 1:
            raise ValueError("sources_per_task and questions_per_task must be at least 1")
        if self.engines and self.engines.batch_invariant and not self.device.startswith("cuda"):
            raise ValueError("engines: batch_invariant needs a GPU of compute capability 8.0, found a CPU")
        if not self.machines:
            raise ValueError("machines: expected the machines that the file is written for, found none")

    @property
    def usd_per_hour(self) -> float | None:
        """Of all machines that the file is written for; None where one of them has no price."""
        prices = [m.nodes * m.usd_per_hour for m in self.machines if m.usd_per_hour is not None]
        return sum(prices) if len(prices) == len(self.machines) else None

    def with_endpoint(self, name: str, url: str, keys: Mapping[str, str]) -> Cluster:
        """The file with the address of an endpoint; limits stay as it says them. `keys`: the environment."""
        key = KEY_VARIABLES[name] if keys.get(KEY_VARIABLES[name]) else ""
        at = replace(self.endpoints.get(name, EndpointEntry(url)), url=url, key_env=key)
        return replace(self, endpoints={**self.endpoints, name: at})

    @property
    def gpu_gib(self) -> float:
        """Memory of the smallest GPU that the file is written for; 0 without GPUs."""
        return min((m.gpu_gib for m in self.machines if m.gpus), default=0.0)
