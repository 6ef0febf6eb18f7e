"""Manifests as trees: rendered, held against a schema, and changed line by line."""

import copy
import re
import shutil
import subprocess

import pytest
import yaml


def render(folder):
    """What `kubectl apply -k` would send, by kubectl's own kustomize."""
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed here")
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def strict(schema):
    """A CRD's schema as the API server applies it, but with unknown fields refused instead of dropped."""
    schema = dict(schema)
    for key in ("properties", "patternProperties"):
        if key in schema:
            schema[key] = {name: strict(inner) for name, inner in schema[key].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema[key] = strict(schema[key])
    if schema.get("x-kubernetes-int-or-string"):
        schema = {"type": ["integer", "string"]}
    keeps = schema.get("x-kubernetes-preserve-unknown-fields")
    if "properties" in schema and "additionalProperties" not in schema and not keeps:
        schema["additionalProperties"] = False
    return schema


def problems(validator, tree):
    return sorted(f"{e.json_path}: {e.message}" for e in validator.iter_errors(tree))


FREE = (
    r"\.metadata\.labels\..*",  # for people who look; pods' own labels are in a rule
    # No other file has these names.
    r"(NetworkPolicy|PodDisruptionBudget|PodMonitor|PrometheusRule|CronJob)\.metadata\.name",
    r"\.containers\.\d+\.name|\.groupName",
    r"\.rayStartParams",  # none
    r"\.spec\.metadata\.purpose",
    r"\.(failed|successful)JobsHistoryLimit|\.requests\.storage|\.upscalingMode|\.podTargetLabels\.\d",
    r"PrometheusRule\.spec\.groups\.0\.name",
    r"\.rules\.\d+\.(expr|annotations\.(runbook|summary))",  # a test each, but for the words of a summary
    r"\.rules\.\d+\.alert",
    r"ConfigMap\..*",  # the dashboard: a test of its own
)
"""Lines that may be another way, by kind and path: nothing else follows from them."""


def free(kind, path):
    """Whether a line may be another way."""
    where = ".".join([kind, *map(str, path)])
    return any(re.search(f"{some}$", where) for some in FREE)


def leaves(tree, path=()):
    """Each path of a tree that ends in a value, and the value."""
    steps = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    if not tree or not steps:
        yield path, tree
    for step, inner in steps:
        yield from leaves(inner, (*path, step))


def flipped(tree, path):
    """The tree without the value at a path, and with another of its type there. A tree that is no manifest
    any more, without its kind or name, is none of these: it could not be applied."""
    for value in (None, *_others(tree, path)):
        changed = copy.deepcopy(tree)
        inner = changed
        for step in path[:-1]:
            inner = inner[step]
        if value is None:
            del inner[path[-1]]
        else:
            inner[path[-1]] = value
        if "kind" in changed and "name" in changed.get("metadata", {}):
            yield changed


def _others(tree, path):
    value = tree
    for step in path:
        value = value[step]
    match value:
        case bool():
            return [not value]
        case int():
            return [value * 1000 + 7]
        case str():
            return ["flipped"]
    return ["x"]
