"""Code from outside raypipe: single objects, and plugin folders that add names to raypipe.

A single object is named where it is used, such as `mypkg.steps:Shout`. Its module is imported from the Python
path, to which the command line adds the current folder. A digest of the source is part of the object's
identity. The digest covers the object's file and, at any depth, the modules that the file imports from its
own package or folder. It covers neither other installed packages nor data files.

A plugin folder adds names by one table (PluginTable). Any installed package can declare such a table as an
entry point of the group `raypipe.plugins`. The table maps each name to the MODULE:NAME of an object. Reading
the names imports only the tables. An object is imported when it is needed, and checked by the code that needs
it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError, DataError, RaypipeError, is_full

_NAME = r"[A-Za-z_]\w*"
_PATH = re.compile(rf"\A({_NAME}(?:\.{_NAME})*):({_NAME})")
_SOURCE = "__raypipe_source__"  # attribute of a module: digest of its file at import


@dataclass(frozen=True, slots=True)
class Plugin:
    """Path and source digest of an object imported from outside raypipe. Identities and messages use them."""

    path: str  # MODULE:NAME
    source: str  # digest of its source file and of the own modules that the file imports, 32 hex digits

    @property
    def name(self) -> str:
        return self.path.partition(":")[2]

    @property
    def package(self) -> str:
        return self.path.partition(":")[0].partition(".")[0]


def is_path(text: object) -> bool:
    """Returns whether a text has the form MODULE:NAME of an object from outside.

    >>> is_path("mypkg.steps:Shout"), is_path("rerank"), is_path("C:\\\\data")
    (True, False, False)
    """
    return isinstance(text, str) and _PATH.fullmatch(text) is not None


def load(path: str, what: str) -> tuple[Any, Plugin]:
    """Imports the object at `path`, and computes its digest. `what` is the expected kind, for messages.

    Raises ConfError if the path has another form, if the module is missing, raises or lacks the name, if it
    has no source file, and if a file that the digest covers changed after this process imported it.
    """
    importlib.invalidate_caches()  # finds a file that was written a moment ago
    # Python accepts bytecode by the size of its source and its time in whole seconds. An edit of equal size
    # within that second would run old code under the digest of the new.
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        found, module = _found(path, what)
    finally:
        sys.dont_write_bytecode = written
    home = sys.modules.get(getattr(found, "__module__", ""), module)  # the module that defines it
    return found, Plugin(path, _source(home, path))


def find(path: str, what: str) -> Any:
    """Imports the object that a path names, without a digest. Raises ConfError if there is none."""
    return _found(path, what)[0]


def _found(path: str, what: str) -> tuple[Any, ModuleType]:
    match = _PATH.fullmatch(path)
    if match is None:
        raise ConfError(f"{path!r}: expected {what} as MODULE:NAME, such as mypkg.steps:Shout")
    name = match[2]
    try:
        module = importlib.import_module(match[1])
    except ModuleNotFoundError as e:
        if e.name is None or not f"{match[1]}.".startswith(f"{e.name}."):
            raise ConfError(f"{path}: its module imports {e.name!r}, which is not installed") from e
        raise ConfError(
            f"{path}: expected {what}, found no module {e.name!r}. Run raypipe in the folder that holds it "
            f"(this is {Path.cwd()}), or install it"
        ) from e
    except Exception as e:
        raise ConfError(f"{path}: its module raises on import: {type(e).__name__}: {e}") from e
    if not hasattr(module, name):
        hint = did_you_mean(name, [n for n in vars(module) if not n.startswith("_")])
        raise ConfError(f"{path}: expected {what}, {module.__file__} has no {name!r}; {hint}")
    return getattr(module, name), module


def _source(module: ModuleType, path: str) -> str:
    file = inspect.getsourcefile(module)
    if file is None or not Path(file).is_file():
        raise ConfError(
            f"{path}: expected a module with a source file, whose digest identifies it; found none"
        )
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
    """Returns the sources of a module and of its own imports, at any depth, by module name. An import is the
    module's own if it lies in the same package or folder. In a folder of installed packages, only the same
    package counts. Empty files are left out."""
    folder, top = file.parents[name.count(".") + (file.name == "__init__.py")], name.partition(".")[0]
    installed = folder in {Path(sysconfig.get_path(p)) for p in ("stdlib", "purelib", "platlib")}
    found, pending = {name: file.read_bytes()}, [(name, file)]
    while pending:
        for other in _imports(*pending.pop()):
            place = folder.joinpath(*other.split("."))
            source = next((p for p in (place.with_suffix(".py"), place / "__init__.py") if p.is_file()), None)
            if source is None or other in found or (installed and other.partition(".")[0] != top):
                continue
            if (content := source.read_bytes()).strip():
                found[other] = content
                pending.append((other, source))
    return found


def _imports(name: str, file: Path) -> Iterator[str]:
    """Yields possible names of modules: all that a module imports, even in functions, and its packages."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    yield from (name[: m.start()] for m in re.finditer(r"\.", name))
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # importing the module reports it
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


