"""Imports point down: one list of layers, held by reading every import.

`python tests/laws/test_layers.py` prints it.
"""

import ast
import functools
from pathlib import Path

# From the bottom up. A module imports its own package and packages of lower layers, nothing else of raypipe.
LAYERS: tuple[dict[str, str], ...] = (
    {"core": "records, errors, configuration values, protocols, digests, progress, plugin tables"},
    {"text": "pure functions on text"},
    {
        "store": "tables, exactly-once commits, leases, the index; the memo: values cached by key",
        "readers": "files to records",
    },
    {
        "models": "catalog, loaders, encoders, the vLLM engine and its actors, routing, the kit",
        "steps": "the verbs of recipes",
        "metrics": "predictions and truths to numbers",
    },
    {"recipes": "reading, resolving and executing a recipe in one process, deadlines"},
    {"runs": "what tables lack, cut into tasks, committed once; plan, report, release, prune; cluster"},
    {
        "evaluation": "dataset to scored report; files, one HTML page, console tables, the viewer",
        "serving": "answering one question: HTTP, Ray Serve",
    },
    {"api": "the session, and what `import raypipe` gives; the command line"},
    {"contrib": "plugin folders: CRAG's graph, labels and training, the invented world"},
)  # fmt: skip
SRC = Path(__file__).parents[2] / "src" / "raypipe"  # also where this file is run as a script
LEVEL = {package: n for n, layer in enumerate(LAYERS, 1) for package in layer}
UP = {"serving": {"http.app": "report.web_page"}}
"""Package -> its modules that import what lies higher, in evaluation. The arrow is to end: the page of the
endpoint is made as those of runs are."""

# Which packages may import a heavy library. `store` is the only one that knows LanceDB.
HEAVY = {
    "ray": {"models", "runs", "serving", "api", "contrib"},  # api: the type of Serve's application
    "fastapi": {"serving", "contrib"},  # contrib: the mock server
    "uvicorn": {"contrib"},
    "torch": {"models", "contrib"},
    "FlagEmbedding": {"models"},
    "vllm": {"models"},
    "transformers": {"models", "contrib"},
    "peft": {"contrib"},
    "lancedb": {"store"},
    "lance": {"store"},
}


def package(dotted: str) -> str:
    """The package in LAYERS that a module belongs to.

    >>> package("contrib.crag.link"), package("core.records")
    ('contrib', 'core')
    """
    return dotted.split(".")[0]


def up(path: Path) -> set[str]:
    """What a module imports of evaluation though it lies below."""
    me, _, module = name(path).partition(".")
    return {f"raypipe.evaluation.{m}" for m in UP.get(me, {}).get(module, "").split()}


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
    allowed = tuple(up(path)) or ("-",)
    names = {n for n in imported(path) if n.startswith("raypipe.") and not n.startswith(allowed)}
    return {package(n.removeprefix("raypipe.")) for n in names}


MODULES = sorted(p for p in SRC.rglob("*.py") if p.parent != SRC)


def test_a_module_imports_only_lower_layers():
    wrong = []
    for path in MODULES:
        me = package(name(path))
        assert me in LEVEL, f"{me} has no place in LAYERS: give it one here and in docs/architecture.md"
        above = {p for p in ours(path) - {me} if LEVEL.get(p, len(LAYERS)) >= LEVEL[me]}
        wrong += [f"{name(path)} (layer {LEVEL[me]}) imports {sorted(above)}"] if above else []
    assert wrong == []


def test_an_import_that_runs_up_is_listed_for_as_long_as_it_is_there():
    gone = [f"{name(p)}: {old}" for p in MODULES for old in up(p) if not str(imported(p)).count(f"'{old}")]
    assert gone == []


def test_the_core_has_no_name_of_a_plugin_folder_in_its_text():
    core = [p for p in SRC.rglob("*.py") if package(name(p)) != "contrib"]
    assert len(core) > 300
    assert not [name(p) for p in core if "raypipe.contrib" in p.read_text()]


def test_a_heavy_library_is_imported_by_its_packages_alone():
    importing = {(n.split(".")[0], package(name(p))) for p in MODULES for n in imported(p)}
    assert sorted((lib, at) for lib, at in importing if lib in HEAVY and at not in HEAVY[lib]) == []


def test_no_module_lies_loose_beside_the_packages():
    assert {p.name for p in SRC.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_a_package_says_what_it_gives_in_at_most_forty_lines():
    lines = {name(p): p.read_text().count("\n") for p in MODULES if p.name == "__init__.py"}
    assert {package: n for package, n in lines.items() if n > 40} == {}


if __name__ == "__main__":
    for n, layer in reversed(list(enumerate(LAYERS, 1))):
        for at, (pack, says) in enumerate(layer.items()):
            print(f"{n if at == 0 else '':>3}  {pack:<12} {says}")
