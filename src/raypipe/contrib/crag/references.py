"""The references of this package: a graph, as a folder of tables or behind a server, and public data.

Knows graphs.yaml's entries of kind folder, server and facts. What opens them is imported when it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from raypipe.contrib.crag.records import MOST_LINKED, MOST_NEAR, Graph, Level, PublicFacts
from raypipe.core.errors import ConfError
from raypipe.core.protocols import Embed, Model
from raypipe.core.references import EntryContext, Reference, Request, Tools

REFRESH: Mapping[str, float] = MappingProxyType({"static": math.inf, "daily": 86400.0, "live": 0.0})
"""Words for how long a reply holds, in seconds."""


@dataclass(frozen=True, slots=True)
class GraphEntry:
    kind: Literal["folder", "server"]
    where: str = ""  # folder or address; "": to be said when it is used
    version: str = ""  # of a server
    refresh: Mapping[str, str | int] = field(default_factory=dict)  # domain -> REFRESH, or seconds
    levels: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)  # kind of name -> how it is linked
    embedder: str = ""  # of the level embedding: a model's name
    near: float | None = None  # cosine from which on that level takes two names for one

    def __post_init__(self) -> None:
        meant = any("embedding" in levels for levels in self.levels.values())
        if not meant == bool(self.embedder) == (self.near is not None):
            raise ValueError("embedder and near: expected both with the level embedding, and neither without")
        if self.near is not None and not 0 < self.near <= 1:
            raise ValueError(f"near: expected a cosine above 0, at most 1, found {self.near}")
        if (self.kind == "server") != bool(self.version):
            raise ValueError("version: expected for a server and for nothing else")
        if self.levels:
            from raypipe.contrib.crag.link import LEVELS

            if strange := sorted(self.levels.keys() - LEVELS.keys()):
                known = ", ".join(sorted(LEVELS))
                raise ValueError(f"levels: {strange[0]!r} is no kind of name; expected {known}")
        for domain, period in self.refresh.items():
            if isinstance(period, str) and period not in REFRESH:
                raise ValueError(
                    f"refresh: {domain}: expected {', '.join(REFRESH)} or seconds, found {period!r}"
                )


@dataclass(frozen=True, slots=True)
class GraphRef(Reference[Graph]):
    """A graph. What decides its answers is its identity; where it lies is not."""

    kind: Literal["folder", "server"]  # a folder of tables, or the CRAG mock API at http://HOST:PORT
    grammar: str  # of the calls that it is asked in: Lark's notation
    levels: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)
    """Kind of name -> how a written name may be linked, in order; kinds not named: `link.LEVELS`."""
    refresh: Mapping[str, float] = field(default_factory=dict)
    """Domain -> seconds that its replies hold; 0: none is cached. A domain that is not named
    never changes. Not identity: it decides what is requested again, not what an answer is."""
    embedder: Model | None = None  # of the level `embedding`; None: no kind of name has it
    near: float = 0.0  # cosine from which on that level takes two names for one, -1..1

    kinds: ClassVar[tuple[str, ...]] = ("folder", "server")
    about: ClassVar[str] = "a graph"
    place: ClassVar[str] = "FOLDER; data of `raypipe synth` bring their own"
    entry: ClassVar[type[Any]] = GraphEntry

    @classmethod
    def lies_at(cls, entry: GraphEntry, place: str) -> bool:
        return (entry.kind == "server") == _is_address(place)

    @classmethod
    def of_entry(cls, name: str, entry: GraphEntry, place: str, context: EntryContext) -> Self:
        """Raises ConfError for an address in the place of a folder, or the reverse."""
        grammar = context.files.below("grammar", "calls", ".lark").read_text(encoding="utf-8")
        ref = cls._at(name, entry, place, grammar)
        if entry.near is None:
            return ref
        here = context.where.at("embedder")
        embedder = context.resolve[Model](entry.embedder, here)
        if embedder.kind != "embedder":
            raise context.where.error(f"embedder: expected a model of kind embedder, found {embedder.kind}")
        return replace(ref, embedder=embedder, near=entry.near)

    @classmethod
    def _at(cls, name: str, entry: GraphEntry, place: str, grammar: str) -> Self:
        seconds = {d: REFRESH[p] if isinstance(p, str) else float(p) for d, p in entry.refresh.items()}
        refresh = {d: s for d, s in seconds.items() if math.isfinite(s)}
        if not place:
            return cls(name, "", "nowhere", "folder", grammar, entry.levels)
        if (entry.kind == "server") != _is_address(place):
            what = "http://HOST:PORT" if entry.kind == "server" else "a folder of tables"
            raise ConfError(f"graph {name!r} is of kind {entry.kind}: expected {what}, found {place!r}")
        version = entry.version or cls.version_at(Path(place))
        if entry.kind == "folder":  # workers may stand elsewhere
            place = str(Path(place).absolute())
        return cls(name, place, version, entry.kind, grammar, entry.levels, MappingProxyType(refresh))

    @classmethod
    def version_at(cls, path: Path) -> str:
        from raypipe.contrib.crag.graph_adapter import tables_version  # .3 s with httpx

        return tables_version(path)

    def open(self, tools: Tools) -> Graph:
        from raypipe.contrib.crag import client, graph_adapter

        self.require_place()
        if self.kind == "folder":
            return graph_adapter.open_tables(self, tools.embedder, tools.clock)
        connection = client.ServerConnection(self.where)
        tools.close_later(connection.aclose)
        return graph_adapter.open_server(self, connection.ask, tools.embedder, tools.clock)

    def require(self) -> None:
        """Raises as `Reference.require`. A server is asked nothing: its version is what its entry says."""
        self.require_place()
        if self.kind == "folder":
            self.require_version(self.version_at(Path(self.where)))

    def identity(self) -> tuple[object, ...]:
        meaning = () if self.embedder is None else (self.embedder, self.near)
        return (self.version, self.grammar, self.levels, *meaning)

    def periods(self) -> Mapping[str, float] | None:
        return self.refresh if self.kind == "server" else None

    def through(
        self, opened: Graph, wrap: Callable[[Request], Request], embedder: Callable[[Model], Embed]
    ) -> Graph:
        return opened.through(wrap, embedder)

    def most_vectors(self) -> int:
        """Vectors of names that one program can need: of all names of the kinds that are linked by meaning,
        and of those that it has written."""
        kinds = sum("embedding" in levels for levels in self.levels.values())
        return kinds * MOST_NEAR + MOST_LINKED if kinds else 0


@dataclass(frozen=True, slots=True)
class FactsRef(Reference[PublicFacts]):
    """Public data: a table that `raypipe facts build` wrote."""

    kinds: ClassVar[tuple[str, ...]] = ("facts",)
    about: ClassVar[str] = "public data"
    place: ClassVar[str] = "FILE; `raypipe facts build` makes such a file"

    @classmethod
    def version_at(cls, path: Path) -> str:
        from raypipe.contrib.crag.public_data import facts_version

        return facts_version(path)

    def open(self, tools: Tools) -> PublicFacts:
        from raypipe.contrib.crag.public_data import open_facts

        return open_facts(self)


def _is_address(place: str) -> bool:
    return place.startswith(("http://", "https://"))
