"""What is asked of a knowledge graph and what comes back: plain values, and the contract of graphs.

Knows the records alone. Tables, a server and the language of calls are in `graph/` and `text/`; a step meets
a graph only through this contract, and through its kit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

from raypipe.records import Fault, Span

Level: TypeAlias = Literal["exact", "substring", "tokens", "embedding"]
Value: TypeAlias = str | int | float | bool


@dataclass(frozen=True, slots=True)
class GraphRef:
    """One entry of graphs.yaml, resolved. What decides its answers is its identity; where it lies is not."""

    name: str  # in graphs.yaml; not identity
    kind: Literal["folder", "server"]  # a folder of tables, or the CRAG mock API
    where: str  # the folder, or http://HOST:PORT; not identity
    version: str  # of a folder: a digest of its tables; of a server: what its entry declares
    grammar: str  # of the calls that it is asked in: Lark's notation
    levels: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)
    """Kind of name -> how a written name may be linked, in order; kinds not named: `graph.link.LEVELS`."""
    refresh: Mapping[str, float] = field(default_factory=dict)
    """Domain -> seconds that its replies hold; 0: none is remembered. A domain that is not named
    never changes. Not identity: it decides what is asked again, not what an answer is."""


@dataclass(frozen=True, slots=True)
class FactsRef:
    """One entry of graphs.yaml of kind facts, resolved: a table that `raypipe facts build` wrote."""

    name: str  # in graphs.yaml; not identity
    where: str  # the file; not identity
    version: str  # digest of the file


class Facts(Protocol):
    """Public data, opened: sentences by year, or by the names of what they are about."""

    def of_year(self, year: int) -> tuple[str, ...]:
        """What is known of a year, in the order of the source; () for a year that is not there."""
        ...

    def about(self, name: str) -> tuple[str, ...]:
        """What is known of everything of this name; () for a name that is not there."""
        ...


@dataclass(frozen=True, slots=True)
class Link:
    """What a written name was taken for."""

    written: str
    kind: str  # of name: movie, person, company, ...
    key: str  # the folded name that the tables are searched by
    name: str  # as the graph spells it
    level: Level
    score: float  # 1 for exact


@dataclass(frozen=True, slots=True)
class Mention:
    """A name of the graph that stands in a text."""

    span: Span  # in that text
    names: Mapping[str, str]  # kind of name -> as the graph spells it; one name may be of several kinds


@dataclass(frozen=True, slots=True)
class Result:
    """What one line of a program gave."""

    call: str  # its canonical text
    rows: tuple[Mapping[str, Any], ...] = ()  # in order, `graph.take.MOST_ROWS` at most
    values: tuple[Value, ...] = ()  # what its key names, nulls left out
    sentences: tuple[str, ...] = ()  # in words, ten rows at most
    fault: Fault | None = None
    links: tuple[Link, ...] = ()  # what its names were taken for
    unknown: tuple[str, ...] = ()  # names that the graph does not know
    subject: str = ""  # its first name as written; "": it names none
    ms: float = 0.0  # that the line took


MOST_REQUESTS: Final = 2_000
"""That one program may send to a server: an actor's 300 films, and then some lines more."""

Request: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""Path and body of a request to a server -> its result, null included."""


class Graph(Protocol):
    """A knowledge graph, opened. Any number of programs may run at once."""

    async def run(self, program: str, asked_at: str, domain: str = "") -> list[Result]:
        """The result of every line at the moment of asking. `domain` decides what `get_person` means where
        its key does not. What a program says, or a graph that is down, never raises: that is a line's fault.
        Raises DataError for a moment that cannot be read."""
        ...

    async def mentions(self, texts: Sequence[str]) -> list[list[Mention]]:
        """The graph's names in each text, longest first, not overlapping. Raises ConfError for a graph whose
        names are not at hand (a server)."""
        ...

    def through(self, wrap: Callable[[Request], Request]) -> Graph:
        """The same graph with its requests going through a wrapper, as a memo's; tables have none."""
        ...
