"""Who reaches raypipe's pods, whom they reach, and what is watched: rules over manifests (`k8s_trees`)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from k8s_trees import (
    COMPONENT,
    NODE,
    PART_OF,
    REDIS_OPTIONS,
    Find,
    Peer,
    Tree,
    Trees,
    at,
    clusters,
    kind,
    label,
    of_kind,
    pods,
    ray_pods,
    rule,
    selected,
)


def _policy(name: str) -> Find:
    return lambda ts: [t for t in of_kind(ts, "NetworkPolicy") if t["metadata"]["name"] == name]


OURS = ("pods", (PART_OF, "raypipe"))
OPERATOR = ("any namespace", ("app.kubernetes.io/name", "kuberay-operator"))
CLIENTS = ("any namespace", ("raypipe-client", "true"))
MONITORING, DNS, REDIS = ("namespace", "monitoring"), ("namespace", "kube-system"), ("namespace", "redis")
WORLD = ("addresses", "0.0.0.0/0")
TCP, UDP = "TCP", "UDP"
REACHES: dict[str, dict[Peer, set[tuple[str, int]]]] = {
    "ingress": {
        OURS: set(),  # every port
        OPERATOR: {(TCP, 8265), (TCP, 8000)},  # heads for their state, proxies for their health
        CLIENTS: {(TCP, 8000)},
        MONITORING: {(TCP, 8080), (TCP, 44217), (TCP, 44227)},
    },
    "egress": {
        OURS: set(),
        DNS: {(UDP, 53), (TCP, 53)},
        WORLD: {(TCP, 443), (TCP, 6443)},
        REDIS: {(TCP, 6379)},
    },
}
"""Who reaches raypipe's pods and whom they reach, and where. What is not here is shut."""


def _peer(tree: Tree) -> Peer:
    """One entry of `from` or `to`, as the table above names it."""
    match tree:
        case {"ipBlock": {"cidr": cidr, **more}, **others} if not more and not others:
            return ("addresses", cidr)
        case {"namespaceSelector": {"matchLabels": labels}, **others} if not others and len(labels) == 1:
            return ("namespace", str(labels.get("kubernetes.io/metadata.name")))
        case {"podSelector": {"matchLabels": labels}, **others} if len(labels) == 1:
            [label] = labels.items()
            if not others:
                return ("pods", label)
            if others == {"namespaceSelector": {}}:
                return ("any namespace", label)
    return ("other", str(tree))


def _entries(trees: Trees) -> Iterator[tuple[Tree, str, Peer, set[tuple[str, int]]]]:
    """Policy, way, whom it lets through, and at which ports: protocol and number."""
    for policy in of_kind(trees, "NetworkPolicy"):
        for way, key in (("ingress", "from"), ("egress", "to")):
            for entry in policy["spec"].get(way, []):
                ports = {(p.get("protocol", "unsaid"), p.get("port", 0)) for p in entry.get("ports", [])}
                for peer in entry.get(key, [{}]):
                    yield policy, way, _peer(peer), ports


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
    at(_policy("raypipe-ask"), "spec", "podSelector", "matchLabels", to={PART_OF: "raypipe"}),
    at(_policy("raypipe-metrics"), "spec", "ingress", 0, "ports", 0, "port", to=8265),
    at(_policy("raypipe-metrics"), "spec", "podSelector", "matchLabels", to={"app": "other"}),
    at(_policy("raypipe-redis"), "spec", "egress", 0, "ports", 0, "port", to=1),
    at(_policy("raypipe-redis"), "spec", "podSelector", "matchLabels", to={"app": "other"}),
    at(kind("NetworkPolicy"), "spec", "podSelector", to={}),
    at(_policy("raypipe"), "spec", "ingress", 1, "ports", gone=True),
    at(_policy("raypipe"), "spec", "egress", 1, "ports", 0, "protocol", to="TCP"),
    at(_policy("raypipe"), "spec", "egress", 2, "ports", gone=True),
    at(_policy("raypipe"), "spec", "egress", 2, "to", 0, "ipBlock", "cidr", to="10.0.0.0/8"),
)
def who_reaches_whom_is_as_in_the_table(trees: Trees) -> Iterator[str]:
    policies = of_kind(trees, "NetworkPolicy")
    for way in ("Ingress", "Egress"):
        held = [p["spec"] for p in policies if way in p["spec"]["policyTypes"]]
        free = [p for p in pods(trees) if not any(p in selected(trees, h["podSelector"]) for h in held)]
        yield from (f"{way} of {p.get('metadata')} is open" for p in free)
    for policy in policies:
        name, spec = policy["metadata"]["name"], policy["spec"]
        if {way.lower() for way in spec["policyTypes"]} != {"ingress", "egress"} & set(spec):
            yield f"{name}: policyTypes name another way than its rules"
    for policy, way, peer, ports in _entries(trees):
        name = policy["metadata"]["name"]
        if REACHES[way].get(peer) != ports:
            yield f"{name}: {way}, {peer} at {sorted(ports) or 'every port'}"
        meant = [p for p in pods(trees) if peer != CLIENTS or label(p, COMPONENT) == "endpoint"]
        selector = policy["spec"]["podSelector"]
        if not selector.get("matchLabels") or selected(trees, selector) != meant:
            yield f"{name}: {way}, {peer} for other pods"
    let = {(way, peer) for _, way, peer, _ in _entries(trees)}
    watched, redis = of_kind(trees, "PodMonitor"), [c for c in clusters(trees) if REDIS_OPTIONS in c]
    asked = {"ingress": {OURS, OPERATOR, CLIENTS}, "egress": {OURS, DNS, WORLD}}
    asked["ingress"] |= {MONITORING} if watched else set()
    asked["egress"] |= {REDIS} if redis else set()
    yield from (f"{way}, {p} is shut" for way, some in asked.items() for p in some if (way, p) not in let)


