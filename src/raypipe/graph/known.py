"""A graph as steps meet it (`knowledge.Graph`), and what the entry that names one stands for.

Knows the two kinds of graphs and the parser. Does not know steps or stores.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from raypipe.errors import ConfError
from raypipe.graph.execute import run
from raypipe.graph.fetch import Remote
from raypipe.graph.graph import Folder, open_folder
from raypipe.graph.link import LEVELS, Strictness
from raypipe.graph.tables import files_of
from raypipe.knowledge import GraphRef, Mention, Request, Result
from raypipe.text.calls import Parse, parser
from raypipe.text.times import moment


@dataclass(frozen=True, slots=True)
class Known:
    """`knowledge.Graph` over tables or a server."""

    graph: Folder | Remote
    parse: Parse

    async def run(self, program: str, asked_at: str, domain: str = "") -> list[Result]:
        return await run(self.parse(program), self.graph, moment(asked_at), domain)

    async def mentions(self, texts: Sequence[str]) -> list[list[Mention]]:
        if isinstance(self.graph, Remote):
            raise ConfError(
                "names in a text can be found in a graph of tables alone: a server tells no list of them. "
                "Use a folder of tables, or a step that is told the names"
            )
        return [self.graph.linker.mentions(text) for text in texts]

    def through(self, wrap: Callable[[Request], Request]) -> Known:
        if isinstance(self.graph, Folder):
            return self
        return Known(dataclasses.replace(self.graph, ask=wrap(self.graph.ask)), self.parse)


def placed(ref: GraphRef) -> None:
    """Raises ConfError for an entry that nobody said the place of."""
    if not ref.where:
        raise ConfError(
            f"graph {ref.name!r}: expected to be told where it lies, as --graph {ref.name}=FOLDER; data of "
            f"`raypipe synth` bring their own"
        )


def open_tables(ref: GraphRef) -> Known:
    """The graph of kind folder that an entry names. Raises DataError for a folder that is none."""
    return Known(open_folder(Path(ref.where), _strictness(ref)), parser(ref.grammar))


def open_server(ref: GraphRef, ask: Request) -> Known:
    """The graph of kind server that an entry names, asked by `ask`."""
    return Known(Remote(ask, _strictness(ref)), parser(ref.grammar))


def _strictness(ref: GraphRef) -> Strictness:
    return Strictness({**LEVELS, **ref.levels})


def tables_version(folder: Path) -> str:
    """Names what is in a folder of tables: the digest of its files. Raises DataError for none."""
    h = hashlib.blake2b(digest_size=16)
    for path in files_of(folder):
        content = path.read_bytes()
        h.update(f"{path.name}\0{len(content)}\0".encode())
        h.update(content)
    return f"tables:{h.hexdigest()}"
