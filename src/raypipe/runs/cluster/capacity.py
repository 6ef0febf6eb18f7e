"""Capacity of machines: pools and engines against the nodes of a cluster, in CPUs and GPUs.

A pool is a number of equal workers; an engine is an actor with one vLLM model. `sized` replaces each `fit` of
a cluster file by a number. `preflight` refuses pools and engines that could never start. Does not use Ray;
`placement.py` checks memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from raypipe.core.digests import own_identity
from raypipe.core.environment import cores
from raypipe.core.errors import ClusterTooSmall, ConfError
from raypipe.core.protocols import Model
from raypipe.models import load, vllm_terms
from raypipe.runs.cluster.cluster_file import FIT, Cluster, Engines, Pool, PoolName
from raypipe.runs.pipeline.tasks import Verb, Workers

# Least rows of a task; a smaller task wastes time. Storing one takes 15 to 35 ms, or 60 ms for answers. That
# is as long as parsing a dozen pages, and some 4 % of embedding four sources or reranking for one question on
# a CPU. Padding was measured with the 10 real CRAG questions (73 sources, 1,353 chunks of 700 characters). A
# CPU's batches of 1,024 tokens get 3.6 % padding at most. A GPU's batches of 32,768 get 19 % with 8 sources,
# 9 % with 32, 4 % with 128. Reranking 50 passages per question gets 26 % with 2 questions, 9 % with 10, 4 %
# with 50.
LEAST: Mapping[Verb, int] = {"parse": 16, "embed": 4, "answer": 1, "index": 16}
LEAST_ON_GPU: Mapping[Verb, int] = {"parse": 16, "embed": 32, "answer": 10, "index": 32}

Node: TypeAlias = Mapping[str, float]
"""Resources of one machine: CPU, GPU, and any other that Ray names."""


def startable(cluster: Cluster, models: Sequence[Model]) -> list[Model]:
    """Returns the vLLM models among `models`, each once. If there are any, raises ConfError if the cluster
    file has no engines or a wrong engine argument, and ModelMissing or ConfError if a model cannot start."""
    wanted = list({own_identity(m): m for m in models if m.loader == "vllm"}.values())
    if not wanted:
        return []
    file = f"cluster file ({cluster.about})"
    if cluster.engines is None:
        mend = "State there what one may take: conf/clusters/laptop.yaml has an example"
        raise ConfError(f"model {wanted[0].name!r} needs an engine, and the {file} has no `engines`. {mend}")
    vllm_terms.require_arguments(cluster.engines.engine, f"{file}: engines.engine")
    for model in wanted:
        load.require_startable(model)
    return wanted


def workers(cluster: Cluster, verb: Verb, engines: bool) -> Workers:
    """Returns the number of workers for a verb, and the least rows of a task. No `fit` may be left in
    `cluster`. Verb `index` gets the pools `parse` and `embed`. With `engines`, verb `answer` gets
    `engines.answer`, and a task has enough rows to keep the engines full. A task ends with its last reply,
    and an engine with few chats takes as long per step as an engine with many."""
    least = (LEAST_ON_GPU if cluster.device.startswith("cuda") else LEAST)[verb]
    if verb == "index":  # enough tasks to keep all workers busy
        return Workers(sum(cluster.pools[both].size for both in ("parse", "embed")), least)
    if not (engines and verb == "answer" and (some := cluster.engines)):
        return Workers(cluster.pools[verb].size, least)
    count = some.answer.size
    return Workers(count, max(least, math.ceil(some.max_num_seqs * some.most / count)))


def side_by_side(cluster: Cluster, nodes: Sequence[Node]) -> tuple[Pool, Pool] | None:
    """Returns the pools `parse` and `embed` for parsing and embedding at the same time. `embed` keeps its
    workers, which have GPUs. `parse` gets as many as fit next to them. Returns None without GPUs or room."""
    prepare, embed = cluster.pools["parse"], cluster.pools["embed"]
    if not embed.gpus:
        return None
    left: Sequence[Node] = nodes
    for _ in range(embed.size):
        left = without(left, embed.needs)
    room = min(prepare.size, sum(holds(node, prepare.needs) for node in left))
    return (replace(prepare, actors=room), embed) if room else None


def preflight(pools: Mapping[PoolName, Pool], nodes: Sequence[Node]) -> None:
    """Raises ClusterTooSmall with numbers if one of the pools, alone on the nodes, could never start. Ray
    itself would wait without end and without an error, even for an actor that is larger than any node."""
    for name, pool in pools.items():
        _require_room(name, f"pools.{name}", pool, (), nodes)


def preflight_engines(engines: Engines, models: Sequence[Model], nodes: Sequence[Node]) -> None:
    """Raises ClusterTooSmall with numbers if the engines of these models and their workers do not fit."""
    needed = [engines.needs(m) for m in models for _ in range(engines.count)]
    _require_room("engines.answer", "`engines`", engines.answer, needed, nodes)


def _require_room(name: str, field: str, pool: Pool, engines: Sequence[Node], nodes: Sequence[Node]) -> None:
    """Raises ClusterTooSmall if the engines, or the pool next to them, have no room. `field` names the field
    of the cluster file that the message advises to lower. `engines` are the resources of each engine."""
    for kind, each in pool.needs.items():
        taken = sum(n[kind] for n in engines)
        need, have = taken + pool.size * each, sum(node.get(kind, 0.0) for node in nodes)
        if need > have:
            others = f" and {len(engines)} engines of {taken:g} {kind} in all" if engines else ""
            arithmetic = f"{pool.size} actors x {each:g} {kind}{others} = {need:g} {kind}"
            mend = f"Lower {field} in the cluster file, or start a larger cluster"
            raise ClusterTooSmall(f"pool {name}: {arithmetic}, the cluster has {have:g}. {mend}")
    left: Sequence[Node] = nodes
    for needs in (n for n in engines if any(n.values())):
        if not any(holds(node, needs) for node in left):
            needed = f"an engine needs {_needs_text(needs)} on one node"
            why = f"after the engines before it no node has that: {_node_sizes(nodes)}"
            mend = f"Lower {field} in the cluster file, or start larger nodes"
            raise ClusterTooSmall(f"{needed}, and {why}. {mend}")
        left = without(left, needs)
    room = sum(holds(node, pool.needs) for node in left)
    if room < pool.size:
        where = "next to the engines on the nodes" if engines else "on the nodes"
        needed = f"{pool.size} actors of {_needs_text(pool.needs)} each"
        why = f"there is room for {room} {where}: {_node_sizes(nodes)}"
        mend = f"An actor is on one node: lower {field} in the cluster file, or start larger nodes"
        raise ClusterTooSmall(f"pool {name}: {needed}, and {why}. {mend}")


def holds(node: Node, needs: Mapping[str, float]) -> int:
    """Returns the number of actors with these needs that fit on an empty node. Needs of 0 do not count.

    >>> holds({"CPU": 4.0}, {"CPU": 1.5, "GPU": 0.0}), holds({"CPU": 4.0}, {"CPU": 1.0, "GPU": 0.5})
    (2, 0)
    """
    # Shares such as .1 are not exact in binary, but ten of them must fit one CPU.
    return min(int(node.get(kind, 0.0) / each + 1e-6) for kind, each in needs.items() if each)


def _needs_text(needs: Mapping[str, float]) -> str:
    return " and ".join(f"{each:g} {kind}" for kind, each in needs.items() if each)


def _node_sizes(nodes: Sequence[Node]) -> str:
    sizes = Counter(_needs_text({kind: node.get(kind, 0.0) for kind in ("CPU", "GPU")}) for node in nodes)
    return ", ".join(f"{count} with {size or 'nothing'}" for size, count in sorted(sizes.items()))


def without(nodes: Sequence[Node], needs: Mapping[str, float]) -> list[Node]:
    """Places one actor on the node that holds most actors with such `needs`, if one has room. Returns the
    resources that remain free."""
    best = max(range(len(nodes)), key=lambda i: holds(nodes[i], needs), default=None)
    if best is None or not holds(nodes[best], needs):
        return list(nodes)
    taken = {kind: have - needs.get(kind, 0.0) for kind, have in nodes[best].items()}
    return [taken if i == best else node for i, node in enumerate(nodes)]


def declared_nodes(cluster: Cluster) -> list[Node]:
    """Returns the machines that a cluster file is written for, as nodes."""
    return [{"CPU": m.cpus, "GPU": m.gpus} for m in cluster.machines for _ in range(m.nodes)]


def reachable(cluster: Cluster, nodes: Sequence[Node]) -> list[Node]:
    """Returns the present nodes; with an autoscaler, the nodes that it can start."""
    return declared_nodes(cluster) if cluster.grows else list(nodes)


def sized(cluster: Cluster, models: Sequence[Model], nodes: Sequence[Node]) -> Cluster:
    """Replaces each `fit` in a cluster file by the number that the nodes have room for, but by 1 if they have
    none; `preflight` refuses that later. `models` are the models that get engines."""
    pools = {verb: _sized(pool, nodes) for verb, pool in cluster.pools.items()}
    engines = cluster.engines
    if engines is None:
        return replace(cluster, pools=pools)
    fits = engines.replicas == FIT
    each = most_engines(engines, models, nodes) if fits else engines.count
    answer = _sized(engines.answer, _after_engines(engines, models, each, nodes) or nodes)
    engines = replace(engines, replicas=each if fits else engines.replicas, answer=answer)
    return replace(cluster, pools=pools, engines=engines)


def fitting(cluster: Cluster, models: Sequence[Model], nodes: Sequence[Node]) -> Cluster:
    """Replaces each `fit` as `sized` does. Raises ClusterTooSmall if a pool or engine could never start."""
    file = sized(cluster, models, nodes)
    preflight(file.pools, nodes)
    if models and file.engines is not None:
        preflight_engines(file.engines, models, nodes)
    return file


def this_machine() -> Node:
    """Returns the cores that this process may use, and the GPUs that NVIDIA's driver lists."""
    gpus = Path("/proc/driver/nvidia/gpus")
    count = len(list(gpus.iterdir())) if gpus.is_dir() else 0
    return {"CPU": float(cores()), "GPU": float(count)}


