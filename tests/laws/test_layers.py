"""Imports point down: one list of layers, held by reading every import.

`python tests/laws/test_layers.py` prints it.
"""

import ast
import functools
import itertools
import re
from collections.abc import Iterator
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
)
SRC = Path(__file__).parents[2] / "src" / "raypipe"  # also where this file is run as a script
LEVEL = {package: n for n, layer in enumerate(LAYERS, 1) for package in layer}
# Which packages may import a heavy library. `store` is the only one that knows LanceDB.
HEAVY = {
    "ray": {"models", "runs", "serving", "api", "contrib"},  # api: the type of Serve's application
    "fastapi": {"serving", "contrib"},  # contrib: the mock server
    "uvicorn": {"contrib"},
    "mcp": {"serving"},
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


def name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path.name}: relative import"
            found |= {f"{node.module}.{a.name}" for a in node.names}
    return found


def ours(path: Path) -> set[str]:
    names = {n for n in imported(path) if n.startswith("raypipe.")}
    return {package(n.removeprefix("raypipe.")) for n in names}


MODULES = sorted(p for p in SRC.rglob("*.py") if p.parent != SRC)
NAMES = {f"raypipe.{name(p)}" for p in MODULES}


def test_a_module_imports_only_lower_layers():
    wrong = []
    for path in MODULES:
        me = package(name(path))
        assert me in LEVEL, f"{me} has no place in LAYERS: give it one here and in docs/architecture.md"
        above = {p for p in ours(path) - {me} if LEVEL.get(p, len(LAYERS)) >= LEVEL[me]}
        wrong += [f"{name(path)} (layer {LEVEL[me]}) imports {sorted(above)}"] if above else []
    assert wrong == []


def test_the_map_of_packages_has_the_imports_of_each():
    page = (SRC.parents[1] / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| [\d ]*\| `(\w+)` \| .* \|(.*)\|$", page, re.MULTILINE)
    assert [package for package, _ in rows] == list(LEVEL)
    for n, (me, cell) in enumerate(rows):
        listed, _, missing = cell.partition(" but ")
        words = set(re.findall(r"\w+", listed))
        stated = {p for p, _ in rows[:n]} if words == {"all", "above"} else words
        found = set().union(*(ours(p) for p in MODULES if package(name(p)) == me)) - {me}
        assert stated - set(re.findall(r"\w+", missing)) == found, me


def run_imports(path: Path) -> set[str]:
    """The modules of raypipe that a module imports when it runs, within functions, too: none that typing
    alone needs."""

    def walk(node: ast.AST) -> Iterator[ast.AST]:
        yield node
        for child in ast.iter_child_nodes(node):
            if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
                yield from walk(child)

    found: set[str] = set()
    for node in walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            named = (f"{node.module}.{a.name}" for a in node.names)
            found |= {n if n in NAMES else node.module for n in named}
    return {n.removeprefix("raypipe.") for n in found & NAMES}


def test_no_modules_import_each_other_in_a_circle():
    """Of strongly connected modules each reaches all others."""
    graph = {name(p): run_imports(p) for p in MODULES}
    reached: dict[str, set[str]] = {}
    for module in graph:
        reached[module], left = set(), [module]
        while left:
            new = graph[left.pop()] - reached[module]
            reached[module] |= new
            left += new
    circles = {frozenset(m for m in reached[n] if n in reached[m]) for n in graph if n in reached[n]}
    assert sorted(map(sorted, circles)) == []


def unexplained(path: Path) -> Iterator[int]:
    """Lines of imports within functions that have no comment: on a line of theirs, or right above."""
    lines = path.read_text().splitlines()
    for function in ast.walk(parsed(path)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            blocks = (getattr(n, name, ()) for n in ast.walk(function) for name in ("body", "orelse"))
            for block in (b for b in blocks if isinstance(b, list)):
                runs = itertools.groupby(block, lambda n: isinstance(n, ast.Import | ast.ImportFrom))
                for run in (list(nodes) for imports, nodes in runs if imports):
                    first, last = run[0].lineno, run[-1].end_lineno
                    above = lines[first - 2].lstrip().startswith("#")
                    if not above and "#" not in "".join(lines[first - 1 : last]):
                        yield first


def test_an_import_within_a_function_says_why_it_is_there():
    """By a comment, or its module's docstring does, which then has the word `imported`. The package of the
    command line says it for all of its modules."""
    bare = set()
    for path in (p for p in MODULES if p.parent != SRC / "api/cli"):
        if "imported" not in (ast.get_docstring(parsed(path)) or ""):
            bare |= {f"{name(path)}:{line}" for line in unexplained(path)}
    assert sorted(bare) == []


def test_the_core_has_no_name_of_a_plugin_folder_in_its_text():
    core = [p for p in SRC.rglob("*.py") if package(name(p)) != "contrib"]
    assert len(core) > 100
    assert not [name(p) for p in core if "raypipe.contrib" in p.read_text()]


def test_a_heavy_library_is_imported_by_its_packages_alone():
    importing = {(n.split(".")[0], package(name(p))) for p in MODULES for n in imported(p)}
    assert sorted((lib, at) for lib, at in importing if lib in HEAVY and at not in HEAVY[lib]) == []


def test_no_module_lies_loose_beside_the_packages():
    assert {p.name for p in SRC.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_a_package_says_what_it_gives_in_at_most_forty_lines():
    every = [*MODULES, SRC / "__init__.py"]
    lines = {str(p.relative_to(SRC)): p.read_text().count("\n") for p in every if p.name == "__init__.py"}
    assert {package: n for package, n in lines.items() if n > 40} == {}


if __name__ == "__main__":
    for n, layer in reversed(list(enumerate(LAYERS, 1))):
        for at, (pack, says) in enumerate(layer.items()):
            print(f"{n if at == 0 else '':>3}  {pack:<12} {says}")
