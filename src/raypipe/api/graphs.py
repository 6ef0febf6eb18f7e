"""Knowledge graphs: calls run over one, a folder of tables served, public data converted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raypipe.api.results import Result, as_json, outside_loop, plain
from raypipe.api.session import Session
from raypipe.core.errors import ConfError
from raypipe.core.kg import CallResult
from raypipe.core.llm import Grammar
from raypipe.kg import public_data
from raypipe.kg.client import connect
from raypipe.kg.execute import run
from raypipe.kg.fetch.backend import ServerBackend
from raypipe.kg.graph import GraphBackend, open_folder
from raypipe.kg.language.parser import Parse, parser
from raypipe.kg.language.time_words import moment
from raypipe.kg.tables import load


@dataclass(frozen=True, slots=True)
class CallsResult(Result):
    """What calls over a graph gave; a row for each line."""

    SCHEMA = "call values rows:int64 requests:int64 ms:float64 fault"
    results: tuple[CallResult, ...]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        for r in self.results:
            values = ", ".join(map(str, r.values))
            fault = None if r.fault is None else f"{r.fault.reason}: {r.fault.detail}"
            counts = {"rows": len(r.rows), "requests": len(r.requests), "ms": r.ms}
            yield {"call": r.call, "values": values, **counts, "fault": fault}

    def to_json(self) -> dict[str, Any]:
        return as_json(results=[_line(r) for r in self.results])


def _line(result: CallResult) -> dict[str, Any]:
    names = ("call", "rows", "values", "sentences", "requests", "fault")
    found = {name: plain(getattr(result, name)) for name in names}
    if found["fault"] is not None:
        del found["fault"]["step"]  # no recipe has it
    return {**found, "ms": round(result.ms, 3)}


@outside_loop
def run_calls(program: str, graph: str, asked_at: str, session: Session | None = None) -> CallsResult:
    """Runs lines of calls over a graph: the mock API's address, or a folder of tables.

    `asked_at` is the time of the question, as `03/05/2024, 23:18:31 PT`. Raises ConfError for an address that
    is none; a call that fails has a fault.
    """
    _, parse = calls_parser(session or Session())

    async def results() -> list[CallResult]:
        async with open_backend(graph) as backend:
            return await run(parse(program), backend, moment(asked_at))

    return CallsResult(tuple(asyncio.run(results())))


def calls_parser(session: Session) -> tuple[Grammar, Parse]:
    """The grammar of calls, for models that write them, and what reads them."""
    text = session.settings.conf.find("grammar", "calls", ".lark").read_text(encoding="utf-8")
    return Grammar(text), parser(text)


@asynccontextmanager
async def open_backend(graph: str) -> AsyncIterator[GraphBackend]:
    """A graph, by the mock API's address or as a folder of tables. Raises ConfError for another address."""
    if "://" not in graph:
        yield open_folder(Path(graph))
    elif graph.startswith(("http://", "https://")):
        async with connect(graph) as ask:
            yield ServerBackend(ask)
    else:
        raise ConfError(f"--graph {graph}: expected http://HOST:PORT or a folder of tables")


@contextmanager
def serve_graph(graph: str | Path, port: int = 0) -> Iterator[str]:
    """Serves a folder of tables with the mock API's endpoints while the block runs; gives the address.

    For tests and demonstrations, on this machine only. Port 0: a free one. Raises ConfError for a port that
    is taken or none, DataError for tables that cannot be read.
    """
    if not 0 <= port < 65536:
        raise ConfError(f"--port {port}: expected 0 to 65535")
    from raypipe.kg.server import serve  # the web framework takes half a second to import

    tables = load(Path(graph))
    with ExitStack() as stack:
        try:
            url = stack.enter_context(serve(tables, port=port))
        except OSError as e:
            raise ConfError(f"--port {port}: {e}. Choose another, or 0 for a free one.") from e
        yield url


@dataclass(frozen=True, slots=True)
class FactsResult(Result):
    """Counts of a table of facts: facts, lines of the file, lines that were skipped; a row for each."""

    SCHEMA = "what count:int64"
    out: Path  # the table
    summary: public_data.BuildSummary

    @property
    def title(self) -> str:
        s = self.summary
        return f"{self.out}: {s.facts} facts of {s.lines} lines, {s.skipped} skipped"

    def rows(self) -> Iterator[Mapping[str, Any]]:
        for what, count in plain(self.summary).items():
            yield {"what": what, "count": count}

    def to_json(self) -> dict[str, Any]:
        return as_json(out=self.out, **plain(self.summary))


def build_facts(
    source: str | Path, kind: public_data.Kind, out: str | Path, credits: str | Path | None = None
) -> FactsResult:
    """Converts a published CSV file to a table of facts: sentences by year or name.

    `kind` says whose columns it has. `credits`, with movielens, is its file of casts and crews. Raises
    DataError for a file that lacks the expected columns.
    """
    built = public_data.build(Path(source), kind, Path(out), Path(credits) if credits else None)
    return FactsResult(Path(out), built)
