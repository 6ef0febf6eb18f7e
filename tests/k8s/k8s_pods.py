"""What every pod must keep: rules over manifests (`k8s_trees`)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml
from k8s_trees import (
    COMPONENT,
    EVICT,
    KEYS,
    PART_OF,
    Tree,
    Trees,
    all_trees,
    at,
    clusters,
    containers,
    growing,
    heads,
    kind,
    label,
    of_kind,
    pods,
    ray_pods,
    rule,
    serving_pods,
    submitters,
    submitters_of_nights,
    worker_groups,
)

SECRET = re.compile("token|key|secret|password|credential", re.I)
TOKEN = {"mode": "token", "secretName": "raypipe-ray-token"}
KINDS = {
    "Namespace": "v1",
    "ServiceAccount": "v1",
    "PersistentVolumeClaim": "v1",
    "ConfigMap": "v1",
    "CronJob": "batch/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "PodMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "RayCluster": "ray.io/v1",
    "RayJob": "ray.io/v1",
    "RayService": "ray.io/v1",
}
"""The kinds that a manifest may hold. Operators make Secrets, KubeRay makes Deployments."""

SAID = {  # by other manifests, and by docs/operations.md
    "Namespace": ("raypipe",),
    "ServiceAccount": ("raypipe",),
    "RayCluster": ("raypipe-batch",),
    "RayJob": ("raypipe-eval", "raypipe-reprocess"),
    "RayService": ("raypipe",),
}
LONGEST = {"RayJob": 47, "RayService": 47, "RayCluster": 47, "CronJob": 52}  # names made of it fit 63


@rule(
    at(all_trees, "kind", to="Secret"),
    at(all_trees, "kind", to="Deployment"),
    at(all_trees, "apiVersion", to="v1beta1"),
    at(all_trees, "apiVersion", gone=True),
)
def only_kinds_that_are_meant(trees: Trees) -> Iterator[str]:
    yield from (t["kind"] for t in trees if KINDS.get(t["kind"]) != t.get("apiVersion", ""))


@rule(
    at(all_trees, "metadata", "name", to="x" * 64),
    at(kind("RayJob", "RayService", "RayCluster"), "metadata", "name", to="x" * 48),
    at(all_trees, "metadata", "name", to="Eval_1"),
    at(lambda ts: of_kind(ts, *SAID), "metadata", "name", to="other"),
)
def names_are_short_and_plain(trees: Trees) -> Iterator[str]:
    for t in trees:
        name = t["metadata"]["name"]
        if len(name) > LONGEST.get(t["kind"], 63) or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
            yield name
        if t["kind"] in SAID and name not in SAID[t["kind"]]:
            yield name


@rule(
    at(kind("Namespace"), "metadata", "labels", "pod-security.kubernetes.io/enforce", to="baseline"),
    at(lambda ts: [t for t in ts if t["kind"] != "Namespace"], "metadata", "namespace", to="default"),
)
def everything_stands_in_the_restricted_namespace(trees: Trees) -> Iterator[str]:
    for t in trees:
        if t["kind"] == "Namespace":
            if t["metadata"]["labels"].get("pod-security.kubernetes.io/enforce") != "restricted":
                yield t["metadata"]["name"]
        elif t["metadata"].get("namespace") != "raypipe":
            yield t["metadata"]["name"]


@rule(
    at(pods, "spec", "securityContext", "runAsNonRoot", to=False),
    at(pods, "spec", "securityContext", "runAsUser", to=0),
    at(pods, "spec", "securityContext", "runAsGroup", to=0),
    at(pods, "spec", "securityContext", "fsGroup", gone=True),
    at(pods, "spec", "securityContext", "seccompProfile", "type", to="Unconfined"),
    at(pods, "spec", "securityContext", gone=True),
    at(containers, "securityContext", "allowPrivilegeEscalation", to=True),
    at(containers, "securityContext", "capabilities", "drop", to=[]),
    at(containers, "securityContext", "capabilities", "add", to=["SYS_PTRACE"]),
    at(containers, "securityContext", "privileged", to=True),
    at(containers, "securityContext", "runAsUser", to=0),
    at(containers, "securityContext", gone=True),
    at(growing, "autoscalerOptions", "securityContext", gone=True),
    at(growing, "autoscalerOptions", "securityContext", "allowPrivilegeEscalation", to=True),
)
def nobody_is_root(trees: Trees) -> Iterator[str]:
    profile = {"seccompProfile": {"type": "RuntimeDefault"}}
    user = {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, **profile}
    bound = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    yield from (str(p["metadata"]) for p in pods(trees) if p["spec"].get("securityContext") != user)
    yield from (c["name"] for c in containers(trees) if c.get("securityContext") != bound)
    for c in growing(trees):
        if c["autoscalerOptions"].get("securityContext") != {"runAsNonRoot": True, **bound, **profile}:
            yield "the autoscaler"


@rule(
    at(pods, "spec", "hostNetwork", to=True),
    at(pods, "spec", "hostPID", to=True),
    at(pods, "spec", "hostIPC", to=True),
    at(pods, "spec", "volumes", to=[{"name": "x", "hostPath": {"path": "/"}}]),
    at(containers, "ports", to=[{"containerPort": 80, "hostPort": 80}]),
)
def nothing_of_the_host_is_touched(trees: Trees) -> Iterator[str]:
    for pod in pods(trees):
        spec = pod["spec"]
        yield from (k for k in ("hostNetwork", "hostPID", "hostIPC") if spec.get(k))
        yield from (v["name"] for v in spec.get("volumes", []) if "hostPath" in v)
    yield from (c["name"] for c in containers(trees) if any("hostPort" in p for p in c.get("ports", [])))


@rule(
    at(containers, "image", to="raypipe:latest"),
    at(containers, "image", to="raypipe"),
    at(containers, "image", to="rayproject/ray:2.60.0"),
)
def images_are_pinned_and_one(trees: Trees) -> Iterator[str]:
    images = {c["image"] for c in containers(trees)}
    yield from (i for i in images if not re.fullmatch(r"raypipe:\d+\.\d+\.\d+-ray\d+\.\d+\.\d+(-gpu)?", i))
    if len(images) > 1:
        yield f"{len(images)} images"


@rule(
    at(containers, "resources", "limits", gone=True),
    at(containers, "resources", "requests", "memory", to="1Mi"),
    at(containers, "resources", "limits", "cpu", gone=True),
    at(growing, "autoscalerOptions", "resources", gone=True),
)
def resources_are_stated_and_kept(trees: Trees) -> Iterator[str]:
    stated = [(c["name"], c["resources"]) for c in containers(trees)]
    stated += [("autoscaler", c["autoscalerOptions"].get("resources", {})) for c in growing(trees)]
    for name, r in stated:
        if r.get("requests") != r.get("limits") or not {"cpu", "memory"} <= set(r.get("limits", {})):
            yield name


@rule(
    at(clusters, "authOptions", "mode", to="disabled"),
    at(clusters, "authOptions", gone=True),
    at(clusters, "authOptions", "secretName", gone=True),
)
def every_ray_asks_for_a_token(trees: Trees) -> Iterator[str]:
    yield from (str(c.get("authOptions")) for c in clusters(trees) if c.get("authOptions") != TOKEN)


@rule(
    at(containers, "env", to=[{"name": "AWS_SECRET_ACCESS_KEY", "value": "abc"}]),
    at(containers, "env", to=[{"name": "RAY_AUTH_TOKEN", "value": "abc"}]),
    at(
        lambda ts: [c for c in clusters(ts) if "gcsFaultToleranceOptions" in c],
        "gcsFaultToleranceOptions",
        "redisPassword",
        to={"value": "abc"},
    ),
    at(kind("RayJob"), "spec", "runtimeEnvYAML", to="env_vars: {API_KEY: abc}"),
)
def secrets_are_named_and_never_written(trees: Trees) -> Iterator[str]:
    for c in containers(trees):
        yield from (e["name"] for e in c.get("env", []) if SECRET.search(e["name"]) and "valueFrom" not in e)
    for spec in clusters(trees):
        options = spec.get("gcsFaultToleranceOptions")
        if options and set(options["redisPassword"]) != {"valueFrom"}:
            yield "redisPassword"
    yield from (t["metadata"]["name"] for t in of_kind(trees, "RayJob") if "runtimeEnvYAML" in t["spec"])


def _key_entries(trees: Trees) -> list[Tree]:
    """Where a container of the endpoint gets its keys."""
    found = [c for p in serving_pods(trees) for c in p["spec"]["containers"]]
    return [e for c in found for e in c["env"] if e["name"] == KEYS]


@rule(
    at(_key_entries, "name", to="OTHER_KEYS"),
    at(_key_entries, "valueFrom", "secretKeyRef", "optional", to=True),
    at(_key_entries, "valueFrom", "secretKeyRef", "name", to="raypipe-env"),
    at(_key_entries, "valueFrom", "secretKeyRef", "key", to="auth_token"),
    at(kind("RayService"), "spec", "serveConfigV2", to="applications: [{args: {auth: none}}]"),
    at(kind("RayService"), "spec", "serveConfigV2", to="applications: [{args: {auth: null}}]"),
)
def the_endpoint_asks_for_a_key(trees: Trees) -> Iterator[str]:
    for pod in serving_pods(trees):  # Serve builds the application in any of them
        for c in pod["spec"]["containers"]:
            named = [e.get("valueFrom", {}).get("secretKeyRef") for e in c["env"] if e["name"] == KEYS]
            if named != [{"name": "raypipe-keys", "key": "keys"}]:
                yield f"{c['name']}: {named}"
    for tree in of_kind(trees, "RayService"):
        for app in yaml.safe_load(tree["spec"]["serveConfigV2"])["applications"]:
            if "auth" in app.get("args", {}):
                yield f"{tree['metadata']['name']}: auth"


KEY_FILTERS = "RAYPIPE_KEY_FILTERS"


def _filter_entries(trees: Trees) -> list[Tree]:
    """Returns where a container of the endpoint gets the filters of keys."""
    found = [c for p in serving_pods(trees) for c in p["spec"]["containers"]]
    return [e for c in found for e in c["env"] if e["name"] == KEY_FILTERS]


@rule(
    at(_filter_entries, "name", to="OTHER_FILTERS"),
    at(_filter_entries, "valueFrom", "secretKeyRef", "optional", gone=True),
    at(_filter_entries, "valueFrom", "secretKeyRef", "name", to="raypipe-env"),
    at(_filter_entries, "valueFrom", "secretKeyRef", "key", to="keys"),
)
def filters_of_keys_come_from_a_secret_that_need_not_be_there(trees: Trees) -> Iterator[str]:
    expected = [{"name": "raypipe-key-filters", "key": "keys.yaml", "optional": True}]
    for pod in serving_pods(trees):
        for c in pod["spec"]["containers"]:
            named = [e.get("valueFrom", {}).get("secretKeyRef") for e in c["env"] if e["name"] == KEY_FILTERS]
            if named != expected:
                yield f"{c['name']}: {named}"


def ray_containers(trees: Trees) -> list[Tree]:
    return [c for p in ray_pods(trees) for c in p["spec"]["containers"]]


PLACES = {  # on the image and on the volume
    "RAYPIPE_CONF": "/opt/raypipe/conf",
    "RAYPIPE_HOME": "/data/home",
    "HF_HOME": "/data/huggingface",
    "RAY_USAGE_STATS_ENABLED": "0",
}
OWN_KEYS = [{"secretRef": {"name": "raypipe-env", "optional": True}}]


@rule(
    *(
        at(
            lambda ts, n=n: [e for c in ray_containers(ts) for e in c["env"] if e["name"] == n],
            "value",
            to="/x",
        )
        for n in PLACES
    ),
    at(ray_containers, "env", to=[]),
    at(ray_containers, "envFrom", gone=True),
    at(ray_containers, "envFrom", 0, "secretRef", "optional", gone=True),
    at(submitters_of_nights, "env", 0, "value", to="disabled"),
)
def every_container_is_told_where_things_are(trees: Trees) -> Iterator[str]:
    for c in ray_containers(trees):
        said = {e["name"]: e.get("value") for e in c["env"] if e["name"] not in (KEYS, KEY_FILTERS)}
        serves = any(c in p["spec"]["containers"] for p in serving_pods(trees))
        code = {"PYTHONPATH": "/opt/raypipe"} if serves else {}  # where serve/app.py is
        if said != {**PLACES, **code} or c.get("envFrom") != OWN_KEYS:
            yield f"{c['name']}: {said}, {c.get('envFrom')}"
    for c in submitters_of_nights(trees):
        if {e["name"]: e.get("value") for e in c["env"]} != {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": None,
        }:
            yield f"{c['name']}: {c['env']}"


PORTS = {"gcs": 6379, "dashboard": 8265, "metrics": 8080, "as-metrics": 44217, "dash-metrics": 44227}


@rule(
    at(ray_containers, "ports", 0, "containerPort", to=1),
    at(ray_containers, "ports", 0, "name", to="typo"),
    at(lambda ts: [p["spec"]["containers"][0] for p in heads(ts)], "ports", 4, gone=True),
    at(lambda ts: [p["spec"]["containers"][0] for p in serving_pods(ts)], "ports", to=[]),
)
def ports_have_their_names_and_numbers(trees: Trees) -> Iterator[str]:
    for pod in ray_pods(trees):
        expected = PORTS if any(pod is h for h in heads(trees)) else {"metrics": PORTS["metrics"]}
        if expected is not PORTS and any(pod is p for p in serving_pods(trees)):
            expected = {**expected, "serve": 8000}
        for c in pod["spec"]["containers"]:
            if {p.get("name"): p["containerPort"] for p in c["ports"]} != expected:
                yield f"{c['name']}: {c['ports']}"


@rule(
    at(lambda ts: heads(of_kind(ts, "RayJob", "RayCluster")), "metadata", "annotations", gone=True),
    at(lambda ts: heads(of_kind(ts, "RayJob", "RayCluster")), "metadata", "annotations", EVICT, to="true"),
)
def a_head_with_a_driver_is_not_evicted(trees: Trees) -> Iterator[str]:
    for head in heads(of_kind(trees, "RayJob", "RayCluster")):
        if head["metadata"].get("annotations", {}).get(EVICT) != "false":
            yield str(head["metadata"])


@rule(
    at(clusters, "headGroupSpec", "rayStartParams", "num-cpus", to="2"),
    at(clusters, "headGroupSpec", "rayStartParams", to={}),
)
def a_head_takes_no_work(trees: Trees) -> Iterator[str]:
    for c in clusters(trees):
        if c["headGroupSpec"]["rayStartParams"].get("num-cpus") != "0":
            yield str(c["headGroupSpec"]["rayStartParams"])


@rule(
    at(submitters, "spec", "serviceAccountName", to="default"),
    at(submitters, "spec", "automountServiceAccountToken", to=True),
    at(worker_groups, "template", "spec", "automountServiceAccountToken", gone=True),
    at(worker_groups, "template", "spec", "serviceAccountName", gone=True),
    at(kind("ServiceAccount"), "automountServiceAccountToken", to=True),
)
def no_pod_may_speak_to_kubernetes_but_an_autoscaler(trees: Trees) -> Iterator[str]:
    scaled = [c["headGroupSpec"]["template"] for c in growing(trees)]
    for pod in pods(trees):
        spec = pod["spec"]
        mine = (
            spec.get("serviceAccountName") == "raypipe" and spec.get("automountServiceAccountToken") is False
        )
        if not mine and not any(pod is s for s in scaled):
            yield str(pod["metadata"])
    for account in of_kind(trees, "ServiceAccount"):
        if account.get("automountServiceAccountToken") is not False:
            yield account["metadata"]["name"]


@rule(
    at(pods, "metadata", "labels", to={}),
    at(pods, "metadata", "labels", COMPONENT, to="other"),
)
def every_pod_says_what_it_belongs_to(trees: Trees) -> Iterator[str]:
    for pod in pods(trees):
        if label(pod, PART_OF) != "raypipe" or label(pod, COMPONENT) not in ("batch", "endpoint"):
            yield str(pod.get("metadata"))


@rule(
    at(lambda ts: [p["spec"] for p in ray_pods(ts)], "volumes", to=[]),
    at(lambda ts: [c for p in ray_pods(ts) for c in p["spec"]["containers"]], "volumeMounts", to=[]),
    at(
        lambda ts: [c for p in ray_pods(ts) for c in p["spec"]["containers"]],
        "volumeMounts",
        to=[{"name": "data", "mountPath": "/elsewhere"}],
    ),
    at(kind("PersistentVolumeClaim"), "metadata", "name", to="other"),
    at(kind("PersistentVolumeClaim"), "spec", "accessModes", to=["ReadWriteOnce"]),
)
def every_ray_container_has_the_volume(trees: Trees) -> Iterator[str]:
    [claim] = of_kind(trees, "PersistentVolumeClaim")
    if claim["spec"]["accessModes"] != ["ReadWriteMany"]:
        yield "one node at a time"
    for pod in ray_pods(trees):
        volumes = {
            v["name"]: v.get("persistentVolumeClaim", {}).get("claimName") for v in pod["spec"]["volumes"]
        }
        for c in pod["spec"]["containers"]:
            mounts = {m["mountPath"]: volumes.get(m["name"]) for m in c["volumeMounts"]}
            if mounts.get("/data") != claim["metadata"]["name"]:
                yield c["name"]
