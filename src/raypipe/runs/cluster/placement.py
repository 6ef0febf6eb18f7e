"""Which pool and engine runs on which device, and what memory it takes there, with the arithmetic.

Models that are larger than the memory they would get are refused before anything is started.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from raypipe.core.errors import ClusterTooSmall
from raypipe.core.protocols import Model
from raypipe.models.entry import REMOTE, WEIGHTLESS
from raypipe.models.weight_files import GIB, ModelSize, model_size
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import embedder_of, named_by, table_of
from raypipe.runs.cluster.file import Cluster, Engines, Pool

ENGINE_GIB = 2.0
"""GiB that an engine takes of each GPU on top of weights, keys and values: CUDA's context, graphs,
activations. An estimate, not measured here; vLLM measures it itself when it starts, and refuses what is then
too small."""

ENCODER_GIB = 1.5
"""GiB that one process with embedders or rerankers takes of a GPU on top of their weights. An estimate."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """One thing that takes memory of a device."""

    item: str
    gib: float


@dataclass(frozen=True, slots=True)
class Placement:
    """One pool, or the engines of one model, and where it runs."""

    name: str  # pool parse, engines llama-3-8b, ...
    actors: int
    cpus: float  # of each
    gpus: float  # of each
    device: str  # cpu, or which share of a GPU
    models: tuple[str, ...]
    memory: tuple[MemoryUse, ...]  # of one device, or of one process on a CPU
    available_gib: float | None  # memory that it may take there; None: not known
    note: str = ""

    @property
    def required_gib(self) -> float:
        return sum(h.gib for h in self.memory)

    def arithmetic(self) -> str:
        """The sum, in words.

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


def placement(cluster: Cluster, embedders: Sequence[Model], asked: Sequence[Model]) -> list[Placement]:
    """Every pool and every engine of a run on a sized cluster. `embedders`: of the corpus half; `asked`: by
    the question half. Models whose files are not here count as nothing, and are noted."""
    own = list({m.name: m for m in asked if m.loader == "vllm"}.values())
    encoders = list({m.name: m for m in asked if m.kind in ("embedder", "reranker")}.values())
    placed = [_pool("parse", cluster.pools["parse"], (), cluster)]
    placed += [_pool(f"embed {m.name}", cluster.pools["embed"], (m,), cluster) for m in embedders]
    engines = cluster.engines
    if not own or engines is None:
        return [*placed, _pool("answer", cluster.pools["answer"], encoders, cluster)]
    placed += [_engine(m, engines, cluster) for m in own]
    taken = sum(engines.needs(m)["GPU"] for m in own)
    if taken >= 1:  # a whole GPU is not shared
        return [*placed, _pool("engines.answer", engines.answer, encoders, cluster)]
    share = min(1.0, engines.gpu_memory_utilization * len(own))
    return [*placed, _pool("engines.answer", engines.answer, encoders, cluster, taken, share)]


def _pool(
    who: str, pool: Pool, models: Sequence[Model], cluster: Cluster, taken: float = 0.0, share: float = 0.0
) -> Placement:
    """`taken` and `share`: what engines have of the GPU that these actors are on, as Ray counts and of its
    memory."""
    weights = [(m, model_size(m)) for m in models]
    absent = [m.name for m, w in weights if w is None and m.loader not in WEIGHTLESS | REMOTE]
    held = [MemoryUse(m.name, w.bytes / GIB) for m, w in weights if w is not None]
    device = "cpu"
    if pool.gpus:
        held.append(MemoryUse("room to compute", ENCODER_GIB))
        most = max(1, int((1 - taken) / pool.gpus + 1e-6))
        together = min(pool.size, most)
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
            MemoryUse(f"one context of {model.max_model_len}{share}", _context_gib(model, size) / ways),
        ]
        free = has - size.bytes / ways / GIB - ENGINE_GIB
        note = f"room for {max(0.0, free) * ways / _context_gib(model, size):.0f} whole contexts at a time"
    else:
        held = [MemoryUse("weights", size.bytes / GIB), MemoryUse("keys and values", engines.kv_cache_gib)]
        note = f"room for {engines.kv_cache_gib / _context_gib(model, size):.1f} whole contexts at a time"
    device = f"{needs['GPU']:g} GPU" if on_gpu else "cpu"
    return Placement(
        f"engines {model.name}", engines.most, needs["CPU"], needs["GPU"], device, (model.name,),
        tuple(held), has, note,
    )  # fmt: skip


def _context_gib(model: Model, size: ModelSize) -> float:
    return size.per_token * model.max_model_len / GIB


def refuse(cluster: Cluster, embedders: Sequence[Model], asked: Sequence[Model]) -> None:
    """Raises ClusterTooSmall with the arithmetic if a model is larger than the memory that it would get."""
    for placed in placement(cluster, embedders, asked):
        if placed.available_gib is not None and placed.required_gib > placed.available_gib:
            raise ClusterTooSmall(
                f"{placed.name} on {placed.device}: {placed.arithmetic()}. Take larger GPUs "
                "(machines.gpu_gib), more of them for one engine (tensor_parallel in models.yaml), a "
                "quantised model, or a larger engines.gpu_memory_utilization"
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
    """Stage -> the pool that does it, of those with these names (`placement`)."""
    answers = "pool engines.answer" if "pool engines.answer" in pools else "pool answer"
    where: dict[str, str] = {}
    for c in recipe.corpus:
        embeds = table_of(c.step) == "vectors"
        where[c.name] = f"pool embed {embedder_of(c.step).name}" if embeds else "pool parse"
    return {**where, **{q.name: answers for q in recipe.question}}


def asked_by(recipe: Recipe) -> list[Model]:
    """The models that a recipe's questions ask, and the language models that its corpus half does."""
    asked = named_by(Model, *(s.step for s in recipe.question))
    return list(dict.fromkeys([*asked, *recipe.writers()]))
