"""Placement of pools and engines on devices, and the memory that each takes there, with the arithmetic.

Refuses models that are larger than their memory, before anything starts.
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
    """A use of a device's memory."""

    item: str
    gib: float


@dataclass(frozen=True, slots=True)
class Placement:
    """A pool, or the engines of one model, with its device and memory."""

    name: str  # pool parse, engines llama-3-8b, ...
    actors: int
    cpus: float  # of each
    gpus: float  # of each
    device: str  # cpu, or the share of a GPU
    models: tuple[str, ...]
    memory: tuple[MemoryUse, ...]  # of one device, or of one process on a CPU
    available_gib: float | None  # memory that it may take there; None: no limit is known
    note: str = ""

    @property
    def required_gib(self) -> float:
        return sum(h.gib for h in self.memory)

    def arithmetic(self) -> str:
        """Returns the sum in words.

        >>> held = (MemoryUse("a", 1.0), MemoryUse("b", 0.25))
        >>> Placement("x", 1, 1, 1, "1 GPU", (), held, 8.0).arithmetic()
        'a 1.00 + b 0.25 = 1.25 of 8.00 GiB'
        """
        if not self.memory:
            return "-"
        of = f" of {self.available_gib:.2f}" if self.available_gib is not None else ""
        return (
            " + ".join(f"{h.item} {h.gib:.2f}" for h in self.memory) + f" = {self.required_gib:.2f}{of} GiB"
        )


def sharing(cluster: Cluster, asked: Sequence[Model]) -> Cluster:
    """Adapts a cluster file if the workers next to an engine need more of their GPU than the engine leaves.

    Each worker holds all embedders and rerankers of the question half. So fewer workers share a GPU. If not
    even one fits, the engines there take less than `gpu_memory_utilization`.
    """
    engines, own = cluster.engines, _engined(asked)
    if engines is None or not own or not engines.answer.gpus:
        return cluster
    answer, engines_on_one, taken = engines.answer, *_on_one_gpu(engines, own)
    worker = sum(h.gib for h in _held(_encoders(asked))) + ENCODER_GIB
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
    """Returns every pool and engine of a run on a sized cluster. `embedders`: of the corpus half; each worker
    of `embed` holds all of them. `asked`: models that the question half calls. Models without files count by
    their entries, or not at all, and are noted."""
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


def _held(models: Sequence[Model]) -> list[MemoryUse]:
    """Returns the memory that models take in a process. Shared weights count once."""
    sizes = {(m.weights.partition("+maxsim@")[0], m.dtype): (m.name, model_size(m)) for m in models}
    return [MemoryUse(name, size.bytes / GIB) for name, size in sizes.values() if size is not None]


def _on_one_gpu(engines: Engines, own: Sequence[Model]) -> tuple[int, float]:
    """Returns the number of these models' engines that one GPU can have next to workers, and their share of
    the GPU in Ray's count. A whole GPU is not shared."""
    shares = [need for m in own if (need := engines.needs(m)["GPU"]) < 1]
    if not shares or not engines.gpus:
        return 0, 0.0
    count = int(1 / engines.gpus + 1e-6)
    if not isinstance(engines.replicas, str):
        count = min(count, len(shares) * engines.most)
    return count, count * engines.gpus


def _together(pool: Pool, taken: float) -> int:
    """Returns the number of a pool's workers that can share one GPU. `taken`: engines' share of the GPU."""
    return max(1, int((1 - taken) / pool.gpus + 1e-6))


def _pool(
    who: str, pool: Pool, models: Sequence[Model], cluster: Cluster, taken: float = 0.0, share: float = 0.0
) -> Placement:
    """Returns the placement of a pool. `taken`, `share`: engines' share of the actors' GPU in Ray's count,
    and of its memory."""
    absent = [m.name for m in models if m.loader not in WEIGHTLESS | REMOTE and model_size(m) is None]
    held, device = _held(models), "cpu"
    if pool.gpus:
        held.append(MemoryUse("room to compute", ENCODER_GIB))
        together = min(pool.size, _together(pool, taken))
        device = f"{pool.gpus:g} GPU" + (f", {together} on one" if together > 1 else "")
        if together > 1:
            held = [MemoryUse(f"{together} x {h.item}", together * h.gib) for h in held]
    return Placement(
        name=f"pool {who}",
        actors=pool.size,
        cpus=pool.cpus,
        gpus=pool.gpus,
        device=device,
        models=tuple(m.name for m in models),
        memory=tuple(held),
        available_gib=cluster.gpu_gib * (1 - share) if pool.gpus else None,
        note=f"not here, not counted: {', '.join(absent)}" if absent else "",
    )


