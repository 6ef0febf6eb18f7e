"""Rendered manifests as trees: what finds things in them, and the form of a rule.

A rule yields what it does not like. Its `breaks` are what a careless edit could do; the tests do each of them
at every place that it fits and expect the rule to notice. Knows Kubernetes' and KubeRay's field names.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Tree = dict[str, Any]
Trees = list[Tree]
Peer = tuple[str, str | tuple[str, str]]  # kind, and a label, a namespace or a range of addresses

PART_OF, COMPONENT = "app.kubernetes.io/part-of", "app.kubernetes.io/component"
GPU = "nvidia.com/gpu"
KEYS = "RAYPIPE_KEYS"
NODE = "ray.io/node-type"  # head or worker: KubeRay sets it
EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
REDIS_OPTIONS = "gcsFaultToleranceOptions"


def of_kind(trees: Trees, *kinds: str) -> Trees:
    return [t for t in trees if t["kind"] in kinds]


def cluster_of(tree: Tree) -> Tree:
    """The RayCluster spec of a manifest that starts one."""
    spec = tree["spec"]
    return spec.get("rayClusterSpec") or spec.get("rayClusterConfig") or spec


def clusters(trees: Trees) -> list[Tree]:
    return [cluster_of(t) for t in of_kind(trees, "RayCluster", "RayJob", "RayService")]


def worker_groups(trees: Trees) -> list[Tree]:
    return [g for c in clusters(trees) for g in c["workerGroupSpecs"]]


def heads(trees: Trees) -> list[Tree]:
    return [c["headGroupSpec"]["template"] for c in clusters(trees)]


def submitters(trees: Trees) -> list[Tree]:
    """Pods that hand a job in and wait."""
    made = [t["spec"]["submitterPodTemplate"] for t in of_kind(trees, "RayJob")]
    return made + [t["spec"]["jobTemplate"]["spec"]["template"] for t in of_kind(trees, "CronJob")]


def submitters_of_nights(trees: Trees) -> list[Tree]:
    """Their containers."""
    made = [t["spec"]["jobTemplate"]["spec"]["template"] for t in of_kind(trees, "CronJob")]
    return [c for p in made for c in p["spec"]["containers"]]


def ray_pods(trees: Trees) -> list[Tree]:
    return heads(trees) + [g["template"] for g in worker_groups(trees)]


def pods(trees: Trees) -> list[Tree]:
    """Every pod template."""
    return ray_pods(trees) + submitters(trees)


def containers(trees: Trees) -> list[Tree]:
    kinds = ("initContainers", "containers")
    return [c for p in pods(trees) for k in kinds for c in p["spec"].get(k, [])]


def growing(trees: Trees) -> list[Tree]:
    return [c for c in clusters(trees) if c.get("enableInTreeAutoscaling")]


def label(pod: Tree, name: str) -> str:
    return str(pod.get("metadata", {}).get("labels", {}).get(name, ""))


def selected(trees: Trees, selector: Tree) -> list[Tree]:
    """The pods that a selector's labels of ours fit; KubeRay sets ray.io's."""
    wanted = {k: v for k, v in selector.get("matchLabels", {}).items() if not k.startswith("ray.io/")}
    return [p for p in pods(trees) if all(label(p, k) == v for k, v in wanted.items())]


Find = Callable[[Trees], list[Tree]]
Break = tuple[Find, Callable[[Tree], Any]]


@dataclass(frozen=True)
class Rule:
    """`broken` yields what is wrong. `overlays`: where it holds; empty: everywhere."""

    broken: Callable[[Trees], Iterator[str]]
    breaks: tuple[Break, ...]
    overlays: tuple[str, ...] = field(default=())

    def flipped(self, trees: Trees) -> Iterator[Trees]:
        """The trees with one thing broken at one place, for each break and each place."""
        for find, change in self.breaks:
            for place in itertools.count():
                mine = copy.deepcopy(trees)
                places = find(mine)
                if place >= len(places):
                    break
                change(places[place])
                yield mine


RULES: dict[str, Rule] = {}


def rule(*breaks: Break, overlays: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    def add(broken: Callable[[Trees], Iterator[str]]) -> Callable[[Trees], Iterator[str]]:
        RULES[broken.__name__] = Rule(broken, breaks, overlays)
        return broken

    return add


def at(find: Find, *path: str | int, to: Any = None, gone: bool = False) -> Break:
    """Sets what lies at a path below each thing found, or takes it away."""

    def change(tree: Tree) -> None:
        inner: Any = tree
        for step in path[:-1]:
            inner = inner[step] if isinstance(inner, list) else inner.setdefault(step, {})
        if gone:
            del inner[path[-1]]
        else:
            inner[path[-1]] = to

    return find, change


def all_trees(trees: Trees) -> list[Tree]:
    return trees


def kind(*kinds: str) -> Find:
    return lambda trees: of_kind(trees, *kinds)


def gpu_groups(trees: Trees) -> list[Tree]:
    return [g for g in worker_groups(trees) if any(GPU in c["resources"]["limits"] for c in containers_of(g))]


def containers_of(group: Tree) -> list[Tree]:
    found: list[Tree] = group["template"]["spec"]["containers"]
    return found


def serving_pods(trees: Trees) -> list[Tree]:
    return ray_pods(of_kind(trees, "RayService"))
