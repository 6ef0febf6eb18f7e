"""Records of a knowledge graph and public data: results of requests, names found, and their contracts.

Plain values. Tables, a server and the language of calls are in the other modules of this package; a step
meets them through its kit alone (`protocols.Kit.data`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np

from raypipe.core.protocols import Embed, Model
from raypipe.core.records import Fault, Span
from raypipe.core.references import Request

Level: TypeAlias = Literal["exact", "substring", "tokens", "embedding"]
Value: TypeAlias = str | int | float | bool


Vectors: TypeAlias = Callable[[Sequence[str]], Awaitable[np.ndarray]]
"""Names -> (names, dim) float32, unit rows."""


@dataclass(frozen=True, slots=True)
class Near:
    """Comparison of names by the level `embedding`."""

    model: str  # identity of the embedder
    vectors: Vectors
    least: float  # cosine from which on two names are one, -1..1


class PublicFacts(Protocol):
    """Public data, opened: sentences by year, or by the names of what they are about."""

    def of_year(self, year: int) -> tuple[str, ...]:
        """Returns what is known of a year, in the order of the source; () for a year that is not there."""
        ...

    async def about(
        self, name: str, levels: Sequence[Level], company: bool, near: Near | None = None
    ) -> tuple[str, ...]:
        """Returns what is known of everything of this name, linked by the first level that finds one; () for
        a name that is not there. `company`: names are companies', whose legal forms are no part of them.
        `near` is for the level embedding."""
        ...


@dataclass(frozen=True, slots=True)
class Link:
    """Entity that a written name was taken for."""

    written: str
    kind: str  # of name: movie, person, company, ...
    key: str  # the folded name that the tables are searched by
    name: str  # as the graph spells it
    level: Level
    score: float  # 1 for exact


@dataclass(frozen=True, slots=True)
class Mention:
    """A name of the graph, found in a text."""

    span: Span  # in that text
    names: Mapping[str, str]  # kind of name -> as the graph spells it; one name may be of several kinds


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of a line of a program."""

    call: str  # its canonical text
    rows: tuple[Mapping[str, Any], ...] = ()  # in order, `contrib.crag.relation.MOST_ROWS` at most
    values: tuple[Value, ...] = ()  # what its key names, nulls omitted
    sentences: tuple[str, ...] = ()  # in words, ten rows at most
    fault: Fault | None = None
    links: tuple[Link, ...] = ()  # what its names were taken for
    unknown: tuple[str, ...] = ()  # names that the graph does not know
    number: int = 1  # of its call in the program, from 1; a `sort` belongs to the call before it
    reads: frozenset[int] = frozenset()  # numbers of the calls whose values it uses
    subject: str = ""  # the first name of its call; what `*` stood for; "": it names none
    requests: tuple[str, ...] = ()  # to a server, each its path and body
    ms: float = 0.0  # that the line took


MOST_REQUESTS: Final = 500
"""Requests that a program may send to a server: an actor's 300 films, and then some lines more. Each
question may cost as many, so a plan's bound rests on it."""

MOST_SEARCHES: Final = 23
"""Requests to a server that finding the names in one text takes at most: six searches, the tickers of ten
companies, five words that may be tickers, two days of games (`contrib.crag.graph_adapter`)."""

MOST_NEAR: Final = 50_000
"""Names of one kind among which one is looked for by its meaning: vectors of 384 numbers take 77 MB."""

MOST_LINKED: Final = 25_000
"""Names that one program can have written: 20,000 characters hold 10,000, 64 lines with a `*` 200 each."""


@dataclass(frozen=True, slots=True)
class GraphReplies:
    """The names of the replies around a program that is run over a graph."""

    calls: str  # with the program
    facts: str  # what it found
    rule: str | None  # that names the rule; None: no rule
    answer: str | None  # what the rule made of it; None: no rule
    trace: str | None  # a line of JSON for each line of the program; None: none is kept


class Graph(Protocol):
    """A knowledge graph, opened. Any number of programs may run at once."""

    async def run(self, program: str, asked_at: str, domain: str = "") -> list[CallResult]:
        """The result of every line at the moment of asking. `domain` decides what `get_person` means where
        its key does not. What a program says, or a graph that is down, never raises: that is a line's fault.
        Raises DataError for a moment that cannot be read."""
        ...

    async def mentions(self, texts: Sequence[str], asked_at: Sequence[str]) -> list[list[Mention] | Fault]:
        """The graph's names in each text, asked at its moment: in the text's order, the longest where they
        overlap. A server that is down, or a moment that cannot be read there, is the text's fault."""
        ...

    def through(self, wrap: Callable[[Request], Request], embedder: Callable[[Model], Embed]) -> Graph:
        """The same graph with its requests going through a wrapper, as a memo's, where it has any; and with
        vectors of names from this function, where names are linked by meaning."""
        ...