@contextmanager
def own_code(what: str, path: str, place: str, expected: str) -> Iterator[None]:
    """Turns an exception of the user's object at `path`, called in the block, into a DataError with its line.
    `what`, `place` and `expected` are words for the message, such as a kind, a question, and values. Errors
    of raypipe and of a full disk stay as they are, and so do all if `path` is ""."""
    try:
        yield
    except Exception as e:
        if not path or isinstance(e, RaypipeError) or is_full(e):
            raise
        frames = traceback.extract_tb(e.__traceback__)[2:]  # without this block and its caller's call
        file = getattr(sys.modules.get(path.partition(":")[0]), "__file__", None)
        at = next((f for f in reversed(frames) if f.filename == file), frames[0] if frames else None)
        line = f" at {at.filename}:{at.lineno}" if at is not None else ""
        found = f"found {type(e).__name__}: {e}{line}"
        raise DataError(f"{what} {path}, {place}: expected {expected}, {found}. Correct this code") from e


def modules_of(plugin: Plugin) -> list[ModuleType]:
    """Returns the imported modules of a plugin's package, to send to processes that cannot import them."""
    top = plugin.package
    return [m for n, m in list(sys.modules.items()) if n == top or n.startswith(f"{top}.")]


GROUP = "raypipe.plugins"
"""Group of entry points: NAME = "MODULE:NAME of a PluginTable"."""

T = TypeVar("T")
Names: TypeAlias = Mapping[str, str]
"""Name -> MODULE:NAME of its object."""


@dataclass(frozen=True, slots=True)
class Command:
    group: str  # group in `raypipe --help`: data, run, look, release, serve or tools
    module: str  # module that declares this and maybe other commands (`api.cli.command.command`)
    about: str  # one line that begins with a verb


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginTable:
    """Names that one plugin adds to raypipe, by kind."""

    corpus_steps: Names = field(default_factory=dict)
    """Verb of a recipe's corpus half -> class of the step."""
    question_steps: Names = field(default_factory=dict)
    """Verb of a recipe's question half -> class of the step."""
    entries: Names = field(default_factory=dict)
    """Kind of an entry of graphs.yaml -> its type, a core.references.Reference."""
    files: Names = field(default_factory=dict)
    """Folder of conf -> dataclass of the YAML files in it."""
    readers: Names = field(default_factory=dict)
    """Format of data -> a readers.formats.LineFormat, or a function that reads a file."""
    markers: Mapping[str, str] = field(default_factory=dict)
    """Name of a file -> format of the folder that holds it."""
    loss_stages: Names = field(default_factory=dict)
    """Verb of a step -> the evaluation.loss_paths.EvidencePath that begins with the step."""
    loss_places: Mapping[str, str] = field(default_factory=dict)
    """Place on a path of `loss_stages` -> description of the golds that are lost there."""
    datasets: Names = field(default_factory=dict)
    """Name -> function that writes an invented dataset into a folder."""
    forgets: Names = field(default_factory=dict)
    """Kind of a folder outside a store -> evaluation.forgotten.TextFolders."""
    commands: Mapping[str, Command] = field(default_factory=dict)
    """Name of a command -> its group, module and description."""
    conf: str = ""  # folder of configuration, searched last; "": none
    locked: bool = False
    """True: a file steps.lock pins the versions of its steps, as one does for raypipe's own. A step is then
    known by class name and version. Otherwise its path and source digest are also part of its identity."""


