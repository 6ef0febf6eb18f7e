"""The entries of graphs.yaml: requests to knowledge graphs and public data with their results, and rows of
training data that a prompt may show as examples. Plain values.

Knows the records alone. Tables, a server and the language of calls are in `kg`, the file of examples is read
by `readers.example_pool`; a step meets them only through its kit (`protocols.Graph`, `protocols.Kit.pool`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import numpy as np

from raypipe.core.errors import ConfError
from raypipe.core.records import Fault, Span

if TYPE_CHECKING:
    from raypipe.core.protocols import GraphRef

Level: TypeAlias = Literal["exact", "substring", "tokens", "embedding"]
Value: TypeAlias = str | int | float | bool


@dataclass(frozen=True, slots=True)
class FactsRef:
    """One entry of graphs.yaml of kind facts, resolved: a table that `raypipe facts build` wrote."""

    name: str  # in graphs.yaml; not identity
    where: str  # the file; not identity
    version: str  # digest of the file


@dataclass(frozen=True, slots=True)
class PoolRef:
    """One entry of graphs.yaml of kind examples, resolved: a file of training rows."""

    name: str  # in graphs.yaml; not identity
    where: str  # the file; not identity
    version: str  # digest of the file
    size: int  # rows in it; `version` says it, too


@dataclass(frozen=True, slots=True)
class ExampleRow:
    question: str
    answer: str
    document: str = ""  # url or id of the document that it asks about; "": of none
    explanation: str = ""  # why the answer is right, where one was stored


Vectors: TypeAlias = Callable[[Sequence[str]], Awaitable[np.ndarray]]
"""Names -> (names, dim) float32, unit rows."""


@dataclass(frozen=True, slots=True)
class Near:
    """How the level `embedding` compares names."""

    model: str  # identity of the embedder
    vectors: Vectors
    least: float  # cosine from which on two names are one, -1..1


class PublicFacts(Protocol):
    """Public data, opened: sentences by year, or by the names of what they are about."""

    def of_year(self, year: int) -> tuple[str, ...]:
        """What is known of a year, in the order of the source; () for a year that is not there."""
        ...

    async def about(
        self, name: str, levels: Sequence[Level], company: bool, near: Near | None = None
    ) -> tuple[str, ...]:
        """What is known of everything of this name, linked by the first level that finds one; () for a name
        that is not there. `company`: names are companies', whose legal forms are no part of them. `near` is
        for the level embedding."""
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
    """A name of the graph, found in a text."""

    span: Span  # in that text
    names: Mapping[str, str]  # kind of name -> as the graph spells it; one name may be of several kinds


@dataclass(frozen=True, slots=True)
class CallResult:
    """What one line of a program gave."""

    call: str  # its canonical text
    rows: tuple[Mapping[str, Any], ...] = ()  # in order, `kg.relation.MOST_ROWS` at most
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


MOST_REQUESTS: Final = 2_000
"""That one program may send to a server: an actor's 300 films, and then some lines more."""

MOST_SEARCHES: Final = 23
"""Requests to a server that finding the names in one text takes at most: six searches, the tickers of ten
companies, five words that may be tickers, two days of games (`kg.graph_adapter`)."""

MOST_NEAR: Final = 50_000
"""Names of one kind among which one is looked for by its meaning: vectors of 384 numbers take 77 MB."""

MOST_LINKED: Final = 25_000
"""Names that one program can have written: 20,000 characters hold 10,000, 64 lines with a `*` 200 each."""

Request: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""Path and body of a request to a server -> its result, null included."""


def domain_of(path: str) -> str:
    """The domain that a request is about, as refresh periods name it; "" where the path names none.

    >>> domain_of("/sports/nba/get_games_on_date")
    'sports'
    """
    return path[1:].partition("/")[0]


def require_place(what: str, ref: GraphRef | FactsRef | PoolRef, hint: str) -> None:
    """Raises ConfError for an entry that nothing says the place of. `hint`: what the place is, and whence."""
    if not ref.where:
        raise ConfError(f"{what} {ref.name!r}: expected a location, as --graph {ref.name}={hint}")


def require_version(what: str, ref: GraphRef | FactsRef | PoolRef, found: str) -> None:
    """Raises ConfError for files that are not those that a recipe was resolved with: another process may see
    other files under the same path, and a release outlives an edit."""
    if found != ref.version:
        raise ConfError(
            f"{what} {ref.name!r}: {ref.where} is not what the recipe was resolved with: expected "
            f"{ref.version}, found {found}. Put back what was there, and the same on every machine; or start "
            f"again, and for a release run eval and promote again"
        )
