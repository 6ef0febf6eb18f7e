"""Cluster file (conf/clusters/*.yaml): the machines, pools and engines that run a recipe.

Its values are plain, and each is checked by itself. `capacity.py` and `placement.py` compute what fits on the
machines; `engine_groups.py` starts engines. Part of no digest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

from raypipe.core.protocols import Model
from raypipe.models.hosts import KEY_VARIABLES, EngineLimits

FEW = 0.05
"""Largest share of its rows that a small run may leave undone: one in twenty. Our own choice."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on undone rows: rows that failed or are pending. A run may leave undone the share `share` of its
    rows, or `rows` rows if that is more. In a small run `rows` counts as the share FEW at most. A step may
    get no reply for `step_share` of its rows, even if other steps answer the rows. Part of no digest."""

    share: float = 0.005  # share of the rows
    rows: int = 10
    # Share of the rows for which a step calls a model or a graph. Our own choice: beyond half, most answers
    # come from other steps, and so does the score.
    step_share: float = 0.5

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and 0 <= self.step_share <= 1) or self.rows < 0:
            raise ValueError("faults: expected share and step_share of 0 to 1, and rows of at least 0")

    def allowed(self, rows: int) -> int:
        """Returns how many of `rows` rows may be undone.

        >>> [Budget().allowed(rows) for rows in (1, 6, 20, 100, 200, 2_706)]
        [0, 0, 1, 5, 10, 13]
        """
        return max(int(self.share * rows), min(self.rows, int(FEW * rows)))


FIT = "fit"  # as many as the cluster has room for

PoolName: TypeAlias = Literal["parse", "embed", "answer"]


@dataclass(frozen=True, slots=True)
class Machines:
    """A group of equal machines in a cluster."""

    nodes: int
    cpus: float  # CPUs of each machine
    gpus: float = 0.0  # GPUs of each machine
    gpu_gib: float = 0.0  # memory of one GPU
    usd_per_hour: float | None = None  # price of one machine; None: not known

    def __post_init__(self) -> None:
        if self.usd_per_hour is not None and self.usd_per_hour < 0:
            raise ValueError(f"machines: expected usd_per_hour of at least 0, found {self.usd_per_hour:g}")
        if self.nodes < 1 or self.cpus < 0 or self.gpus < 0:
            raise ValueError("machines: expected at least one node, and no negative CPUs or GPUs")
        if (self.gpus > 0) != (self.gpu_gib > 0):
            raise ValueError("machines: expected both gpus and gpu_gib (memory of one) or neither, found one")


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of equal actors, and the resources of each."""

    actors: int | Literal["fit"]  # fit: as many as nodes have room for; `engines.answer`: next to engines
    cpus: float  # CPUs per actor, and threads of its models
    gpus: float = 0.0  # GPUs per actor

    def __post_init__(self) -> None:
        if (isinstance(self.actors, int) and self.actors < 1) or self.cpus <= 0 or self.gpus < 0:
            raise ValueError("a pool needs at least one actor, a share of a CPU and no negative GPUs")

    @property
    def size(self) -> int:
        """Number of actors. Raises ValueError if the pool is not fitted to a cluster yet."""
        if isinstance(self.actors, str):
            raise ValueError("this pool takes as many actors as fit; capacity.sized says how many")
        return self.actors

    @property
    def needs(self) -> dict[str, float]:
        """Resources of one actor, by Ray's names."""
        return {"CPU": self.cpus, "GPU": self.gpus}


@dataclass(frozen=True, slots=True)
class Replicas:
    """Limits for the number of engines of one model, which changes while a job runs."""

    min: int  # engines that the job waits for before its first question
    max: int  # engines that it may have if the workers keep their room and no other job waits for room

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.max:
            raise ValueError(f"replicas: expected 1 <= min <= max, found {self.min} and {self.max}")


@dataclass(frozen=True, slots=True)
class Engines:
    """Resources of the engines of a recipe's vLLM models, and of the workers next to them."""

    answer: Pool  # replaces pools.answer in a run with engines, which take a share of the cluster
    cpus: float = 0.5  # CPUs that Ray reserves for one engine
    gpus: float = 0.0  # GPUs that Ray reserves for one engine; tensor_parallel N above 1 reserves N instead
    replicas: int | Literal["fit"] | Replicas = 1  # engines per model; fit: as many as there is room for
    kv_cache_gib: float = 1.0  # memory of an engine on CPUs for keys and values
    gpu_memory_utilization: float = 0.9  # share of its GPUs' memory that an engine takes
    max_num_seqs: int = 128  # replies generated at the same time, at most
    batch_invariant: bool = False  # a reply does not depend on its batch; needs GPUs of capability 8.0
    engine: Mapping[str, Any] = field(default_factory=dict)  # vLLM's own arguments; they change no reply
    wait_s: float = 120.0  # time to wait for room that other jobs hold, or for an autoscaler's machines

    def __post_init__(self) -> None:
        if (isinstance(self.replicas, int) and self.replicas < 1) or self.cpus < 0 or self.gpus < 0:
            raise ValueError("engines: expected replicas of at least 1, and no negative CPUs or GPUs")
        if not 0 < self.gpu_memory_utilization <= 1:
            found = f"{self.gpu_memory_utilization:g}"
            raise ValueError(f"engines: gpu_memory_utilization is a share of a GPU's memory, found {found}")

    @property
    def count(self) -> int:
        """Number of engines per model that run for the whole job. Raises ValueError if `replicas` is
        `fit`."""
        if isinstance(self.replicas, str):
            raise ValueError("a model has as many engines as fit; capacity.sized says how many")
        return self.replicas.min if isinstance(self.replicas, Replicas) else self.replicas

    @property
    def most(self) -> int:
        """Largest number of engines per model at a time."""
        return self.replicas.max if isinstance(self.replicas, Replicas) else self.count

    def needs(self, model: Model) -> dict[str, float]:
        """Returns the resources that Ray reserves for one engine of a model."""
        whole = model.tensor_parallel > 1
        return {"CPU": self.cpus, "GPU": float(model.tensor_parallel) if whole else self.gpus}

    def limits(self, device: str) -> EngineLimits:
        kind: Literal["cpu", "cuda"] = "cuda" if device.startswith("cuda") else "cpu"
        memory = self.kv_cache_gib, self.gpu_memory_utilization
        return EngineLimits(kind, *memory, self.max_num_seqs, self.batch_invariant, self.engine)


