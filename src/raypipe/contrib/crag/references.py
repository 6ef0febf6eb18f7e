"""References to a graph (a folder of tables, or a server) and to public data, as graphs.yaml declares them.

The entries are of kind folder, server and facts. The modules that open them are imported on first use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from raypipe.contrib.crag.records import MOST_LINKED, MOST_NEAR, Level
from raypipe.core.errors import ConfError
from raypipe.core.protocols import Embed, Model
from raypipe.core.references import EntryContext, Reference, Request, Tools

if TYPE_CHECKING:
    from raypipe.contrib.crag.graph_adapter import GraphAdapter
    from raypipe.contrib.crag.public_data import FactsTable

REFRESH: Mapping[str, float] = MappingProxyType({"static": math.inf, "daily": 86400.0, "live": 0.0})
"""Word for how long a reply stays valid -> seconds."""


@dataclass(frozen=True, slots=True)
class GraphEntry:
    kind: Literal["folder", "server"]
    where: str = ""  # folder or address; "": `--graph` gives it
    version: str = ""  # of a server's data
    refresh: Mapping[str, str | int] = field(default_factory=dict)  # domain -> word of REFRESH, or seconds
    levels: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)  # kind of name -> levels of linking
    embedder: str = ""  # a model's name, for the level embedding
    near: float | None = None  # least cosine at which that level links two names

    def __post_init__(self) -> None:
        meant = any("embedding" in levels for levels in self.levels.values())
        if not meant == bool(self.embedder) == (self.near is not None):
            raise ValueError("embedder and near: expected both with the level embedding, and neither without")
        if self.near is not None and not 0 < self.near <= 1:
            raise ValueError(f"near: expected a cosine above 0, at most 1, found {self.near}")
        if (self.kind == "server") != bool(self.version):
            raise ValueError("version: expected with kind server, and only with it")
        if self.levels:
            from raypipe.contrib.crag.link import LEVELS

            if strange := sorted(self.levels.keys() - LEVELS.keys()):
                known = ", ".join(sorted(LEVELS))
                raise ValueError(f"levels: {strange[0]!r} is no kind of name; expected {known}")
        for domain, period in self.refresh.items():
            if isinstance(period, str) and period not in REFRESH:
                words = ", ".join(REFRESH)
                raise ValueError(f"refresh: {domain}: expected {words} or seconds, found {period!r}")


@dataclass(frozen=True, slots=True)
class GraphRef(Reference["GraphAdapter"]):
    """Reference to a graph. Its identity covers all that decides its answers, not its location."""

    kind: Literal["folder", "server"]  # a folder of tables, or the CRAG mock API at http://HOST:PORT
    grammar: str  # grammar of its calls, in Lark's notation
    levels: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)
    """Kind of name -> levels of linking, in order. Kinds that are not named have those of `link.LEVELS`."""
    refresh: Mapping[str, float] = field(default_factory=dict)
    """Domain -> seconds that its replies stay valid; 0: never cached. Replies of other domains never expire.
    Not identity: it decides when to send a request again, not the content of an answer."""
    embedder: Model | None = None  # for the level `embedding`; None: no kind of name has that level
    near: float = 0.0  # least cosine at which that level links two names, -1..1

    kinds: ClassVar[tuple[str, ...]] = ("folder", "server")
    about: ClassVar[str] = "a graph"
    place: ClassVar[str] = "FOLDER; data of `raypipe synth` bring their own"
    entry: ClassVar[type[Any]] = GraphEntry

    @classmethod
    def lies_at(cls, entry: GraphEntry, place: str) -> bool:
        return (entry.kind == "server") == place.startswith(("http://", "https://"))

    @classmethod
    def of_entry(cls, name: str, entry: GraphEntry, place: str, context: EntryContext) -> Self:
        """Makes the reference of an entry. Raises ConfError if `place` is no place of the entry's kind, or if
        the embedder is another kind of model."""
        grammar = context.files.below("grammar", "calls", ".lark").read_text(encoding="utf-8")
        ref = cls(name, "", "nowhere", "folder", grammar, entry.levels)
        if place:
            if not cls.lies_at(entry, place):
                what = "http://HOST:PORT" if entry.kind == "server" else "a folder of tables"
                raise ConfError(f"graph {name!r} is of kind {entry.kind}: expected {what}, found {place!r}")
            version = entry.version or cls.version_at(Path(place))
            if entry.kind == "folder":  # workers may have another working directory
                place = str(Path(place).absolute())
            seconds = {d: REFRESH[p] if isinstance(p, str) else float(p) for d, p in entry.refresh.items()}
            refresh = MappingProxyType({d: s for d, s in seconds.items() if math.isfinite(s)})
            ref = cls(name, place, version, entry.kind, grammar, entry.levels, refresh)
        if entry.near is None:
            return ref
        embedder = context.resolve[Model](entry.embedder, context.where.at("embedder"))
        if embedder.kind != "embedder":
            raise context.where.error(f"embedder: expected a model of kind embedder, found {embedder.kind}")
        return replace(ref, embedder=embedder, near=entry.near)

    @classmethod
    def version_at(cls, path: Path) -> str:
        from raypipe.contrib.crag.graph_adapter import tables_version  # its import takes .3 s, with httpx

        return tables_version(path)

    def open(self, tools: Tools) -> GraphAdapter:
        from raypipe.contrib.crag import client, graph_adapter

        self.require_place()
        if self.kind == "folder":
            return graph_adapter.open_tables(self, tools.embedder, tools.clock)
        connection = client.ServerConnection(self.where)
        tools.close_later(connection.aclose)
        return graph_adapter.open_server(self, connection.ask, tools.embedder, tools.clock)

    def require(self) -> None:
        """Checks place and version, and raises as `Reference.require`. A server gets no request: its version
        is the one that its entry declares."""
        self.require_place()
        if self.kind == "folder":
            self.require_version(self.version_at(Path(self.where)))

    def identity(self) -> tuple[object, ...]:
        meaning = () if self.embedder is None else (self.embedder, self.near)
        return (self.version, self.grammar, self.levels, *meaning)

    def periods(self) -> Mapping[str, float] | None:
        return self.refresh if self.kind == "server" else None

    def through(
        self, opened: GraphAdapter, wrap: Callable[[Request], Request], embedder: Callable[[Model], Embed]
    ) -> GraphAdapter:
        return opened.through(wrap, embedder)

    def most_vectors(self) -> int:
        """Returns the largest number of name vectors that one program can need: those of all names of the
        kinds that are linked by meaning, and those of the names in the program."""
        kinds = sum("embedding" in levels for levels in self.levels.values())
        return kinds * MOST_NEAR + MOST_LINKED if kinds else 0


@dataclass(frozen=True, slots=True)
class FactsRef(Reference["FactsTable"]):
    """Reference to public data: a table that `raypipe facts build` wrote."""

    names: int = MOST_NEAR  # number of names of the file whose digest is `version`; not identity

    kinds: ClassVar[tuple[str, ...]] = ("facts",)
    about: ClassVar[str] = "public data"
    place: ClassVar[str] = "FILE; `raypipe facts build` makes such a file"

    @classmethod
    def of_entry(cls, name: str, entry: Any, place: str, context: EntryContext) -> Self:
        if not place:
            return cls(name, "", "nowhere")
        from raypipe.contrib.crag.public_data import names_of, read_facts

        path = Path(place).absolute()  # a worker may have another working directory
        table, version = read_facts(path)
        return cls(name, str(path), version, names_of(table))

    @classmethod
    def version_at(cls, path: Path) -> str:
        from raypipe.contrib.crag.public_data import facts_version

        return facts_version(path)

    def open(self, tools: Tools) -> FactsTable:
        from raypipe.contrib.crag.public_data import open_facts

        return open_facts(self)
