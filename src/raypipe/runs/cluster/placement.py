"""Placement of pools and engines on devices, and the memory that each takes there, with the arithmetic.

An engine is an actor with one vLLM model; a pool is a number of equal workers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from raypipe.core.errors import ClusterTooSmall
from raypipe.core.protocols import Model
from raypipe.models import load
from raypipe.models.entry import REMOTE, WEIGHTLESS
from raypipe.models.weight_files import GIB, ModelSize, model_size
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import named_by, table_of
from raypipe.runs.cluster.cluster_file import FIT, Cluster, Engines, Pool

ENGINE_GIB = 2.0
"""GiB of each GPU that an engine takes on top of weights, keys and values: CUDA's context, graphs,
activations. An estimate, not measured here. vLLM measures it at its start, and refuses too small a GPU."""

ENCODER_GIB = 1.5
"""GiB of a GPU that one process with embedders or rerankers takes on top of their weights. An estimate."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """A part of the memory that a pool or an engine takes on a device."""

    item: str  # name of the part, such as weights
    gib: float


@dataclass(frozen=True, slots=True)
class Placement:
    """A pool, or the engines of one model, with its device and memory."""

    name: str  # pool parse, engines llama-3-8b, ...
    actors: int
    cpus: float  # CPUs of each actor
    gpus: float  # GPUs of each actor
    device: str  # cpu, or the share of a GPU
    models: tuple[str, ...]  # names of the models that each actor holds
    memory: tuple[MemoryUse, ...]  # memory used on one GPU, or by one process on a CPU
    available_gib: float | None  # memory that may be used there; None: no limit is known
    note: str = ""  # models without a known size, or room for contexts; "": none

    @property
    def required_gib(self) -> float:
        return sum(h.gib for h in self.memory)

    def arithmetic(self) -> str:
        """Formats the sum of the memory for people.

        >>> held = (MemoryUse("a", 1.0), MemoryUse("b", 0.25))
        >>> Placement("x", 1, 1, 1, "1 GPU", (), held, 8.0).arithmetic()
        'a 1.00 + b 0.25 = 1.25 of 8.00 GiB'
        """
        if not self.memory:
            return "-"
        of = f" of {self.available_gib:.2f}" if self.available_gib is not None else ""
        parts = " + ".join(f"{h.item} {h.gib:.2f}" for h in self.memory)
        return f"{parts} = {self.required_gib:.2f}{of} GiB"


def sharing(cluster: Cluster, asked: Sequence[Model]) -> Cluster:
    """Lowers the number of workers per GPU if engines on the same GPU leave too little memory for the
    workers. Each worker of `engines.answer` holds all embedders and rerankers among `asked`, the models of
    the question steps. If not even one worker fits, `gpu_memory_utilization` is lowered, too. Returns the
    cluster unchanged if it has no engines or its workers have no GPU, and if `asked` has no vLLM model."""
    engines, own = cluster.engines, _engined(asked)
    if engines is None or not own or not engines.answer.gpus:
        return cluster
    answer, engines_on_one, taken = engines.answer, *_on_one_gpu(engines, own)
    worker = sum(h.gib for h in _memory_of(_encoders(asked))) + ENCODER_GIB
    stated = _together(answer, taken)
    share = engines.gpu_memory_utilization
    fit = min(stated, int(cluster.gpu_gib * (1 - share * engines_on_one) / worker))
    if fit == stated:
        return cluster
    if not fit and engines_on_one:
        share = max(0.01, math.floor(100 * (1 - worker / cluster.gpu_gib) / engines_on_one) / 100)
    fit = max(1, fit)
    actors = answer.actors if answer.actors == FIT else math.ceil(answer.size / stated) * fit
    of_gpu = math.floor(1e4 * (1 - taken) / fit + 1e-6) / 1e4  # Ray counts in ten-thousandths
    answer = replace(answer, actors=actors, gpus=of_gpu)
    return replace(cluster, engines=replace(engines, answer=answer, gpu_memory_utilization=share))


def placement(cluster: Cluster, embedders: Sequence[Model], asked: Sequence[Model]) -> list[Placement]:
    """Returns the pools and engines that a run uses. Each `fit` in `cluster` must be a number. `embedders`
    are those of the corpus steps; each worker of pool `embed` holds all of them. `asked` are models that
    question steps call. A model without files counts by its size in models.yaml; without such a size only the
    note names it."""
    own, encoders = _engined(asked), _encoders(asked)
    placed = [_pool("parse", cluster.pools["parse"], (), cluster)]
    if embedders:
        placed.append(_pool("embed", cluster.pools["embed"], embedders, cluster))
    engines = cluster.engines
    if not own or engines is None:
        return [*placed, _pool("answer", cluster.pools["answer"], encoders, cluster)]
    placed += [_engine(m, engines, cluster) for m in own]
    engines_on_one, taken = _on_one_gpu(engines, own)
    share = min(1.0, engines.gpu_memory_utilization * engines_on_one)
    return [*placed, _pool("engines.answer", engines.answer, encoders, cluster, taken, share)]


def _engined(asked: Sequence[Model]) -> list[Model]:
    return list({m.name: m for m in asked if m.loader == "vllm"}.values())


def _encoders(asked: Sequence[Model]) -> list[Model]:
    return list({m.name: m for m in asked if m.kind in ("embedder", "reranker")}.values())


def _memory_of(models: Sequence[Model]) -> list[MemoryUse]:
    """Returns the memory of models in one process. Equal weights count once, unknown sizes do not count."""
    sizes = {(m.weights.partition("+maxsim@")[0], m.dtype): (m.name, model_size(m)) for m in models}
    return [MemoryUse(name, size.bytes / GIB) for name, size in sizes.values() if size is not None]


def _on_one_gpu(engines: Engines, own: Sequence[Model]) -> tuple[int, float]:
    """Returns the number of engines on a GPU that workers use, too, and the share of it that Ray reserves for
    these engines. Returns (0, 0.0) if engines have whole GPUs or none. `own` are the models with engines."""
    shares = [need for m in own if (need := engines.needs(m)["GPU"]) < 1]
    if not shares or not engines.gpus:
        return 0, 0.0
    count = int(1 / engines.gpus + 1e-6)
    if not isinstance(engines.replicas, str):
        count = min(count, len(shares) * engines.most)
    return count, count * engines.gpus


def _together(pool: Pool, taken: float) -> int:
    """Returns the number of workers on one GPU, at least 1. Ray reserves the share `taken` for engines."""
    return max(1, int((1 - taken) / pool.gpus + 1e-6))


def _pool(
    place: str, pool: Pool, models: Sequence[Model], cluster: Cluster, taken: float = 0.0, share: float = 0.0
) -> Placement:
    """Returns the placement of a pool. Engines may share a GPU with the pool's actors: `taken` is the share
    of the GPU that Ray reserves for the engines, `share` is the share of its memory that they take."""
    absent = [m.name for m in models if m.loader not in WEIGHTLESS | REMOTE and model_size(m) is None]
    memory, device = _memory_of(models), "cpu"
    if pool.gpus:
        memory.append(MemoryUse("room to compute", ENCODER_GIB))
        together = min(pool.size, _together(pool, taken))
        device = f"{pool.gpus:g} GPU" + (f", {together} on one" if together > 1 else "")
        if together > 1:
            memory = [MemoryUse(f"{together} x {h.item}", together * h.gib) for h in memory]
    return Placement(
        name=f"pool {place}",
        actors=pool.size,
        cpus=pool.cpus,
        gpus=pool.gpus,
        device=device,
        models=tuple(m.name for m in models),
        memory=tuple(memory),
        available_gib=cluster.gpu_gib * (1 - share) if pool.gpus else None,
        note=f"not here, not counted: {', '.join(absent)}" if absent else "",
    )


def _engine(model: Model, engines: Engines, cluster: Cluster) -> Placement:
    needs, size, gpus_each = engines.needs(model), model_size(model), model.tensor_parallel
    on_gpu = cluster.device.startswith("cuda")
    available_gib = engines.gpu_memory_utilization * cluster.gpu_gib if on_gpu else None
    memory: list[MemoryUse] = []
    if size is None:
        note = f"not here, not counted: {model.name}"
    elif available_gib is not None:
        share = f" / {gpus_each}" if gpus_each > 1 else ""
        weights, context = size.bytes / gpus_each / GIB, _context_gib(model, size)
        memory = [MemoryUse(f"weights{share}", weights), MemoryUse("graphs and activations", ENGINE_GIB)]
        if context:
            memory.append(MemoryUse(f"one context of {model.max_model_len}{share}", context / gpus_each))
        note = _room(max(0.0, available_gib - weights - ENGINE_GIB) * gpus_each, context, 0)
    else:
        memory = [MemoryUse("weights", size.bytes / GIB), MemoryUse("keys and values", engines.kv_cache_gib)]
        note = _room(engines.kv_cache_gib, _context_gib(model, size), 1)
    device = f"{needs['GPU']:g} GPU" if on_gpu else "cpu"
    place = engines.most, needs["CPU"], needs["GPU"], device
    return Placement(f"engines {model.name}", *place, (model.name,), tuple(memory), available_gib, note)


def _room(gib: float, context_gib: float, digits: int) -> str:
    if not context_gib:
        return "weights as models.yaml says; its files are not here"
    return f"room for {gib / context_gib:.{digits}f} whole contexts at a time"


def _context_gib(model: Model, size: ModelSize) -> float:
    return size.per_token * model.max_model_len / GIB


def refuse(cluster: Cluster, embedders: Sequence[Model], asked: Sequence[Model]) -> None:
    """Refuses models that do not fit. Raises ClusterTooSmall with the arithmetic if a pool or an engine needs
    more memory than its GPU has. Raises it also if one context of an engine on CPUs exceeds `kv_cache_gib`.
    Raises ConfError if the device cannot compute a model's dtype."""
    for model in (*embedders, *asked):
        load.require_computable(model, cluster.backend, cluster.device)
    for placed in placement(cluster, embedders, asked):
        if placed.available_gib is not None and placed.required_gib > placed.available_gib:
            cure = "or a recipe with fewer or smaller embedders and rerankers"
            if placed.name.startswith("engines "):
                cure = (
                    "more of them for one engine (tensor_parallel in models.yaml), a quantised model, a "
                    "larger engines.gpu_memory_utilization if the workers next to it leave the room, whole "
                    "GPUs for engines (engines.gpus: 1) with a further one for the workers, or a server's "
                    "model (--llm URL#MODEL)"
                )
            arithmetic = f"{placed.name} on {placed.device}: {placed.arithmetic()}"
            raise ClusterTooSmall(f"{arithmetic}. Take larger GPUs (machines.gpu_gib), {cure}")
    engines = cluster.engines
    if engines is None or cluster.device.startswith("cuda"):
        return
    for model in _engined(asked):
        size = model_size(model)
        if size is not None and (context := _context_gib(model, size)) > engines.kv_cache_gib:
            tokens = f"{model.max_model_len} tokens x {size.per_token} bytes of keys and values"
            arithmetic = f"engines {model.name}: one context of {tokens} = {context:.2f} GiB"
            mend = "Raise it, or lower max_model_len in models.yaml"
            raise ClusterTooSmall(f"{arithmetic}, engines.kv_cache_gib is {engines.kv_cache_gib:g}. {mend}")


def pools_of_stages(recipe: Recipe, pools: Collection[str]) -> dict[str, str]:
    """Maps each stage to the pool of processes that computes it. `pools` has the names of the run's pools and
    engines."""
    answers = "pool engines.answer" if "pool engines.answer" in pools else "pool answer"
    corpus = {c.name: "embed" if table_of(c.step) == "vectors" else "parse" for c in recipe.corpus}
    where = {name: f"pool {pool}" for name, pool in corpus.items()}
    return where | {q.name: answers for q in recipe.question}


def asked_by(recipe: Recipe) -> list[Model]:
    """Returns the models that the question steps name, and the language models that the corpus steps use."""
    return list(dict.fromkeys([*named_by(Model, *(s.step for s in recipe.question)), *recipe.writers()]))
