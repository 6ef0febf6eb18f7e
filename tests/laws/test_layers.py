"""Imports point down: one list of layers, held by reading every import.

`python tests/laws/test_layers.py` prints it.
"""

import ast
import functools
from pathlib import Path

import pytest

# From the bottom up. A module imports its own package and packages of lower layers, nothing else of raypipe.
LAYERS: tuple[dict[str, str], ...] = (
    {"core": "records, errors, configuration values, protocols, digests, single flight, plugin tables"},
    {
        "text": "pure functions on text",
        "store": "tables, exactly-once commits, leases, the index",
        "readers": "files to records",
    },
    {
        "memo": "embeddings, scores and replies, cached by value",
        "metrics": "predictions and truths to numbers",
    },
    {"steps": "one verb per file", "report": "files, one HTML page, console tables, progress"},
    {"models": "catalog, loaders, encoders, the vLLM engine and its actors, routing, the kit"},
    {"recipes": "reading, resolving and executing a recipe in one process, deadlines"},
    {"pipeline": "what each table lacks, cut into tasks, committed once"},
    {
        "runs": "plan, manifest, explain, changes, release, prune",
        "cluster": "cluster files, capacity, placement, pools",
    },
    {
        "evaluation": "dataset to scored report",
        "serving": "answering one question: HTTP, Ray Serve",
    },
    {"api": "the session, and what `import raypipe` gives"},
    {"cli": "argument parsing and printing"},
    {"contrib": "plugin folders: CRAG's graph, labels and training, the invented world"},
)  # fmt: skip
SRC = Path(__file__).parents[2] / "src" / "raypipe"  # also where this file is run as a script
LEVEL = {package: n for n, layer in enumerate(LAYERS, 1) for package in layer}

# Which packages may import a heavy library. `store` and `memo` are the only ones that know LanceDB.
HEAVY = {
    "ray": {"models", "cluster", "serving", "api", "contrib"},  # api: the type of Serve's application
    "fastapi": {"serving", "contrib"},  # contrib: the mock server
    "uvicorn": {"contrib"},
    "torch": {"models", "contrib"},
    "FlagEmbedding": {"models"},
    "vllm": {"models"},
    "transformers": {"models", "contrib"},
    "peft": {"contrib"},
    "lancedb": {"store", "memo"},
    "lance": {"store", "memo"},
}


def package(dotted: str) -> str:
    """The package in LAYERS that a module belongs to.

    >>> package("contrib.crag.link"), package("core.records")
    ('contrib', 'core')
    """
    return dotted.split(".")[0]


def name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path.name}: relative import"
            found |= {f"{node.module}.{a.name}" for a in node.names}
    return found


def ours(path: Path) -> set[str]:
    return {package(n.removeprefix("raypipe.")) for n in imported(path) if n.startswith("raypipe.")}


MODULES = sorted(p for p in SRC.rglob("*.py") if p.parent != SRC)


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_imports_only_lower_layers(path):
    me = package(name(path))
    assert me in LEVEL, f"{me} has no place in LAYERS: give it one here and in docs/architecture.md"
    above = {p for p in ours(path) - {me} if LEVEL.get(p, len(LAYERS)) >= LEVEL[me]}
    assert not above, f"{name(path)} (layer {LEVEL[me]}) imports {sorted(above)}"


def test_the_core_has_no_name_of_a_plugin_folder_in_its_text():
    core = [p for p in SRC.rglob("*.py") if package(name(p)) != "contrib"]
    assert len(core) > 300
    assert not [name(p) for p in core if "raypipe.contrib" in p.read_text()]


@pytest.mark.parametrize("library", HEAVY)
def test_a_heavy_library_is_imported_by_its_packages_alone(library):
    found = {package(name(p)) for p in MODULES if any(n.split(".")[0] == library for n in imported(p))}
    assert found <= HEAVY[library]


def test_no_module_lies_loose_beside_the_packages():
    assert {p.name for p in SRC.glob("*.py")} == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("path", [p for p in MODULES if p.name == "__init__.py"], ids=name)
def test_a_package_says_what_it_gives_in_at_most_forty_lines(path):
    assert path.read_text().count("\n") <= 40


if __name__ == "__main__":
    for n, layer in reversed(list(enumerate(LAYERS, 1))):
        for at, (pack, says) in enumerate(layer.items()):
            print(f"{n if at == 0 else '':>3}  {pack:<12} {says}")
