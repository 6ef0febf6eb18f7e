"""`raypipe kg`: runs knowledge-graph calls over a server or a folder of tables, and serves such a folder.

Examples of calls are in `kg_examples`, periods of refresh in `kg_refresh`.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from raypipe.cli import kg_examples, kg_refresh, options
from raypipe.cli.settings import Settings
from raypipe.core.errors import ConfError
from raypipe.core.kg import CallResult
from raypipe.kg.client import connect
from raypipe.kg.execute import run
from raypipe.kg.fetch import ServerBackend
from raypipe.kg.graph import open_folder
from raypipe.kg.language.parser import parser
from raypipe.kg.language.program import Program
from raypipe.kg.language.time_words import Moment, moment
from raypipe.kg.tables import load

SHOWN_ROWS = 10  # on a terminal; --json has them all


def add(commands: options.Commands) -> None:
    """Declares `kg run`, `kg serve`, `kg examples` and `kg refresh`."""
    top = commands.add_parser("kg", help="ask a knowledge graph")
    kinds = top.add_subparsers(dest="kind", metavar="KIND", required=True)
    made = options.command(
        kinds,
        "run",
        "run calls over a graph and print rows and sentences",
        "raypipe kg run --graph DIR --time '03/05/2024, 23:18:31 PT' 'get_movie(amelie)[year]'",
        _run,
    )
    made.add_argument("program", metavar="PROGRAM", help="lines of calls; - reads standard input")
    made.add_argument(
        "--graph", metavar="URL|DIR", required=True, help="the mock API's address, or a folder of tables"
    )
    made.add_argument(
        "--time", metavar="T", required=True, help="the moment of asking: MM/DD/YYYY, HH:MM:SS PT"
    )
    options.as_json(made)
    made = options.command(
        kinds,
        "serve",
        "serve a folder of tables with the mock API's endpoints, for tests and demonstrations",
        "raypipe kg serve --graph DIR --port 8000",
        _serve,
    )
    made.add_argument("--graph", metavar="DIR", type=Path, required=True, help="a folder of tables")
    made.add_argument("--port", type=int, default=8000, help="on this machine only (8000); 0: a free one")
    kg_examples.add(kinds)
    kg_refresh.add(kinds)


def _run(args: argparse.Namespace, settings: Settings) -> int:
    text = sys.stdin.read() if args.program == "-" else args.program
    grammar = settings.conf.find("grammar", "calls", ".lark").read_text(encoding="utf-8")
    program, now = parser(grammar)(text), moment(args.time)
    results = asyncio.run(_results(args.graph, program, now))
    if args.json:
        options.print_json({"results": [_json(r) for r in results]})
    else:
        _print(Console(), results)
    return 0


async def _results(graph: str, program: Program, now: Moment) -> list[CallResult]:
    if "://" not in graph:
        return await run(program, open_folder(Path(graph)), now)
    if not graph.startswith(("http://", "https://")):
        raise ConfError(f"--graph {graph}: expected http://HOST:PORT or a folder of tables")
    async with connect(graph) as ask:
        return await run(program, ServerBackend(ask), now)


def _json(result: CallResult) -> dict[str, Any]:
    fault = result.fault
    return {
        "call": result.call,
        "rows": [dict(r) for r in result.rows],
        "values": list(result.values),
        "sentences": list(result.sentences),
        "requests": list(result.requests),
        "ms": round(result.ms, 3),
        "fault": None
        if fault is None
        else {"reason": fault.reason, "detail": fault.detail, "transient": fault.transient},
    }


def _print(console: Console, results: list[CallResult]) -> None:
    for result in results:
        console.print(f"[bold]{escape(result.call)}[/bold]", highlight=False)
        if result.fault is not None:
            console.print(f"  fault {result.fault.reason}: {escape(result.fault.detail)}", highlight=False)
            continue
        for link in result.links:
            console.print(f"  {escape(link.written)} -> {escape(link.name)} ({link.level})", highlight=False)
        for name in result.unknown:
            console.print(f"  {escape(name)}: not in the graph", highlight=False)
        values = ", ".join(str(v) for v in result.values[:SHOWN_ROWS])
        took = f"{len(result.rows)} rows, {len(result.requests)} requests, {result.ms:.0f} ms"
        console.print(f"  values: {escape(values) or 'none'} ({took})", highlight=False)
        for sentence in result.sentences:
            console.print(f"  {escape(sentence)}", highlight=False)


def _serve(args: argparse.Namespace, settings: Settings) -> int:
    if not 0 <= args.port < 65536:
        raise ConfError(f"--port {args.port}: expected 0 to 65535")
    from raypipe.kg.server import serve

    tables = load(args.graph)
    try:
        with serve(tables, port=args.port) as url:
            print(f"serving {args.graph} at {url}; stop with Ctrl-C", flush=True)
            signal.pause()
    except OSError as e:
        raise ConfError(f"--port {args.port}: {e}. Choose another, or 0 for a free one.") from e
    return 0
