"""Code from outside, named where it is used: `mypkg.steps:Shout`.

A module of that name is imported from the Python path; the command line puts the current folder on it. Part
of its identity is the digest of its source file and of what that imports from its own package, or from next
to it, however deep. Installed packages that it imports are none of it, nor are files of data. Knows modules
alone: the form of a step, a reader, a metric or a loader is checked where one is asked for.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError

_NAME = r"[A-Za-z_]\w*"
_PATH = re.compile(rf"\A({_NAME}(?:\.{_NAME})*):({_NAME})")
_SOURCE = "__raypipe_source__"  # on a module: digest of its file when it was imported


@dataclass(frozen=True, slots=True)
class Plugin:
    """An object imported from outside, for identity and messages."""

    path: str  # MODULE:NAME
    source: str  # digest of its source file and of the own modules that it imports, 32 hex digits

    @property
    def name(self) -> str:
        return self.path.partition(":")[2]

    @property
    def package(self) -> str:
        return self.path.partition(":")[0].partition(".")[0]


def is_path(text: object) -> bool:
    """Returns whether a text names something outside, rather than something that raypipe ships.

    >>> is_path("mypkg.steps:Shout"), is_path("rerank"), is_path("C:\\\\data")
    (True, False, False)
    """
    return isinstance(text, str) and _PATH.fullmatch(text) is not None


def load(path: str, what: str) -> tuple[Any, Plugin]:
    """Imports what a path names. `what`: what is expected there, for messages: "a step".

    Raises ConfError for a path of another form, a module that is not found or raises, a name that it has not,
    and a file, of it or of what it imports, that changed after it was imported.
    """
    importlib.invalidate_caches()  # a file that was written a moment ago
    # Bytecode counts as fresh by the second and the size of its source: an edit within that second that keeps
    # the size would run old code under the digest of the new.
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        found, module = _found(path, what)
    finally:
        sys.dont_write_bytecode = written
    home = sys.modules.get(getattr(found, "__module__", ""), module)  # where it is written
    return found, Plugin(path, _source(home, path))


def find(path: str, what: str) -> Any:
    """Imports what a path in an installed package names, whatever its source. Raises as `load`."""
    return _found(path, what)[0]


def _found(path: str, what: str) -> tuple[Any, ModuleType]:
    match = _PATH.fullmatch(path)
    if match is None:
        raise ConfError(f"{path!r}: expected {what} as MODULE:NAME, such as mypkg.steps:Shout")
    module, name = _imported(match[1], path, what), match[2]
    if not hasattr(module, name):
        hint = did_you_mean(name, [n for n in vars(module) if not n.startswith("_")])
        raise ConfError(f"{path}: expected {what}, {module.__file__} has no {name!r}; {hint}")
    return getattr(module, name), module


def _imported(name: str, path: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name is None or not f"{name}.".startswith(f"{e.name}."):
            raise ConfError(f"{path}: its module imports {e.name!r}, which is not installed") from e
        raise ConfError(
            f"{path}: expected {what}, found no module {e.name!r}. Run raypipe in the folder that holds it "
            f"(this is {Path.cwd()}), or install it"
        ) from e
    except Exception as e:
        raise ConfError(f"{path}: its module raises on import: {type(e).__name__}: {e}") from e


def _source(module: ModuleType, path: str) -> str:
    file = inspect.getsourcefile(module)
    if file is None or not Path(file).is_file():
        raise ConfError(f"{path}: expected a module with a source file: its digest is identity. Found none")
    whole = hashlib.blake2b(digest_size=16)
    own = _own_modules(module.__name__, Path(file))
    for name, content in sorted(own.items(), key=lambda item: (item[0] != module.__name__, item[0])):
        now = hashlib.blake2b(content, digest_size=16).hexdigest()
        imported = vars(sys.modules[name]) if name in sys.modules else {}
        if imported.setdefault(_SOURCE, now) != now:
            file = imported.get("__file__", file)
            raise ConfError(f"{path}: {file} changed after this process imported it. Start raypipe again")
        whole.update(content if name == module.__name__ else f"\0{name}\0{now}".encode())
    return whole.hexdigest()


def _own_modules(name: str, file: Path) -> dict[str, bytes]:
    """Module -> source, of a module and of all that it imports, at any depth, from its package or from the
    folder that this stands in. Packages without code are left out."""
    folder, top = file.parents[name.count(".") + (file.name == "__init__.py")], name.partition(".")[0]
    alone = folder in {Path(sysconfig.get_path(p)) for p in ("stdlib", "purelib", "platlib")}
    found, left = {name: file.read_bytes()}, [(name, file)]
    while left:
        for other in _imports(*left.pop()):
            place = folder.joinpath(*other.split("."))
            source = next((p for p in (place.with_suffix(".py"), place / "__init__.py") if p.is_file()), None)
            if source is None or other in found or (alone and other.partition(".")[0] != top):
                continue
            if (content := source.read_bytes()).strip():
                found[other] = content
                left.append((other, source))
    return found


def _imports(name: str, file: Path) -> Iterator[str]:
    """Names that may be modules, of all import statements of a module, those in functions too, and of the
    packages that it stands in."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    yield from (name[: m.start()] for m in re.finditer(r"\.", name))
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # where it is imported, that says so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            named = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for full in named:
            yield from (full[: m.start()] for m in re.finditer(r"\.|$", full))


def modules_of(plugin: Plugin) -> list[ModuleType]:
    """The imported modules of its package: what another process needs, where it cannot import them."""
    top = plugin.package
    return [m for n, m in list(sys.modules.items()) if n == top or n.startswith(f"{top}.")]
