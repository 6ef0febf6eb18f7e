"""What steps read besides models and the index: graphs, public data, examples; each is opened once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from raypipe.core.digests import stable
from raypipe.core.errors import Unavailable
from raypipe.core.examples import ExampleRow, PoolRef
from raypipe.core.kg import FactsRef, PublicFacts
from raypipe.core.protocols import Embed, Graph, GraphRef, Model
from raypipe.readers import example_pool


class DataFiles:
    """Opened graphs, tables of public data and pools of examples, by what they are and where they lie."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` (seconds) times the calls of graphs."""
        self._clock = clock
        self._facts: dict[str, PublicFacts] = {}
        self._pools: dict[str, Sequence[ExampleRow]] = {}
        self._graphs: dict[str, Graph] = {}
        self._closing: list[Callable[[], Awaitable[None]]] = []  # connections of graphs

    def graph(self, ref: GraphRef, embedder: Callable[[Model], Embed]) -> Graph:
        """Raises ConfError for a graph without a location or whose folder is not what its version says,
        DataError for a folder that has no tables."""
        key = stable(ref) + ref.where
        if key not in self._graphs:
            with _reading(f"graph {ref.name!r} at {ref.where}"):
                self._graphs[key] = self._open_graph(ref, embedder)
        return self._graphs[key]

    def facts(self, ref: FactsRef) -> PublicFacts:
        """Raises ConfError for a table without a location or that is not what its version says, DataError for
        a file that is none."""
        from raypipe.kg import public_data

        key = stable(ref) + ref.where
        if key not in self._facts:
            with _reading(f"facts at {ref.where}"):
                self._facts[key] = public_data.open_facts(ref)
        return self._facts[key]

    def pool(self, ref: PoolRef) -> Sequence[ExampleRow]:
        """Raises ConfError for a pool without a location or that is not what its version says, DataError for
        a file that is none."""
        key = stable(ref) + ref.where
        if key not in self._pools:
            with _reading(f"examples at {ref.where}"):
                self._pools[key] = example_pool.open_pool(ref)
        return self._pools[key]

    def _open_graph(self, ref: GraphRef, embedder: Callable[[Model], Embed]) -> Graph:
        from raypipe.kg import client, graph_adapter

        graph_adapter.require_location(ref)
        if ref.kind == "folder":
            return graph_adapter.open_tables(ref, embedder, self._clock)
        connection = client.ServerConnection(ref.where)
        self._closing.append(connection.close)
        return graph_adapter.open_server(ref, connection.ask, embedder, self._clock)

    async def close(self) -> None:
        """Ends the connections of graphs."""
        while self._closing:
            await self._closing.pop()()


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """A block that opens files which every row needs. Raises Unavailable where they cannot be read."""
    try:
        yield
    except OSError as e:
        raise Unavailable(f"{what} cannot be read: {e}") from e
