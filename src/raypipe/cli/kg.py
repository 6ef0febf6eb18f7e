"""The command `kg`: run calls over a graph, serve a folder of tables, draft and import examples of calls,
score written calls, propose refresh periods."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from raypipe.api.settings import Settings
from raypipe.cli import options
from raypipe.core.errors import DataError

if TYPE_CHECKING:
    from raypipe.core.kg import CallResult

DOMAINS = ("finance", "movie", "music", "sports", "open")
SHOWN_ROWS = 10  # on a terminal; --json has them all


def add(commands: options.Commands) -> None:
    """Declares `kg run`, `kg serve`, `kg examples`, `kg score` and `kg refresh`."""
    kinds = options.parent(commands, "kg", "kind")
    made = options.command(
        kinds,
        "run",
        "raypipe kg run --graph DIR --time '03/05/2024, 23:18:31 PT' 'get_movie(amelie)[year]'",
        _run,
        "Run calls over a graph and print rows and sentences. Exit code 3 where a call fails.",
    )
    made.add_argument("program", metavar="PROGRAM", help="lines of calls; - reads standard input")
    made.add_argument(
        "--graph", metavar="URL|DIR", required=True, help="the mock API's address, or a folder of tables"
    )
    made.add_argument(
        "--time", metavar="T", required=True, help="time of the question: MM/DD/YYYY, HH:MM:SS PT"
    )
    options.as_json(made)
    made = options.command(
        kinds,
        "serve",
        "raypipe kg serve --graph DIR --port 8000",
        _serve,
        "Serve a folder of tables with the mock API's endpoints, for tests and demonstrations.",
    )
    made.add_argument("--graph", metavar="DIR", type=Path, required=True, help="a folder of tables")
    made.add_argument(
        "--port",
        metavar="N",
        type=options.between(0, 65535),
        default=8000,
        help="on this machine only (8000); 0: a free one",
    )
    _add_examples(kinds)
    _add_score(kinds)
    made = options.command(
        kinds,
        "refresh",
        "raypipe kg refresh --graph crag-mock --propose llama-3-8b",
        _refresh,
        "Propose how long a graph's replies hold, by domain: in a model's opinion, or by what changed.",
    )
    made.add_argument("--graph", metavar="NAME", required=True, help="a graph of kind server in graphs.yaml")
    by = made.add_mutually_exclusive_group(required=True)
    by.add_argument("--propose", metavar="MODEL", help="a generator of the models file")
    by.add_argument("--observed", action="store_true", help="by how often the store's replies changed")
    options.store(made)
    options.models(made)
    made.add_argument("--accept", action="store_true", help="write the proposal into graphs.yaml")
    options.cluster(made)
    options.as_json(made)


def _add_examples(kinds: options.Commands) -> None:
    about = "Draft calls with a model, and import corrected ones as examples."
    whats = options.parent(kinds, "examples", "what", about)
    made = options.command(
        whats,
        "draft",
        "raypipe kg examples draft --data dev.jsonl --model llama-3-8b --prompt db3/calls-movie "
        "--graph kg --out drafts.jsonl",
        _draft,
        "Ask a model for the calls of some questions, run them, and show what failed.",
    )
    made.add_argument("--data", metavar="PATH", nargs="+", required=True, help="questions")
    options.format_of(made)
    made.add_argument("--model", required=True, help="a generator of the models file")
    options.models(made)
    made.add_argument("--prompt", default="db3/calls-open", help="under conf/prompts (db3/calls-open)")
    made.add_argument("--graph", metavar="DIR", required=True, help="a folder of tables")
    made.add_argument("--number", metavar="N", type=options.at_least(1), default=100, help="questions (100)")
    made.add_argument("--out", metavar="FILE", type=Path, required=True, help="drafts, JSON lines")
    made = options.command(
        whats,
        "import",
        "raypipe kg examples import drafts.jsonl --domain movie --into conf/examples/mine.yaml",
        _import,
        'Check the drafts that are marked "use": true and append them to a bank of examples.',
    )
    made.add_argument("drafts", metavar="FILE")
    made.add_argument("--domain", choices=DOMAINS, required=True)
    made.add_argument("--into", metavar="FILE", required=True, help="a bank; made where there is none")


def _add_score(kinds: options.Commands) -> None:
    made = options.command(
        kinds,
        "score",
        "raypipe kg score --gold synth --predictions drafts.jsonl --graph synth/kg",
        _score,
        "Score written calls against gold programs: to the letter, and by what both give over a graph.",
    )
    made.add_argument(
        "--gold",
        metavar="PATH",
        required=True,
        help="JSON lines of query, query_time, calls (or kg_program) and rule, or a folder of them",
    )
    made.add_argument(
        "--predictions",
        metavar="PATH",
        required=True,
        help="JSON lines of calls and id or query, such as drafts, or the folder of a run",
    )
    made.add_argument(
        "--graph", metavar="URL|DIR", required=True, help="the mock API's address, or a folder of tables"
    )
    made.add_argument("--reply", default="calls", help="of a run: the reply that has the calls (calls)")
    made.add_argument("--out", metavar="FILE", type=Path, help="write a JSON line for each question")
    options.as_json(made)


def _run(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.graphs import run_calls

    text = sys.stdin.read() if args.program == "-" else args.program
    found = run_calls(text, args.graph, args.time, options.session(args, settings))
    if args.json:
        options.print_json(found.to_json())
    else:
        _print(found.results)
    failed = [(r.call, r.fault) for r in found.results if r.fault is not None]
    if failed:
        call, fault = failed[0]
        counts = f"{len(failed)} of {len(found.results)} calls failed"
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise DataError(f"{counts}: {call}: {fault.reason}: {fault.detail}{more}")
    return 0


def _print(results: tuple[CallResult, ...]) -> None:
    from rich.markup import escape

    console = options.console()
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
    import signal

    from raypipe.api.graphs import serve_graph

    with serve_graph(args.graph, args.port) as url:
        print(f"serving {args.graph} at {url}; stop with Ctrl-C", flush=True)
        signal.pause()
    return 0


def _draft(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.kg_examples import draft_examples
    from raypipe.api.paths import require_file
    from raypipe.metrics.textfile import write_json_lines

    require_file(args.out, "--out")
    session = options.session(args, settings)
    drafts = draft_examples(
        args.data, args.graph, args.model, args.prompt, args.number, args.format, session, args.fields
    )
    write_json_lines(args.out, drafts)
    failed = [d for d in drafts if d["failed"]]
    for d in failed:
        print(f"{d['query']}\n  {d['calls']}\n  {d['failed']}")
    print(
        f"{len(drafts)} drafts in {args.out}, {len(failed)} failed. Correct those worth keeping, "
        f'mark them "use": true, and import them.'
    )
    return 0


def _import(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.kg_examples import import_examples

    count = import_examples(args.drafts, args.domain, args.into, options.session(args, settings))
    print(f"{args.into}: {count} examples added")
    return 0


def _score(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.kg_score import score_calls
    from raypipe.api.paths import require_file
    from raypipe.metrics.textfile import write_json_lines

    if args.out is not None:
        require_file(args.out, "--out")
    session = options.session(args, settings)
    found = score_calls(args.gold, args.predictions, args.graph, args.reply, session)
    if args.out is not None:
        write_json_lines(args.out, map(dict, found.rows()))
    if args.json:
        options.print_json(found.to_json())
        return 0
    from raypipe.report.console import grid

    shown = grid("questions", "count", *(r.measure for r in found.rates()))
    tree = found.to_json()
    all_of = {"label": "", "value": "all", "measures": tree["measures"]}
    for part in (all_of, *tree["slices"]):
        of = max(m["of"] for m in part["measures"])
        cells = ["-" if m["rate"] is None else f"{m['rate']:.3f}" for m in part["measures"]]
        shown.add_row(f"{part['label']} {part['value']}".strip(), str(of), *cells)
    options.console().print(shown)
    print(f"{tree['missing']} questions without a prediction, {tree['extra']} predictions without a gold")
    return 0


def _refresh(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.kg_refresh import observed_refresh, propose_refresh

    session = options.session(args, settings)
    if args.observed:
        found = observed_refresh(args.graph, args.store, args.accept, session)
    else:
        found = propose_refresh(args.graph, args.propose, args.accept, session)
    if args.json:
        options.print_json(found.to_json())
        return 0
    from raypipe.report.console import grid

    shown = grid("domain", "now", "proposed")
    for row in found.rows():
        shown.add_row(*row.values())
    options.console().print(shown)
    what = "is written to" if args.accept else "is not written: --accept puts it into"
    seen = [f"{d} {r.changed} of {r.pairs} changed" for d, r in found.seen.items()]
    by = ", ".join(seen) or "nothing" if args.observed else args.propose
    print(f"by {by}; it {what} {found.file}")
    return 0
