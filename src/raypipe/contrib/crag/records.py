"""Records of a knowledge graph and of public data: results of calls, linked names, limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from raypipe.core.records import Fault, Span

Level: TypeAlias = Literal["exact", "substring", "tokens", "embedding"]
Value: TypeAlias = str | int | float | bool
Vectors: TypeAlias = Callable[[Sequence[str]], Awaitable[np.ndarray]]
"""Names -> (names, dim) float32, unit rows."""


@dataclass(frozen=True, slots=True)
class Near:
    """Settings of the linking level `embedding`, which compares names by their vectors."""

    model: str  # identity of the embedder
    vectors: Vectors
    least: float  # least cosine at which two names count as the same, -1..1


@dataclass(frozen=True, slots=True)
class Link:
    """Entity of the graph to which a written name was linked."""

    written: str
    kind: str  # kind of name: movie, person, company, ...
    key: str  # folded name, by which tables are searched
    name: str  # the graph's spelling
    level: Level
    score: float  # 1 for exact; else the share of common words, or the cosine


@dataclass(frozen=True, slots=True)
class Mention:
    """Name of the graph that occurs in a text."""

    span: Span  # in the text
    names: Mapping[str, str]  # kind of name -> the graph's spelling; one name may have several kinds


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of one line of a program."""

    call: str  # canonical text of the line
    rows: tuple[Mapping[str, Any], ...] = ()  # in order, at most `contrib.crag.relation.MOST_ROWS`
    values: tuple[Value, ...] = ()  # of the line's key, nulls omitted
    sentences: tuple[str, ...] = ()  # the rows in words, at most ten rows
    fault: Fault | None = None
    links: tuple[Link, ...] = ()  # entities to which its names were linked
    unknown: tuple[str, ...] = ()  # names that the graph lacks
    number: int = 1  # number of its call in the program, from 1; a `sort` belongs to the call before
    reads: frozenset[int] = frozenset()  # numbers of the earlier calls whose values it uses
    subject: str = ""  # first name in its call, with `*` replaced by its value; "": no name
    requests: tuple[str, ...] = ()  # path and body of each request to a server
    ms: float = 0.0  # milliseconds that the line took


MOST_REQUESTS: Final = 500
"""Largest number of requests that a program may send to a server: an actor's 300 films, and some more lines.
A plan's bound allows as many for each question."""

MOST_SEARCHES: Final = 23
"""Largest number of requests to find the names in one text (`contrib.crag.graph_adapter`): six searches, the
tickers of ten companies, five words that may be tickers, and two days of games."""

MOST_NEAR: Final = 50_000
"""Largest number of names of one kind for the level `embedding`. Vectors of 384 numbers take 77 MB."""

MOST_LINKED: Final = 25_000
"""Largest number of names in one program: its 20,000 characters hold 10,000, a `*` in each of 64 lines
200."""


@dataclass(frozen=True, slots=True)
class GraphReplies:
    """Names of the replies that a step reads and writes when it runs a program over a graph."""

    calls: str  # read: the program
    facts: str  # written: the sentences that it found
    rule: str | None  # read: its label names the rule; None: no rule
    answer: str | None  # written: the rule's answer; None: no rule
    trace: str | None  # written: a line of JSON for each line of the program; None: no trace