@rule(
    at(kind("PodMonitor"), "spec", "podMetricsEndpoints", 0, "port", to="typo"),
    at(kind("PodMonitor"), "spec", "selector", "matchLabels", to={"app": "other"}),
    at(kind("PodMonitor"), "spec", "selector", "matchExpressions", gone=True),
    at(kind("PodMonitor"), "spec", "podMetricsEndpoints", 0, "interval", gone=True),
    at(kind("PrometheusRule"), "spec", "groups", 0, "rules", 0, "for", to="5d"),
    at(kind("PrometheusRule"), "spec", "groups", 0, "rules", 0, "for", gone=True),
    at(kind("PrometheusRule"), "spec", "groups", 0, "rules", 0, "annotations", "summary", gone=True),
    at(kind("PrometheusRule"), "spec", "groups", 0, "rules", 0, "alert", to="Other"),
    at(_policy("raypipe-metrics"), "spec", "ingress", 0, "ports", to=[{"protocol": "TCP", "port": 8080}]),
    at(kind("PrometheusRule"), "spec", "groups", 0, "rules", 0, "labels", to={}),
    at(kind("PrometheusRule"), "spec", "groups", 0, "rules", 0, "annotations", "runbook", gone=True),
    overlays=("gpu", "ha"),
)
def what_is_watched_can_be_read(trees: Trees) -> Iterator[str]:
    [monitor] = of_kind(trees, "PodMonitor")
    every = {"matchLabels": {PART_OF: "raypipe"}, "matchExpressions": [{"key": NODE, "operator": "Exists"}]}
    if monitor["spec"]["selector"] != every:  # a submitter's pod has no such label, and no metrics
        yield "selects other pods"
    watched = ray_pods(trees)
    ports = {
        p["name"]: p["containerPort"]
        for pod in watched
        for c in pod["spec"]["containers"]
        for p in c.get("ports", [])
    }
    [policy] = _policy("raypipe-metrics")(trees)
    open_ = {p["port"] for entry in policy["spec"]["ingress"] for p in entry["ports"]}
    for endpoint in monitor["spec"]["podMetricsEndpoints"]:
        if ports.get(endpoint["port"]) not in open_ or endpoint.get("interval") != "15s":
            yield endpoint["port"]
    for tree in of_kind(trees, "PrometheusRule"):
        for alert in (r for g in tree["spec"]["groups"] for r in g["rules"]):
            if alert.get("labels", {}).get("severity") not in ("page", "ticket"):
                yield f"{alert['alert']}: severity"
            if not alert.get("annotations", {}).get("runbook"):
                yield f"{alert['alert']}: runbook"
            lasts = "15m" if "increase(" in alert["expr"] else ""  # it looks back by itself
            if not re.fullmatch(r"\d{1,2}m", alert.get("for", lasts)):
                yield f"{alert['alert']}: for"
            if not alert["alert"].startswith("Raypipe") or not alert["annotations"].get("summary"):
                yield f"{alert['alert']}: name or summary"
