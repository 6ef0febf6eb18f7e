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
    "alarm": set(),
    "budget": set(),
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
    "engines": {"chat", "errors", "flights", "records"},
    "kit": {
        "chat", "engines", "errors", "graph", "identity", "knowledge", "models", "records", "routing", "step",
    },
    "report": {"errors", "metrics", "records"},
    "work": {
        "arrow", "errors", "identity", "index", "kit", "memo", "models", "recipe", "records", "run", "step",
        "steps",
        "store",
    },
    "cluster_file": {"budget", "models", "step"},
    "rooms": {"cluster_file", "errors", "step", "work"},
    "placement": {"cluster_file", "errors", "models", "recipe", "step", "steps"},
    "routing": {"chat", "records"},
    "cluster": {
        "alarm", "cluster_file", "engines", "errors", "identity", "models", "records", "rooms", "run",
        "step", "work",
    },
    "catalogue": {"records", "store"},
    "request": {"arrow", "degrade", "identity", "index", "recipe", "records", "run", "step"},
    "ingest": {"arrow", "readers", "records", "report", "store", "work"},
    "pipeline": {
        "arrow", "attempts", "identity", "index", "memo", "recipe", "records", "report", "run", "step",
        "steps", "store", "work",
    },
    "attempts": {"run", "store"},
    "stale": {"knowledge", "memo", "pipeline", "recipe", "records", "step", "steps", "work"},
    "gather": {"arrow", "index", "metrics", "pipeline", "records", "report"},
    "judge": {"chat", "metrics", "records", "step", "text"},
    "overhear": {"chat", "knowledge", "records", "request", "step"},
    "online": {
        "arrow", "catalogue", "chat", "degrade", "errors", "index", "memo", "overhear", "pipeline", "recipe",
        "records", "release", "report", "request", "run", "step", "store",
    },
    "kit_serve": {"chat", "errors", "kit", "knowledge", "records", "step"},
    "live": {"degrade", "errors", "online", "plain", "release", "request", "store"},
    "access": {"errors"},
    "harness": {"errors", "records"},
    "service": {"access", "catalogue", "errors", "online", "readers", "recipe", "records", "report"},
    "deploy": {
        "access", "chat", "degrade", "errors", "kit", "kit_serve", "live", "online", "recipe", "records",
        "service", "step", "work",
    },
    "plain": {"errors", "recipe", "step"},
    "manifest": {"conf", "errors", "identity", "metrics", "recipe", "records", "report", "step", "store"},
    "plan": {
        "arrow", "ingest", "knowledge", "manifest", "memo", "pipeline", "readers", "recipe", "records",
        "report", "stale", "step", "steps", "store", "text", "work",
    },
    "why": {
        "arrow", "errors", "identity", "index", "kit", "manifest", "memo", "pipeline", "plain", "recipe",
        "records", "run", "step", "store",
    },
    "release": {
        "arrow", "conf", "errors", "identity", "index", "manifest", "memo", "pipeline", "plain", "recipe",
        "records", "store",
    },
    "letters": {"budget", "errors", "pipeline", "records", "work"},
    "account": {"manifest", "pipeline", "plain", "plan", "recipe", "records", "report", "work"},
    "evaluate": {
        "account", "arrow", "attempts", "errors", "gather", "ingest", "judge", "kit", "letters", "manifest",
        "memo",
        "metrics", "pipeline", "plan", "readers", "records", "report", "run", "steps", "store", "stale",
    },
}  # fmt: skip
HEAVY = {
    "ray": {"cluster", "engines", "deploy"},
    "fastapi": {"service", "deploy"},
    "torch": {"models"},
    "FlagEmbedding": {"models"},
    "vllm": {"models"},
    "transformers": {"models"},
    "lancedb": {"store", "index", "memo"},
    "lance": {"store", "index", "memo"},
}


def unit(path: Path) -> str:
    first = path.relative_to(SRC).parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path.name}: relative import"
            names |= (
                {f"{node.module}.{a.name}" for a in node.names} if node.module == "raypipe" else {node.module}
            )
    return names


MODULES = sorted(p for p in SRC.rglob("*.py") if unit(p) not in ("__init__", "__main__", "cli"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SRC)))
def test_a_module_imports_only_what_lies_below_it(path):
    me = unit(path)
    assert me in ALLOWED, f"{me} has no place in the layers: give it one here and in docs/architecture.md"
    ours = {n.split(".")[1] for n in imported(path) if n.startswith("raypipe.")}
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
