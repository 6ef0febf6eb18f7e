"""Imports point down: the drawing in docs/architecture.md, held by reading every import in the package."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "raypipe"

# module or package -> what of raypipe it may import. Anything that is not listed here fails.
ALLOWED: dict[str, set[str]] = {
    "records": set(),
    "errors": set(),
    "conf": {"errors"},
    "arrow": {"records"},
    "chat": {"records"},
    "knowledge": {"records"},
    "flights": set(),
    "cluster.alarm": set(),
    "cluster.budget": set(),
    "step": {"chat", "knowledge", "records"},
    "identity": {"knowledge", "records", "step"},
    "text": {"chat", "knowledge", "records", "step", "errors"},
    "graph": {"knowledge", "records", "step", "text", "errors"},
    "metrics": {"records", "text", "errors"},
    "steps": {"text", "records", "step", "errors", "arrow", "chat", "knowledge"},
    "readers": {"records", "errors"},
    "synth": {"records", "errors"},
    "download": {"errors"},
    "remote": {"errors", "records"},
    "recipe": {"conf", "errors", "identity", "records", "step", "steps"},
    "memo": {"chat", "flights", "identity", "knowledge", "records", "step", "store"},
    "resolve": {"chat", "conf", "errors", "graph", "knowledge", "models", "step", "steps", "text"},
    "degrade": {"errors", "recipe", "records", "step", "steps"},
    "run": {"arrow", "degrade", "errors", "flights", "memo", "recipe", "records", "step", "steps"},
    "store": {"arrow", "errors", "records"},
    "index": {"arrow", "errors", "identity", "records", "step", "store"},
    "models": {"chat", "errors", "records", "step", "conf", "text"},
    "cluster.engines": {"chat", "errors", "flights", "records"},
    "cluster.routing": {"chat", "records"},
    "kit": {
        "chat", "cluster.engines", "cluster.routing", "errors", "graph", "identity", "knowledge", "models",
        "records", "step",
    },
    "report": {"errors", "metrics", "records"},
    "work": {
        "arrow", "errors", "identity", "index", "kit", "memo", "models", "recipe", "records", "run", "step",
        "steps",
        "store",
    },
    "cluster": set(),
    "cluster.file": {"cluster.budget", "models", "step"},
    "cluster.rooms": {"cluster.file", "errors", "step", "work"},
    "cluster.placement": {"cluster.file", "errors", "models", "recipe", "step", "steps"},
    "cluster.pools": {
        "cluster.alarm", "cluster.engines", "cluster.file", "cluster.rooms", "errors", "identity", "models",
        "records", "run", "step", "work",
    },
    "ingest": {"arrow", "readers", "records", "report", "store", "work"},
    "pipeline": {
        "arrow", "attempts", "identity", "index", "memo", "recipe", "records", "report", "run", "step",
        "steps", "store", "work",
    },
    "attempts": {"run", "store"},
    "online": {
        "arrow", "chat", "degrade", "errors", "identity", "index", "kit", "knowledge", "memo", "pipeline",
        "plain", "recipe", "records", "release", "report", "run", "step", "store",
    },
    "access": {"errors"},
    "harness": {"errors", "records"},
    "service": {"access", "errors", "online", "readers", "recipe", "records", "report"},
    "deploy": {
        "access", "chat", "degrade", "errors", "kit", "online", "recipe", "records",
        "service", "step", "work",
    },
    "plain": {"errors", "recipe", "step"},
    "manifest": {"conf", "errors", "identity", "metrics", "recipe", "records", "report", "step", "store"},
    "plan": {
        "arrow", "ingest", "knowledge", "manifest", "memo", "pipeline", "readers", "recipe", "records",
        "report", "step", "steps", "store", "text", "work",
    },
    "why": {
        "arrow", "errors", "identity", "index", "kit", "manifest", "memo", "pipeline", "plain", "recipe",
        "records", "run", "step", "store",
    },
    "release": {
        "arrow", "conf", "errors", "identity", "index", "manifest", "memo", "pipeline", "plain", "recipe",
        "records", "store",
    },
    "evaluate": {
        "arrow", "attempts", "chat", "cluster.budget", "errors", "index", "ingest", "kit", "knowledge",
        "manifest", "memo", "metrics", "pipeline", "plain", "plan", "readers", "recipe", "records", "report",
        "run", "step", "steps", "store", "text", "work",
    },
}  # fmt: skip
HEAVY = {
    "ray": {"cluster.engines", "cluster.pools", "deploy"},
    "fastapi": {"service", "deploy"},
    "torch": {"models"},
    "FlagEmbedding": {"models"},
    "vllm": {"models"},
    "transformers": {"models"},
    "lancedb": {"store", "index", "memo"},
    "lance": {"store", "index", "memo"},
}


APART = {"cluster"}  # packages whose modules have a place of their own: who needs one needs no Ray


def unit(path: Path) -> str:
    parts = [p.removesuffix(".py") for p in path.relative_to(SRC).parts]
    return layer(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def layer(parts: list[str]) -> str:
    return ".".join(parts[: 2 if parts[0] in APART else 1])


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path.name}: relative import"
            whole = node.module in {"raypipe", *(f"raypipe.{p}" for p in APART)}
            names |= {f"{node.module}.{a.name}" for a in node.names} if whole else {node.module}
    return names


MODULES = sorted(p for p in SRC.rglob("*.py") if unit(p) not in ("__init__", "__main__", "cli"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SRC)))
def test_a_module_imports_only_what_lies_below_it(path):
    me = unit(path)
    assert me in ALLOWED, f"{me} has no place in the layers: give it one here and in docs/architecture.md"
    ours = {layer(n.split(".")[1:]) for n in imported(path) if n.startswith("raypipe.")}
    assert ours <= ALLOWED[me] | {me}


@pytest.mark.parametrize("library", HEAVY)
def test_a_heavy_library_is_imported_in_one_place_only(library):
    found = {unit(p) for p in MODULES if any(n.split(".")[0] == library for n in imported(p))}
    assert found <= HEAVY[library]


def test_the_layers_have_no_cycle():
    done: set[str] = set()
    while len(done) < len(ALLOWED):
        ready = {m for m, below in ALLOWED.items() if m not in done and below <= done}
        assert ready, f"a cycle among {sorted(set(ALLOWED) - done)}"
        done |= ready