@dataclass(frozen=True, slots=True)
class PluginEntry:
    plugin: str  # name of its entry point
    table: PluginTable
    value: Any  # MODULE:NAME, mostly

    def load(self, what: str) -> Any:
        """Imports the object of `value`. `what` is its expected kind, for messages. Raises ConfError."""
        return find(self.value, what)


@functools.cache
def tables() -> Mapping[str, PluginTable]:
    """Returns plugin name -> table of all installed plugins. Raises ConfError if a table is wrong or cannot
    be imported, and if two plugins have the same name."""
    import tomllib  # only plugins need this and the next import
    from importlib.metadata import entry_points  # 20 ms

    # A checkout's own plugins come from its pyproject.toml: the metadata of an editable install are as old as
    # the install, and a source tree has none.
    project = Path(__file__).parents[3] / "pyproject.toml"
    said = tomllib.loads(project.read_text(encoding="utf-8"))["project"] if project.is_file() else {}
    here = said.get("name") == "raypipe"
    points = [(n, path, str(project)) for n, path in said["entry-points"][GROUP].items()] if here else []
    for point in entry_points(group=GROUP):
        distribution = "?" if point.dist is None else point.dist.name
        if not (here and distribution == "raypipe"):
            points.append((point.name, point.value, distribution))
    found: dict[str, PluginTable] = {}
    for name, path, whence in points:
        plugin = f"plugin {name!r} of {whence}"
        if name in found:
            raise ConfError(f"{plugin}: another plugin has that name. Uninstall one of them")
        try:
            table = find(path, "a PluginTable")
        except ConfError as e:
            raise ConfError(f"{plugin}: {e}. Correct it, or uninstall it") from e
        if not isinstance(table, PluginTable):
            raise ConfError(f"{plugin}: expected a PluginTable, found {table!r:.80}")
        if table.conf and not Path(table.conf).is_dir():
            raise ConfError(f"{plugin}: conf: expected a folder, found no {table.conf}")
        found[name] = table
    return found


@functools.cache
def registered(kind: str) -> Mapping[str, PluginEntry]:
    """Returns the names that all plugins add to one field of PluginTable, with their entries. `kind` is the
    name of the field. Raises ConfError if two plugins add the same name."""
    found: dict[str, PluginEntry] = {}
    for plugin, table in tables().items():
        for name, value in getattr(table, kind).items():
            if name in found:
                raise ConfError(f"plugins {found[name].plugin!r} and {plugin!r} both add {kind} {name!r}")
            found[name] = PluginEntry(plugin, table, value)
    return found


def conf_folders() -> list[Path]:
    return [Path(table.conf) for table in tables().values() if table.conf]


class Registry(Mapping[str, T]):
    """Names of one kind: raypipe's own, then the plugins'. A look-up of an own name reads no plugin."""

    def __init__(self, kind: str, own: Mapping[str, T], what: str) -> None:
        """Combines raypipe's own names with the plugins' names. `kind` is a field of PluginTable. `own` maps
        names to objects. `what` is a phrase for such an object in messages, such as "a step"."""
        self._kind, self.own, self._what = kind, own, what

    def __getitem__(self, name: str) -> T:
        found = self.added(name)
        if found is None:
            return self.own[name]
        value: T = found.load(self._what) if isinstance(found.value, str) else found.value
        return value

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self._added()

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from self._added()

    def __len__(self) -> int:
        return len(self.own) + len(self._added())

    def added(self, name: str) -> PluginEntry | None:
        """Returns the plugin's entry for `name`, or None if the name is raypipe's own. Raises KeyError if the
        name is unknown."""
        return None if name in self.own else self._added()[name]

    def _added(self) -> Mapping[str, PluginEntry]:
        found = registered(self._kind)
        if taken := sorted(found.keys() & self.own.keys()):
            whose = found[taken[0]].plugin
            raise ConfError(f"plugin {whose!r} adds {self._kind} {taken[0]!r}, which raypipe has: rename it")
        return found
