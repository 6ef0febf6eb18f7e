"""Calls of knowledge graphs, run over a server or a folder of tables."""

from __future__ import annotations

import asyncio
from pathlib import Path

from raypipe.api.results import outside_loop
from raypipe.api.session import Session
from raypipe.core.errors import ConfError
from raypipe.core.kg import CallResult
from raypipe.kg.client import connect
from raypipe.kg.execute import run
from raypipe.kg.fetch import ServerBackend
from raypipe.kg.graph import open_folder
from raypipe.kg.language.parser import parser
from raypipe.kg.language.program import Program
from raypipe.kg.language.time_words import Moment, moment


@outside_loop
def run_calls(program: str, graph: str, asked_at: str, session: Session | None = None) -> list[CallResult]:
    """Runs lines of calls over a graph: the mock API's address, or a folder of tables.

    `asked_at` is the time of the question, as `03/05/2024, 23:18:31 PT`. Raises ConfError for an address that
    is none; a call that fails has a fault.
    """
    conf = (session or Session()).settings.conf
    grammar = conf.find("grammar", "calls", ".lark").read_text(encoding="utf-8")
    return asyncio.run(_results(graph, parser(grammar)(program), moment(asked_at)))


async def _results(graph: str, program: Program, now: Moment) -> list[CallResult]:
    if "://" not in graph:
        return await run(program, open_folder(Path(graph)), now)
    if not graph.startswith(("http://", "https://")):
        raise ConfError(f"--graph {graph}: expected http://HOST:PORT or a folder of tables")
    async with connect(graph) as ask:
        return await run(program, ServerBackend(ask), now)