def is_here(cluster: Cluster) -> bool:
    """Returns whether rates measured on this machine apply to a cluster file. The file must have one machine,
    no more GPUs than this machine, and no autoscaler."""
    alone = sum(m.nodes for m in cluster.machines) == 1 and not cluster.grows
    return alone and all(m.gpus <= this_machine()["GPU"] for m in cluster.machines)


def most_engines(engines: Engines, models: Sequence[Model], nodes: Sequence[Node]) -> int:
    """Returns the largest number of engines per model that leaves room for the workers, but at least 1.
    Returns 1 also without models, and if Ray reserves nothing for the engines of some model."""
    wanted = 1 if engines.answer.actors == FIT else engines.answer.size
    each = 1
    while models and all(any(engines.needs(m).values()) for m in models):
        left = _after_engines(engines, models, each + 1, nodes)
        if left is None or sum(holds(node, engines.answer.needs) for node in left) < wanted:
            break
        each += 1
    return each


def _after_engines(
    engines: Engines, models: Sequence[Model], each: int, nodes: Sequence[Node]
) -> list[Node] | None:
    """Returns the nodes' free resources after placing `each` engines per model; None if these do not fit."""
    left = list(nodes)
    for needs in [engines.needs(m) for m in models] * each:
        if not any(needs.values()):
            continue
        if not any(holds(node, needs) for node in left):
            return None
        left = without(left, needs)
    return left


def _sized(pool: Pool, nodes: Sequence[Node]) -> Pool:
    room = max(1, sum(holds(node, pool.needs) for node in nodes))
    return replace(pool, actors=room) if pool.actors == FIT else pool
