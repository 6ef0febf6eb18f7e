"""Plugin folders: packages outside the core that add names to it, each by one table.

A table is found by the entry-point group `raypipe.plugins`, in any installed package. It has names and, for
each, the MODULE:NAME of what it stands for. The tables alone say which names there are; what a name stands
for is imported when it is asked for. Nothing here knows which plugins exist.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from raypipe.core import plugins
from raypipe.core.errors import ConfError

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
        return plugins.find(self.value, what)


@functools.cache
def tables() -> Mapping[str, PluginTable]:
    """Name of a plugin -> its table. Raises ConfError for a table that cannot be imported, or is none."""
    found: dict[str, PluginTable] = {}
    for name, path, whence in _entry_points():
        if name in found:
            raise ConfError(f"plugin {name!r} of {whence}: another one has that name. Uninstall one of them")
        try:
            table = plugins.find(path, "a PluginTable")
        except ConfError as e:
            raise ConfError(f"plugin {name!r} of {whence}: {e}. Mend it, or uninstall it") from e
        if not isinstance(table, PluginTable):
            raise ConfError(f"plugin {name!r} of {whence}: expected a PluginTable, found {table!r:.80}")
        if table.conf and not Path(table.conf).is_dir():
            raise ConfError(f"plugin {name!r} of {whence}: conf: expected a folder, found no {table.conf}")
        found[name] = table
    return found


def _entry_points() -> Iterator[tuple[str, str, str]]:
    """Name, MODULE:NAME and distribution of each plugin. The metadata of an editable install are as old as
    the install, and a source tree has none: a checkout's own plugins are those of its pyproject.toml."""
    import tomllib
    from importlib.metadata import entry_points  # 20 ms

    project = Path(__file__).parents[3] / "pyproject.toml"
    said = tomllib.loads(project.read_text(encoding="utf-8"))["project"] if project.is_file() else {}
    here = said.get("name") == "raypipe"
    if here:
        for name, path in said["entry-points"][GROUP].items():
            yield name, path, str(project)
    for point in entry_points(group=GROUP):
        distribution = "?" if point.dist is None else point.dist.name
        if not (here and distribution == "raypipe"):
            yield point.name, point.value, distribution


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
        """Returns what a plugin adds under this name; None for a name of the core. Raises KeyError for no
        name."""
        return None if name in self.own else self._added()[name]

    def _added(self) -> Mapping[str, Registered]:
        found = registered(self._kind)
        if taken := sorted(found.keys() & self.own.keys()):
            whose = found[taken[0]].plugin
            raise ConfError(f"plugin {whose!r} adds {self._kind} {taken[0]!r}, which raypipe has: rename it")
        return found
