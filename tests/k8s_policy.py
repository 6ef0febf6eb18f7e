"""What the manifests must keep, whoever changes them: rules over rendered trees, and the ways to break them.

A rule yields what it does not like. Its `breaks` are what a careless edit could do; the tests do each of them
at every place that it fits and expect the rule to notice. Knows Kubernetes' and KubeRay's field names.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

Tree = dict[str, Any]
Trees = list[Tree]

PART_OF, COMPONENT = "app.kubernetes.io/part-of", "app.kubernetes.io/component"
GPU = "nvidia.com/gpu"
KEYS = "RAYPIPE_KEYS"
SECRET = re.compile("token|key|secret|password|credential", re.I)
TOKEN = {"mode": "token", "secretName": "raypipe-ray-token"}
KINDS = {
    "Namespace", "ServiceAccount", "PersistentVolumeClaim", "RayCluster", "RayJob", "RayService", "CronJob",
    "NetworkPolicy", "PodDisruptionBudget", "PodMonitor", "PrometheusRule", "ConfigMap",
}  # fmt: skip
"""All that may stand in a manifest. A Secret is made by whoever has it, and a Deployment by KubeRay."""

LONGEST = {"RayJob": 47, "RayService": 47, "RayCluster": 47, "CronJob": 52}  # names made of it fit 63


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


@rule(at(all_trees, "kind", to="Secret"), at(all_trees, "kind", to="Deployment"))
def only_kinds_that_are_meant(trees: Trees) -> Iterator[str]:
    yield from (t["kind"] for t in trees if t["kind"] not in KINDS)


@rule(
    at(all_trees, "metadata", "name", to="x" * 64),
    at(kind("RayJob", "RayService", "RayCluster"), "metadata", "name", to="x" * 48),
    at(all_trees, "metadata", "name", to="Eval_1"),
)
def names_are_short_and_plain(trees: Trees) -> Iterator[str]:
    for t in trees:
        name = t["metadata"]["name"]
        if len(name) > LONGEST.get(t["kind"], 63) or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
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
    at(pods, "spec", "securityContext", "seccompProfile", "type", to="Unconfined"),
    at(pods, "spec", "securityContext", gone=True),
    at(containers, "securityContext", "allowPrivilegeEscalation", to=True),
    at(containers, "securityContext", "capabilities", "drop", to=[]),
    at(containers, "securityContext", "capabilities", "add", to=["SYS_PTRACE"]),
    at(containers, "securityContext", "privileged", to=True),
    at(containers, "securityContext", "runAsUser", to=0),
    at(containers, "securityContext", gone=True),
)
def nobody_is_root(trees: Trees) -> Iterator[str]:
    for pod in pods(trees):
        context = pod["spec"].get("securityContext", {})
        profile = context.get("seccompProfile", {}).get("type")
        if not context.get("runAsNonRoot") or not context.get("runAsUser") or profile != "RuntimeDefault":
            yield f"pod {context}"
    expected = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    yield from (c["name"] for c in containers(trees) if c.get("securityContext") != expected)


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
    at(lambda ts: [c for c in clusters(ts) if "gcsFaultToleranceOptions" in c],
       "gcsFaultToleranceOptions", "redisPassword", to={"value": "abc"}),
    at(kind("RayJob"), "spec", "runtimeEnvYAML", to="env_vars: {API_KEY: abc}"),
)  # fmt: skip
def secrets_are_named_and_never_written(trees: Trees) -> Iterator[str]:
    for c in containers(trees):
        yield from (e["name"] for e in c.get("env", []) if SECRET.search(e["name"]) and "valueFrom" not in e)
    for spec in clusters(trees):
        options = spec.get("gcsFaultToleranceOptions")
        if options and set(options["redisPassword"]) != {"valueFrom"}:
            yield "redisPassword"
    yield from (t["metadata"]["name"] for t in of_kind(trees, "RayJob") if "runtimeEnvYAML" in t["spec"])


def _serving_pods(trees: Trees) -> list[Tree]:
    return ray_pods(of_kind(trees, "RayService"))


def _key_entries(trees: Trees) -> list[Tree]:
    """Where a container of the endpoint gets its keys."""
    found = [c for p in _serving_pods(trees) for c in p["spec"]["containers"]]
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
    for pod in _serving_pods(trees):  # Serve builds the application in any of them
        for c in pod["spec"]["containers"]:
            named = [e.get("valueFrom", {}).get("secretKeyRef") for e in c["env"] if e["name"] == KEYS]
            if named != [{"name": "raypipe-keys", "key": "keys"}]:
                yield f"{c['name']}: {named}"
    for tree in of_kind(trees, "RayService"):
        for app in yaml.safe_load(tree["spec"]["serveConfigV2"])["applications"]:
            if "auth" in app.get("args", {}):
                yield f"{tree['metadata']['name']}: auth"


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


def _policy(name: str) -> Find:
    return lambda ts: [t for t in of_kind(ts, "NetworkPolicy") if t["metadata"]["name"] == name]


@rule(
    at(_policy("raypipe"), "spec", "podSelector", "matchLabels", to={"app": "other"}),
    at(_policy("raypipe"), "spec", "policyTypes", to=["Ingress"]),
    at(_policy("raypipe"), "spec", "policyTypes", to=["Egress"]),
    at(_policy("raypipe"), "spec", "egress", to=[{}]),
    at(kind("NetworkPolicy"), "spec", "ingress", to=[{}]),
    at(kind("NetworkPolicy"), "spec", "ingress", to=[{"from": [{"namespaceSelector": {}}]}]),
    at(kind("NetworkPolicy"), "spec", "ingress", to=[{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]),
    at(_policy("raypipe-ask"), "spec", "ingress", 0, "ports", gone=True),
    at(_policy("raypipe-ask"), "spec", "ingress", 0, "ports", 0, "port", to=8265),
    at(_policy("raypipe-metrics"), "spec", "ingress", 0, "ports", 0, "port", to=8265),
    at(_policy("raypipe"), "spec", "ingress", 1, "ports", gone=True),
    at(_policy("raypipe"), "spec", "egress", 2, "ports", gone=True),
)
def nobody_else_reaches_a_pod(trees: Trees) -> Iterator[str]:
    policies = of_kind(trees, "NetworkPolicy")
    for way in ("Ingress", "Egress"):
        held = [p["spec"] for p in policies if way in p["spec"]["policyTypes"]]
        free = [p for p in pods(trees) if not any(p in selected(trees, h["podSelector"]) for h in held)]
        yield from (f"{way} of {p.get('metadata')} is open" for p in free)
    ours = [{"podSelector": {"matchLabels": {PART_OF: "raypipe"}}}]
    for side, key in (("ingress", "from"), ("egress", "to")):
        inner = [p["spec"] for p in policies if {key: ours} in p["spec"].get(side, [])]
        cut = [p for p in pods(trees) if not any(p in selected(trees, i["podSelector"]) for i in inner)]
        yield from (f"{p.get('metadata')} is cut off from raypipe's own pods" for p in cut)
    for policy in policies:
        name, spec = policy["metadata"]["name"], policy["spec"]
        if {way.lower() for way in spec["policyTypes"]} != {"ingress", "egress"} & set(spec):
            yield f"{name}: policyTypes name another way than its rules"
        for entry in spec.get("ingress", []):
            yield from (f"{name}: {why}" for why in _too_open(entry))
        for entry in spec.get("egress", []):
            if not entry.get("to") or (any("ipBlock" in to for to in entry["to"]) and "ports" not in entry):
                yield f"{name}: egress to anywhere at any port"


def _too_open(entry: Tree) -> Iterator[str]:
    """Ingress: ourselves at any port; the operator at two; clients at one; Prometheus at metrics' ports."""
    sources = entry.get("from", [])
    if not sources:
        yield "from anybody"
    ports = {p["port"] for p in entry.get("ports", [])}
    for source in sources:
        pod = source.get("podSelector", {}).get("matchLabels", {})
        space = source.get("namespaceSelector")
        if space is None and pod == {PART_OF: "raypipe"}:
            continue
        allowed: set[int] = set()
        if pod == {"app.kubernetes.io/name": "kuberay-operator"}:
            allowed = {8265, 8000}
        elif pod == {"raypipe-client": "true"}:
            allowed = {8000}
        elif space == {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}} and not pod:
            allowed = {8080, 44217, 44227}
        if not ports or not ports <= allowed:
            yield f"{source} at {sorted(ports) or 'every port'}"


