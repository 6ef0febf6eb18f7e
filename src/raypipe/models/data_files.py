"""What steps read besides models and the index: graphs, public data, examples; each is opened once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from raypipe.core.digests import stable
from raypipe.core.errors import Unavailable
from raypipe.core.kg import ExampleRow, FactsRef, PoolRef, PublicFacts
from raypipe.core.protocols import Embed, Graph, GraphRef, Model
from raypipe.readers import example_pool

T = TypeVar("T")
R = TypeVar("R", GraphRef, FactsRef, PoolRef)


class DataFiles:
    """Opened graphs, tables of public data and pools of examples, by what they are and where they lie."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` (seconds) times the calls of graphs."""
        self._clock = clock
        self._opened: dict[str, Any] = {}
        self._closing: list[Callable[[], Awaitable[None]]] = []  # connections of graphs

    def graph(self, ref: GraphRef, embedder: Callable[[Model], Embed]) -> Graph:
        """Raises ConfError for a graph without a location or whose folder is not what its version says,
        DataError for a folder that has no tables."""
        return self._once(ref, f"graph {ref.name!r}", lambda ref: self._open_graph(ref, embedder))

    def facts(self, ref: FactsRef) -> PublicFacts:
        """Raises as `graph`, DataError for a file that is no table."""
        from raypipe.kg import public_data

        return self._once(ref, "facts", public_data.open_facts)

    def pool(self, ref: PoolRef) -> Sequence[ExampleRow]:
        """Raises as `graph`, DataError for a file that is no pool."""
        return self._once(ref, "examples", example_pool.open_pool)

    def _once(self, ref: R, what: str, opened: Callable[[R], T]) -> T:
        """What `opened` gives for a reference, the first time that it is asked for. Raises Unavailable where
        its files, which every row needs, cannot be read."""
        key = type(ref).__name__ + stable(ref) + ref.where
        if key not in self._opened:
            try:
                self._opened[key] = opened(ref)
            except OSError as e:
                raise Unavailable(f"{what} at {ref.where} cannot be read: {e}") from e
        found: T = self._opened[key]
        return found

    def _open_graph(self, ref: GraphRef, embedder: Callable[[Model], Embed]) -> Graph:
        from raypipe.kg import client, graph_adapter

        graph_adapter.require_location(ref)
        if ref.kind == "folder":
            return graph_adapter.open_tables(ref, embedder, self._clock)
        connection = client.ServerConnection(ref.where)
        self._closing.append(connection.aclose)
        return graph_adapter.open_server(ref, connection.ask, embedder, self._clock)

    async def close(self) -> None:
        while self._closing:
            await self._closing.pop()()