@dataclass(frozen=True, slots=True)
class EndpointEntry:
    """An endpoint with the OpenAI chat protocol: one server, or several servers of one model."""

    url: str  # up to and including /v1; addresses of several servers are separated by commas
    key_env: str = ""  # environment variable with the endpoint's key; "": it needs none
    concurrency: int = 16  # requests in flight, per address and worker
    per_minute: float = math.inf  # requests sent, per address and worker
    tokens_per_minute: float = math.inf  # tokens of these requests, with the longest possible replies
    timeout_s: float = 120.0  # time of one try
    tries: int = 5
    batch: Literal["", "openai"] = ""  # openai: jobs send chats as files to its batch API, at half the price


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits for a row. The child process that parses pages has further limits (text/page_parser.py)."""

    row_timeout_s: float = 120.0  # wall time; a task gets this time for each of its rows
    open_timeout_s: float = 300.0  # added to a task, for its worker to load models
    # Limit of a question. Its unfinished stages are then omitted, and it is pending. None: no limit.
    question_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.question_timeout_s is not None and self.question_timeout_s <= 0:
            raise ValueError(f"limits: expected question_timeout_s above 0, found {self.question_timeout_s}")
        if self.row_timeout_s <= 0 or self.open_timeout_s < 0:
            expected = "row_timeout_s above 0 and open_timeout_s of at least 0"
            raise ValueError(f"limits: expected {expected}, found {self}")

    def task_timeout_s(self, rows: int) -> float:
        return self.open_timeout_s + self.row_timeout_s * rows


LIMITS = Timeouts()  # defaults


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster file."""

    about: str  # one line for people
    backend: Literal["transformers", "flagembedding"]  # library of embedders and rerankers: kit.LocalKit
    device: str  # cpu, cuda, cuda:0
    sources_per_task: int  # most sources of a task; a killed task loses its work
    questions_per_task: int  # most questions of a task
    pools: Mapping[PoolName, Pool]
    machines: tuple[Machines, ...]  # machines of the cluster; plans assume them
    grows: bool = False  # True: an autoscaler starts machines when work waits, up to these
    engines: Engines | None = None  # None: recipes with vLLM models are refused
    endpoints: Mapping[str, EndpointEntry] = field(default_factory=dict)  # name in models.yaml -> endpoint
    limits: Timeouts = field(default_factory=Timeouts)
    faults: Budget = field(default_factory=Budget)  # limits of undone rows

    def __post_init__(self) -> None:
        if missing := {*get_args(PoolName)} - {*self.pools}:
            raise ValueError(f"pools: {', '.join(sorted(missing))} missing; expected parse, embed and answer")
        if self.sources_per_task < 1 or self.questions_per_task < 1:
            raise ValueError("sources_per_task and questions_per_task must be at least 1")
        if self.engines and self.engines.batch_invariant and not self.device.startswith("cuda"):
            raise ValueError("engines: batch_invariant needs a GPU of compute capability 8.0, found a CPU")
        if not self.machines:
            raise ValueError("machines: expected the machines that the file is written for, found none")

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all machines of the file; None if one of them has no price."""
        prices = [m.nodes * m.usd_per_hour for m in self.machines if m.usd_per_hour is not None]
        return sum(prices) if len(prices) == len(self.machines) else None

    def with_endpoint(self, name: str, url: str, keys: Mapping[str, str]) -> Cluster:
        """Returns the file with endpoint `name` at `url`. `keys` are environment variables. If one is the
        endpoint's key, the endpoint uses it."""
        key = KEY_VARIABLES[name] if keys.get(KEY_VARIABLES[name]) else ""
        at = replace(self.endpoints.get(name, EndpointEntry(url)), url=url, key_env=key)
        return replace(self, endpoints={**self.endpoints, name: at})

    @property
    def gpu_gib(self) -> float:
        """Memory of the smallest GPU of the file; 0 without GPUs."""
        return min((m.gpu_gib for m in self.machines if m.gpus), default=0.0)