def _engine(model: Model, engines: Engines, cluster: Cluster) -> Placement:
    needs, size = engines.needs(model), model_size(model)
    ways = model.tensor_parallel
    on_gpu = cluster.device.startswith("cuda")
    has = engines.gpu_memory_utilization * cluster.gpu_gib if on_gpu else None
    held: list[MemoryUse] = []
    note = ""
    if size is None:
        note = f"not here, not counted: {model.name}"
    elif has is not None:
        share = f" / {ways}" if ways > 1 else ""
        held = [
            MemoryUse(f"weights{share}", size.bytes / ways / GIB),
            MemoryUse("graphs and activations", ENGINE_GIB),
        ]
        if context := _context_gib(model, size) / ways:
            held.append(MemoryUse(f"one context of {model.max_model_len}{share}", context))
        free = max(0.0, has - size.bytes / ways / GIB - ENGINE_GIB) * ways
        note = _room(free, _context_gib(model, size), 0)
    else:
        held = [MemoryUse("weights", size.bytes / GIB), MemoryUse("keys and values", engines.kv_cache_gib)]
        note = _room(engines.kv_cache_gib, _context_gib(model, size), 1)
    device = f"{needs['GPU']:g} GPU" if on_gpu else "cpu"
    return Placement(
        f"engines {model.name}",
        engines.most,
        needs["CPU"],
        needs["GPU"],
        device,
        (model.name,),
        tuple(held),
        has,
        note,
    )


def _room(gib: float, context_gib: float, digits: int) -> str:
    if not context_gib:
        return "weights as models.yaml says; its files are not here"
    return f"room for {gib / context_gib:.{digits}f} whole contexts at a time"


def _context_gib(model: Model, size: ModelSize) -> float:
    return size.per_token * model.max_model_len / GIB


def refuse(cluster: Cluster, embedders: Sequence[Model], asked: Sequence[Model]) -> None:
    """Raises ClusterTooSmall with the arithmetic if a model is larger than its memory, and ConfError if the
    device cannot compute a model's dtype."""
    for model in (*embedders, *asked):
        load.require_computable(model, cluster.backend, cluster.device)
    for placed in placement(cluster, embedders, asked):
        if placed.available_gib is not None and placed.required_gib > placed.available_gib:
            cure = (
                ", more of them for one engine (tensor_parallel in models.yaml), a quantised model, a larger "
                "engines.gpu_memory_utilization if the workers next to it leave the room, whole GPUs for "
                "engines (engines.gpus: 1) with a further one for the workers, or a server's model (--llm "
                "URL#MODEL)"
                if placed.name.startswith("engines ")
                else ", or a recipe with fewer or smaller embedders and rerankers"
            )
            raise ClusterTooSmall(
                f"{placed.name} on {placed.device}: {placed.arithmetic()}. Take larger GPUs "
                f"(machines.gpu_gib){cure}"
            )
    engines = cluster.engines
    if engines is None or cluster.device.startswith("cuda"):
        return
    for model in asked:
        size = model_size(model) if model.loader == "vllm" else None
        if size is not None and _context_gib(model, size) > engines.kv_cache_gib:
            raise ClusterTooSmall(
                f"engines {model.name}: one context of {model.max_model_len} tokens x {size.per_token} bytes "
                f"of keys and values = {_context_gib(model, size):.2f} GiB, engines.kv_cache_gib is "
                f"{engines.kv_cache_gib:g}. Raise it, or lower max_model_len in models.yaml"
            )


def pools_of_stages(recipe: Recipe, pools: Collection[str]) -> dict[str, str]:
    """Maps each stage to the pool that does it. `pools`: names of the run's pools (`placement`)."""
    answers = "pool engines.answer" if "pool engines.answer" in pools else "pool answer"
    where: dict[str, str] = {}
    for c in recipe.corpus:
        embeds = table_of(c.step) == "vectors"
        where[c.name] = "pool embed" if embeds else "pool parse"
    return {**where, **{q.name: answers for q in recipe.question}}


def asked_by(recipe: Recipe) -> list[Model]:
    """Returns the models that a recipe's questions call, and the language models of its corpus half."""
    asked = named_by(Model, *(s.step for s in recipe.question))
    return list(dict.fromkeys([*asked, *recipe.writers()]))
