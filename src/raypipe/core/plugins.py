"""Code from outside: one object named where it is used, `mypkg.steps:Shout`, and folders of plugins, each of
which adds names to the core by one table.

A module of a path is imported from the Python path; the command line puts the current folder on it. Part of
its identity is the digest of its source file and of what that imports from its own package, or from next to
it, however deep. Installed packages that it imports are none of it, nor are files of data.

A table is found by the entry-point group `raypipe.plugins`, in any installed package. It has names and, for
each, the MODULE:NAME of what it stands for. Reading the names imports the tables alone; what a name stands
for is imported when it is asked for. Nothing here knows which plugins exist, nor the form of a step, a reader
or a metric: it is checked where one is asked for.
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

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


GROUP = "raypipe.plugins"
"""Group of entry points: NAME = "MODULE:NAME of a PluginTable"."""

T = TypeVar("T")
Names: TypeAlias = Mapping[str, str]
"""Name -> MODULE:NAME of what it stands for."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the command line."""

    group: str  # of `raypipe --help`: data, run, look, release, serve or tools
    module: str  # that declares it, and may declare others (`api.cli.command.command`)
    about: str  # one line that begins with a verb


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginTable:
    """The names that one plugin folder adds."""

    corpus_steps: Names = field(default_factory=dict)
    """Verb of a recipe -> class of a step."""
    question_steps: Names = field(default_factory=dict)
    """The same, of the question half."""
    entries: Names = field(default_factory=dict)
    """Kind of an entry of graphs.yaml -> its type, a core.references.Reference."""
    files: Names = field(default_factory=dict)
    """Folder of conf -> dataclass that the YAML files there hold."""
    readers: Names = field(default_factory=dict)
    """Format of data -> a readers.formats.LineFormat, or a function of a file."""
    markers: Mapping[str, str] = field(default_factory=dict)
    """Name of a file -> format of the folder that has it."""
    loss_stages: Names = field(default_factory=dict)
    """Verb -> evaluation.loss_paths.EvidencePath that begins with such a step."""
    loss_places: Mapping[str, str] = field(default_factory=dict)
    """Place on such a path -> what is said of golds lost there."""
    datasets: Names = field(default_factory=dict)
    """Name -> function that writes an invented data set into a folder."""
    forgets: Names = field(default_factory=dict)
    """Kind of a folder outside of a store -> evaluation.forgotten.TextFolders."""
    commands: Mapping[str, Command] = field(default_factory=dict)
    """Name of a command -> the group it is listed in, its module, and what it does."""
    conf: str = ""  # folder of configuration, which is looked through last; "": none
    locked: bool = False
    """A steps.lock holds its steps to their versions, as it does those of the core. Then a step is identified
    by the name of its class and its version. Else by its path and the digest of its source, too."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A name that a plugin adds."""

    plugin: str  # name of its entry point
    table: PluginTable
    value: Any  # MODULE:NAME, mostly

    def load(self, what: str) -> Any:
        """Imports what it stands for; `what` is expected there, for messages. Raises ConfError."""
        return find(self.value, what)


@functools.cache
def tables() -> Mapping[str, PluginTable]:
    """Name of a plugin -> its table. Raises ConfError for a table that cannot be imported, or is none."""
    import tomllib  # for plugins alone, as the next
    from importlib.metadata import entry_points  # 20 ms

    # The metadata of an editable install are as old as the install, and a source tree has none: a checkout's
    # own plugins are those of its pyproject.toml.
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
        if name in found:
            raise ConfError(f"plugin {name!r} of {whence}: another one has that name. Uninstall one of them")
        try:
            table = find(path, "a PluginTable")
        except ConfError as e:
            raise ConfError(f"plugin {name!r} of {whence}: {e}. Mend it, or uninstall it") from e
        if not isinstance(table, PluginTable):
            raise ConfError(f"plugin {name!r} of {whence}: expected a PluginTable, found {table!r:.80}")
        if table.conf and not Path(table.conf).is_dir():
            raise ConfError(f"plugin {name!r} of {whence}: conf: expected a folder, found no {table.conf}")
        found[name] = table
    return found


@functools.cache
def registered(kind: str) -> Mapping[str, Registered]:
    """Name -> what plugins add under it. `kind`: a field of PluginTable. Raises ConfError for a name that two
    of them add."""
    found: dict[str, Registered] = {}
    for plugin, table in tables().items():
        for name, value in getattr(table, kind).items():
            if name in found:
                raise ConfError(f"plugins {found[name].plugin!r} and {plugin!r} both add {kind} {name!r}")
            found[name] = Registered(plugin, table, value)
    return found


def conf_folders() -> list[Path]:
    """The folders of configuration that plugins bring."""
    return [Path(table.conf) for table in tables().values() if table.conf]


class Registry(Mapping[str, T]):
    """The core's own names of a kind, then those of plugins. A name of the core reads no table."""

    def __init__(self, kind: str, own: Mapping[str, T], what: str) -> None:
        """`kind`: a field of PluginTable; `what`: what a name stands for, for messages: "a step"."""
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

    def added(self, name: str) -> Registered | None:
        """Returns what a plugin registered under `name`, or None if the core defines it. Raises KeyError if
        neither does."""
        return None if name in self.own else self._added()[name]

    def _added(self) -> Mapping[str, Registered]:
        found = registered(self._kind)
        if taken := sorted(found.keys() & self.own.keys()):
            whose = found[taken[0]].plugin
            raise ConfError(f"plugin {whose!r} adds {self._kind} {taken[0]!r}, which raypipe has: rename it")
        return found
