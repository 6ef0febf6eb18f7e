"""Rules that the manifests must keep: here those on jobs, on groups of workers and on what
outlives a failure; those on pods are in `k8s_pods`, on networks and metrics in `k8s_network`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml
from k8s_trees import (
    COMPONENT,
    GPU,
    NODE,
    REDIS_OPTIONS,
    Tree,
    Trees,
    at,
    cluster_of,
    clusters,
    containers_of,
    gpu_groups,
    growing,
    kind,
    of_kind,
    rule,
    submitters,
    worker_groups,
)


def _endpoint_workers(trees: Trees) -> int:
    [service] = of_kind(trees, "RayService")
    return sum(g["minReplicas"] for g in cluster_of(service)["workerGroupSpecs"])


@rule(
    at(kind("PodDisruptionBudget"), "spec", "minAvailable", gone=True),
    at(kind("PodDisruptionBudget"), "spec", "minAvailable", to=0),
    at(kind("PodDisruptionBudget"), "spec", "minAvailable", to="50%"),
    at(kind("PodDisruptionBudget"), "spec", "minAvailable", to=99),
    at(kind("PodDisruptionBudget"), "spec", "selector", "matchLabels", COMPONENT, to="batch"),
    at(kind("PodDisruptionBudget"), "spec", "selector", "matchLabels", NODE, to="head"),
    at(kind("PodDisruptionBudget"), "kind", to="ConfigMap"),
)
def a_drain_leaves_the_endpoint_standing_and_ends(trees: Trees) -> Iterator[str]:
    budgets, workers = of_kind(trees, "PodDisruptionBudget"), _endpoint_workers(trees)
    if workers > 1 and not budgets:
        yield "no budget"
    for b in budgets:
        least = b["spec"].get("minAvailable")
        if not isinstance(least, int) or not 1 <= least < workers:
            yield f"minAvailable {least} of {workers}"
        if b["spec"]["selector"] != {"matchLabels": {COMPONENT: "endpoint", NODE: "worker"}}:
            yield "selects other pods"


DAY_S = 86_400


@rule(
    at(kind("RayJob"), "spec", "suspend", to=False),
    at(kind("RayJob"), "spec", "shutdownAfterJobFinishes", to=False),
    at(kind("RayJob"), "spec", "ttlSecondsAfterFinished", gone=True),
    at(kind("RayJob"), "spec", "ttlSecondsAfterFinished", to=600_000),
    at(kind("RayJob"), "spec", "activeDeadlineSeconds", gone=True),
    at(kind("RayJob"), "spec", "activeDeadlineSeconds", to=172_800_000),
    at(kind("RayJob"), "spec", "backoffLimit", to=100),
    at(kind("RayJob"), "spec", "metadata", gone=True),
)
def a_job_waits_to_be_started_and_ends(trees: Trees) -> Iterator[str]:
    for t in of_kind(trees, "RayJob"):
        s = t["spec"]
        ends = s.get("shutdownAfterJobFinishes") and 0 < s.get("ttlSecondsAfterFinished", 0) <= DAY_S
        bounded = 0 < s.get("activeDeadlineSeconds", 0) <= 7 * DAY_S and s.get("backoffLimit", 99) <= 5
        if not (s.get("suspend") and ends and bounded and s.get("metadata")):
            yield t["metadata"]["name"]


@rule(at(kind("CronJob"), "spec", "suspend", gone=True), overlays=("dev",))
def a_small_cluster_sleeps_at_night(trees: Trees) -> Iterator[str]:
    yield from (t["metadata"]["name"] for t in of_kind(trees, "CronJob") if not t["spec"].get("suspend"))


@rule(
    at(kind("CronJob"), "spec", "concurrencyPolicy", to="Allow"),
    at(kind("CronJob"), "spec", "startingDeadlineSeconds", gone=True),
    at(kind("CronJob"), "spec", "startingDeadlineSeconds", to=100_000),
    at(kind("CronJob"), "spec", "schedule", to="* * * * *"),
    at(kind("CronJob"), "spec", "jobTemplate", "spec", "activeDeadlineSeconds", gone=True),
    at(kind("CronJob"), "spec", "jobTemplate", "spec", "activeDeadlineSeconds", to=100_000),
    at(kind("CronJob"), "spec", "jobTemplate", "spec", "backoffLimit", to=6),
    at(submitters, "spec", "restartPolicy", to="Always"),
)
def a_night_has_one_run(trees: Trees) -> Iterator[str]:
    for t in of_kind(trees, "CronJob"):
        s, job = t["spec"], t["spec"]["jobTemplate"]["spec"]
        late = 0 < s.get("startingDeadlineSeconds", 0) < DAY_S
        if s.get("concurrencyPolicy") != "Forbid" or not late:
            yield t["metadata"]["name"]
        if not re.fullmatch(r"\d+ \d+ \* \* \*", s["schedule"]):
            yield s["schedule"]
        if not 0 < job.get("activeDeadlineSeconds", 0) < DAY_S or job.get("backoffLimit") != 0:
            yield t["metadata"]["name"]
    yield from (str(p["metadata"]) for p in submitters(trees) if p["spec"]["restartPolicy"] != "Never")


@rule(
    at(growing, "autoscalerOptions", "version", to="v1"),
    at(growing, "autoscalerOptions", "idleTimeoutSeconds", to=5),
    at(growing, "headGroupSpec", "template", "spec", "restartPolicy", gone=True),
    at(
        lambda ts: [g for c in growing(ts) for g in c["workerGroupSpecs"]],
        "template",
        "spec",
        "restartPolicy",
        to="Always",
    ),
    at(worker_groups, "maxReplicas", to=-1),
    at(worker_groups, "maxReplicas", to=1000),
    at(worker_groups, "replicas", to=3000),
    at(worker_groups, "minReplicas", to=1000),
    at(kind("RayCluster"), "spec", "enableInTreeAutoscaling", to=False),
)
def what_grows_has_bounds(trees: Trees) -> Iterator[str]:
    for g in worker_groups(trees):
        if not 0 <= g["minReplicas"] == g["replicas"] <= g["maxReplicas"] or not 1 <= g["maxReplicas"] <= 64:
            yield f"{g['groupName']}: {g['minReplicas']} {g['replicas']} {g['maxReplicas']}"
    for c in clusters(trees):
        if not c.get("enableInTreeAutoscaling"):
            uneven = [g for g in c["workerGroupSpecs"] if g["minReplicas"] != g["maxReplicas"]]
            yield from (f"{g['groupName']}: nothing scales it" for g in uneven)
    for c in growing(trees):
        o = c["autoscalerOptions"]
        templates = [c["headGroupSpec"]["template"], *(g["template"] for g in c["workerGroupSpecs"])]
        if o.get("version") != "v2" or not 60 <= o.get("idleTimeoutSeconds", 0) <= 3600:
            yield "autoscalerOptions"
        yield from ("restartPolicy" for t in templates if t["spec"].get("restartPolicy") != "Never")
    for t in of_kind(trees, "RayCluster"):
        if not t["spec"].get("enableInTreeAutoscaling"):
            yield "the standing cluster does not grow"


TOLERATES = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}


@rule(
    at(gpu_groups, "template", "spec", "tolerations", gone=True),
    at(gpu_groups, "template", "spec", "tolerations", 0, "effect", to="NoExecute"),
    at(gpu_groups, "template", "spec", "tolerations", 0, "operator", to="Equal"),
    at(gpu_groups, "groupName", to="workers"),
    at(gpu_groups, "template", "spec", "containers", 0, "resources", "requests", GPU, to="2"),
    at(gpu_groups, "template", "spec", "containers", 0, "image", to="raypipe:0.1.0-ray2.60.0"),
    at(kind("RayCluster"), "spec", "workerGroupSpecs", to=[]),
    overlays=("gpu",),
)
def gpus_are_held_by_groups_of_their_own(trees: Trees) -> Iterator[str]:
    for tree in of_kind(trees, "RayCluster", "RayJob", "RayService"):
        groups = gpu_groups([tree])
        if not groups:
            yield f"{tree['metadata']['name']}: no GPU"
        for g in groups:
            c = containers_of(g)[0]
            if c["resources"]["requests"].get(GPU) != c["resources"]["limits"][GPU]:
                yield "requests and limits differ"
            if not c["image"].endswith("-gpu") or g["groupName"] != "gpus":
                yield f"{g['groupName']}: {c['image']}"
            if g["template"]["spec"].get("tolerations") != [TOLERATES]:
                yield "no toleration"


STATE = {
    "redisAddress": "redis.redis.svc:6379",
    "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "raypipe-redis", "key": "password"}}},
}


SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {COMPONENT: "endpoint", NODE: "worker"}},
}


def _serving(trees: Trees) -> list[Tree]:
    return [cluster_of(t) for t in of_kind(trees, "RayService")]


@rule(
    at(_serving, "gcsFaultToleranceOptions", gone=True),
    at(kind("RayCluster"), "spec", "gcsFaultToleranceOptions", gone=True),
    at(
        lambda ts: [cluster_of(t) for t in of_kind(ts, "RayCluster", "RayService")],
        REDIS_OPTIONS,
        "redisAddress",
        to="redis:6379",
    ),
    at(
        lambda ts: [cluster_of(t) for t in of_kind(ts, "RayCluster", "RayService")],
        REDIS_OPTIONS,
        "redisPassword",
        "valueFrom",
        "secretKeyRef",
        "name",
        to="raypipe-env",
    ),
    at(_serving, "workerGroupSpecs", 0, "minReplicas", to=2),
    at(_serving, "workerGroupSpecs", 0, "template", "spec", "topologySpreadConstraints", gone=True),
    at(
        _serving,
        "workerGroupSpecs",
        0,
        "template",
        "spec",
        "topologySpreadConstraints",
        0,
        "whenUnsatisfiable",
        to="ScheduleAnyway",
    ),
    at(kind("PodDisruptionBudget"), "spec", "minAvailable", to=1),
    at(
        kind("RayService"),
        "spec",
        "serveConfigV2",
        to="applications: [{deployments: [{name: gateway, num_replicas: 1}]}]",
    ),
    overlays=("ha",),
)
def what_is_highly_available_outlives_a_head_and_a_node(trees: Trees) -> Iterator[str]:
    for t in of_kind(trees, "RayCluster", "RayService"):
        if cluster_of(t).get(REDIS_OPTIONS) != STATE:
            yield f"{t['metadata']['name']}: its head's state dies with it"
    for t in of_kind(trees, "RayService"):
        for g in cluster_of(t)["workerGroupSpecs"]:
            if g["minReplicas"] < 3 or g["template"]["spec"].get("topologySpreadConstraints") != [SPREAD]:
                yield f"{g['groupName']}: fewer than three workers, or not on nodes of their own"
        for app in yaml.safe_load(t["spec"]["serveConfigV2"])["applications"]:
            for d in app["deployments"]:
                if d["num_replicas"] < 3 or d.get("max_replicas_per_node") != 1:
                    yield f"{d['name']}: not one on each of three nodes"
    yield from ("PDB" for b in of_kind(trees, "PodDisruptionBudget") if b["spec"].get("minAvailable") != 2)


@rule(
    at(kind("RayService"), "spec", "upgradeStrategy", "type", to="None"),
    at(kind("RayService"), "spec", "excludeHeadPodFromServeSvc", to=False),
)
def an_upgrade_leaves_no_gap(trees: Trees) -> Iterator[str]:
    for t in of_kind(trees, "RayService"):
        if t["spec"].get("upgradeStrategy", {}).get("type") != "NewCluster":
            yield "upgradeStrategy"
        if t["spec"].get("excludeHeadPodFromServeSvc") is not True:
            yield "the head answers"