def _endpoint_workers(trees: Trees) -> int:
    [service] = of_kind(trees, "RayService")
    return sum(g["minReplicas"] for g in cluster_of(service)["workerGroupSpecs"])


@rule(
    at(kind("PodDisruptionBudget"), "spec", "minAvailable", gone=True),
    at(kind("PodDisruptionBudget"), "spec", "minAvailable", to=0),
    at(kind("PodDisruptionBudget"), "spec", "minAvailable", to="50%"),
    at(kind("PodDisruptionBudget"), "spec", "minAvailable", to=99),
    at(kind("PodDisruptionBudget"), "spec", "selector", "matchLabels", to={"app": "other"}),
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
        if {label(p, COMPONENT) for p in selected(trees, b["spec"]["selector"])} != {"endpoint"}:
            yield "selects other pods"


@rule(
    at(kind("RayJob"), "spec", "suspend", to=False),
    at(kind("RayJob"), "spec", "shutdownAfterJobFinishes", to=False),
    at(kind("RayJob"), "spec", "ttlSecondsAfterFinished", gone=True),
    at(kind("RayJob"), "spec", "activeDeadlineSeconds", gone=True),
    at(kind("RayJob"), "spec", "backoffLimit", to=100),
    at(kind("RayJob"), "spec", "metadata", gone=True),
)
def a_job_waits_to_be_started_and_ends(trees: Trees) -> Iterator[str]:
    for t in of_kind(trees, "RayJob"):
        s = t["spec"]
        ends = s.get("shutdownAfterJobFinishes") and s.get("ttlSecondsAfterFinished", 0) > 0
        bounded = s.get("activeDeadlineSeconds", 0) > 0 and s.get("backoffLimit", 99) <= 5
        if not (s.get("suspend") and ends and bounded and s.get("metadata")):
            yield t["metadata"]["name"]


@rule(
    at(kind("CronJob"), "spec", "concurrencyPolicy", to="Allow"),
    at(kind("CronJob"), "spec", "startingDeadlineSeconds", gone=True),
    at(kind("CronJob"), "spec", "schedule", to="* * * * *"),
    at(kind("CronJob"), "spec", "jobTemplate", "spec", "activeDeadlineSeconds", gone=True),
    at(kind("CronJob"), "spec", "jobTemplate", "spec", "activeDeadlineSeconds", to=100_000),
    at(kind("CronJob"), "spec", "jobTemplate", "spec", "backoffLimit", to=6),
    at(submitters, "spec", "restartPolicy", to="Always"),
)
def a_night_has_one_run(trees: Trees) -> Iterator[str]:
    for t in of_kind(trees, "CronJob"):
        s, job = t["spec"], t["spec"]["jobTemplate"]["spec"]
        if s.get("concurrencyPolicy") != "Forbid" or not s.get("startingDeadlineSeconds"):
            yield t["metadata"]["name"]
        if not re.fullmatch(r"\d+ \d+ \* \* \*", s["schedule"]):
            yield s["schedule"]
        if not 0 < job.get("activeDeadlineSeconds", 0) < 86_400 or job.get("backoffLimit") != 0:
            yield t["metadata"]["name"]
    yield from (str(p["metadata"]) for p in submitters(trees) if p["spec"]["restartPolicy"] != "Never")


@rule(
    at(growing, "autoscalerOptions", "version", to="v1"),
    at(growing, "autoscalerOptions", "idleTimeoutSeconds", to=5),
    at(growing, "autoscalerOptions", "securityContext", gone=True),
    at(growing, "headGroupSpec", "template", "spec", "restartPolicy", gone=True),
    at(lambda ts: [g for c in growing(ts) for g in c["workerGroupSpecs"]],
       "template", "spec", "restartPolicy", to="Always"),
    at(worker_groups, "maxReplicas", to=-1),
    at(worker_groups, "minReplicas", to=1000),
    at(kind("RayCluster"), "spec", "enableInTreeAutoscaling", to=False),
)  # fmt: skip
def what_grows_has_bounds(trees: Trees) -> Iterator[str]:
    for g in worker_groups(trees):
        if not 0 <= g["minReplicas"] <= g["replicas"] <= g["maxReplicas"] or g["maxReplicas"] < 1:
            yield f"{g['groupName']}: {g['minReplicas']} {g['replicas']} {g['maxReplicas']}"
    for c in growing(trees):
        o = c["autoscalerOptions"]
        templates = [c["headGroupSpec"]["template"], *(g["template"] for g in c["workerGroupSpecs"])]
        if o.get("version") != "v2" or o.get("idleTimeoutSeconds", 0) < 60:
            yield "autoscalerOptions"
        if not o.get("securityContext", {}).get("runAsNonRoot"):
            yield "the autoscaler's securityContext"
        yield from ("restartPolicy" for t in templates if t["spec"].get("restartPolicy") != "Never")
    for t in of_kind(trees, "RayCluster"):
        if not t["spec"].get("enableInTreeAutoscaling"):
            yield "the standing cluster does not grow"


def gpu_groups(trees: Trees) -> list[Tree]:
    return [g for g in worker_groups(trees) if any(GPU in c["resources"]["limits"] for c in _containers(g))]


def _containers(group: Tree) -> list[Tree]:
    found: list[Tree] = group["template"]["spec"]["containers"]
    return found


@rule(
    at(gpu_groups, "template", "spec", "tolerations", gone=True),
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
            c = _containers(g)[0]
            if c["resources"]["requests"].get(GPU) != c["resources"]["limits"][GPU]:
                yield "requests and limits differ"
            if not c["image"].endswith("-gpu") or g["groupName"] != "gpus":
                yield f"{g['groupName']}: {c['image']}"
            if not any(t.get("key") == GPU for t in g["template"]["spec"].get("tolerations", [])):
                yield "no toleration"


def _serving(trees: Trees) -> list[Tree]:
    return [cluster_of(t) for t in of_kind(trees, "RayService")]


@rule(
    at(_serving, "gcsFaultToleranceOptions", gone=True),
    at(kind("RayCluster"), "spec", "gcsFaultToleranceOptions", gone=True),
    at(_serving, "workerGroupSpecs", 0, "minReplicas", to=2),
    at(_serving, "workerGroupSpecs", 0, "template", "spec", "topologySpreadConstraints", gone=True),
    at(kind("PodDisruptionBudget"), "spec", "minAvailable", to=1),
    at(kind("RayService"), "spec", "serveConfigV2",
       to="applications: [{deployments: [{name: gateway, num_replicas: 1}]}]"),
    overlays=("ha",),
)  # fmt: skip
def what_is_highly_available_outlives_a_head_and_a_node(trees: Trees) -> Iterator[str]:
    for t in of_kind(trees, "RayCluster", "RayService"):
        if not cluster_of(t).get("gcsFaultToleranceOptions", {}):
            yield f"{t['metadata']['name']}: its head's state dies with it"
    for t in of_kind(trees, "RayService"):
        for g in cluster_of(t)["workerGroupSpecs"]:
            spread = g["template"]["spec"].get("topologySpreadConstraints", [])
            if g["minReplicas"] < 3 or not any(s["topologyKey"] == "kubernetes.io/hostname" for s in spread):
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


@rule(
    at(lambda ts: [p["spec"] for p in ray_pods(ts)], "volumes", to=[]),
    at(lambda ts: [c for p in ray_pods(ts) for c in p["spec"]["containers"]], "volumeMounts", to=[]),
    at(lambda ts: [c for p in ray_pods(ts) for c in p["spec"]["containers"]], "volumeMounts",
       to=[{"name": "data", "mountPath": "/elsewhere"}]),
    at(kind("PersistentVolumeClaim"), "metadata", "name", to="other"),
    at(kind("PersistentVolumeClaim"), "spec", "accessModes", to=["ReadWriteOnce"]),
)  # fmt: skip
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


@rule(
    at(kind("PodMonitor"), "spec", "podMetricsEndpoints", 0, "port", to="typo"),
    at(kind("PodMonitor"), "spec", "selector", "matchLabels", to={"app": "other"}),
    at(_policy("raypipe-metrics"), "spec", "ingress", 0, "ports", to=[{"protocol": "TCP", "port": 8080}]),
    at(kind("PrometheusRule"), "spec", "groups", 0, "rules", 0, "labels", to={}),
    at(kind("PrometheusRule"), "spec", "groups", 0, "rules", 0, "annotations", "runbook", gone=True),
    overlays=("gpu", "ha"),
)
def what_is_watched_can_be_read(trees: Trees) -> Iterator[str]:
    [monitor] = of_kind(trees, "PodMonitor")
    watched = selected(trees, monitor["spec"]["selector"])
    ports = {
        p["name"]: p["containerPort"]
        for pod in watched
        for c in pod["spec"]["containers"]
        for p in c.get("ports", [])
    }
    [policy] = _policy("raypipe-metrics")(trees)
    open_ = {p["port"] for entry in policy["spec"]["ingress"] for p in entry["ports"]}
    for endpoint in monitor["spec"]["podMetricsEndpoints"]:
        if ports.get(endpoint["port"]) not in open_:
            yield endpoint["port"]
    for tree in of_kind(trees, "PrometheusRule"):
        for alert in (r for g in tree["spec"]["groups"] for r in g["rules"]):
            if alert.get("labels", {}).get("severity") not in ("page", "ticket"):
                yield f"{alert['alert']}: severity"
            if not alert.get("annotations", {}).get("runbook"):
                yield f"{alert['alert']}: runbook"
