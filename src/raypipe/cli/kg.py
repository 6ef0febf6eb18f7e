"""The commands `kg` and `facts`: run calls over a graph, serve a folder of tables, draft and import examples
of calls, score written calls, propose refresh periods, convert public data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from raypipe.cli.command import Args, arg, at_least, between, called, command, console, one_of_these, printed
from raypipe.core.errors import DataError

if TYPE_CHECKING:
    from raypipe.api.graphs import CallsResult
    from raypipe.api.kg_refresh import RefreshProposal
    from raypipe.api.kg_score import KgScoreResult

DOMAINS = ("finance", "movie", "music", "sports", "open")
SOURCES = ("oscar", "grammy", "movielens", "stocks")  # of facts
SHOWN_ROWS = 10  # on a terminal; --json has them all


GRAPH = arg("--graph URL|DIR", "the mock API's address, or a folder of tables", required=True)
FOLDER = arg("--graph DIR", "a folder of tables", required=True)


@command(
    "kg run",
    "raypipe kg run --graph DIR --time '03/05/2024, 23:18:31 PT' 'get_movie(amelie)[year]'",
    arg("program PROGRAM", "lines of calls; - reads standard input"),
    GRAPH,
    arg("--time T", "time of the question: MM/DD/YYYY, HH:MM:SS PT", required=True, dest="asked_at"),
    "json",
    about="Run calls over a graph and print rows and sentences. Exit code 3 where a call fails.",
)
def _run(args: Args) -> int:
    from raypipe.api.graphs import run_calls

    text = sys.stdin.read() if args.program == "-" else args.program
    found = called(run_calls, args, program=text)
    printed(args, found, _print_calls)
    failed = [(r.call, r.fault) for r in found.results if r.fault is not None]
    if failed:
        call, fault = failed[0]
        counts = f"{len(failed)} of {len(found.results)} calls failed"
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise DataError(f"{counts}: {call}: {fault.reason}: {fault.detail}{more}")
    return 0


def _print_calls(found: CallsResult) -> None:
    out = console()

    def line(text: str, style: str | None = None) -> None:
        out.print(text, style=style, highlight=False, markup=False)

    for result in found.results:
        line(result.call, "bold")
        if result.fault is not None:
            line(f"  fault {result.fault.reason}: {result.fault.detail}")
            continue
        for link in result.links:
            line(f"  {link.written} -> {link.name} ({link.level})")
        for name in result.unknown:
            line(f"  {name}: not in the graph")
        values = ", ".join(str(v) for v in result.values[:SHOWN_ROWS])
        took = f"{len(result.rows)} rows, {len(result.requests)} requests, {result.ms:.0f} ms"
        line(f"  values: {values or 'none'} ({took})")
        for sentence in result.sentences:
            line(f"  {sentence}")


@command(
    "kg serve",
    "raypipe kg serve --graph DIR --port 8000",
    FOLDER,
    arg("--port N", "on this machine only (8000); 0: a free one", between(0, 65535), 8000),
    about="Serve a folder of tables with the mock API's endpoints, for tests and demonstrations.",
)
def _serve(args: Args) -> int:
    import signal

    from raypipe.api.graphs import serve_graph

    with serve_graph(args.graph, args.port) as url:
        print(f"serving {args.graph} at {url}; stop with Ctrl-C", flush=True)
        signal.pause()
    return 0


@command(
    "kg examples draft",
    "raypipe kg examples draft --data dev.jsonl --model llama-3-8b --prompt db3/calls-movie "
    "--graph kg --out drafts.jsonl",
    arg("--data PATH+", "questions", required=True),
    "format",
    arg("--model MODEL", "a generator of the models file", required=True),
    "models",
    arg("--prompt PROMPT", "under conf/prompts (db3/calls-open)", default="db3/calls-open"),
    FOLDER,
    arg("--number N", "questions (100)", at_least(1), 100),
    arg("--out FILE", "drafts, JSON lines", Path, required=True),
    about="Ask a model for the calls of some questions, run them, and show what failed.",
)
def _draft(args: Args) -> int:
    from raypipe.api.kg_examples import draft_examples
    from raypipe.api.paths import require_file
    from raypipe.metrics.textfile import write_json_lines

    require_file(args.out, "--out")
    drafts = called(draft_examples, args)
    write_json_lines(args.out, drafts)
    failed = [d for d in drafts if d["failed"]]
    for d in failed:
        print(f"{d['query']}\n  {d['calls']}\n  {d['failed']}")
    print(
        f"{len(drafts)} drafts in {args.out}, {len(failed)} failed. Correct those worth keeping, "
        f'mark them "use": true, and import them.'
    )
    return 0


@command(
    "kg examples import",
    "raypipe kg examples import drafts.jsonl --domain movie --into conf/examples/mine.yaml",
    arg("drafts FILE"),
    arg("--domain", choices=DOMAINS, required=True),
    arg("--into FILE", "a bank; made where there is none", required=True),
    about='Check the drafts that are marked "use": true and append them to a bank of examples.',
)
def _import(args: Args) -> int:
    from raypipe.api.kg_examples import import_examples

    print(f"{args.into}: {called(import_examples, args)} examples added")
    return 0


@command(
    "kg score",
    "raypipe kg score --gold synth --predictions drafts.jsonl --graph synth/kg",
    arg(
        "--gold PATH",
        "JSON lines of query, query_time, calls (or kg_program) and rule, or a folder of them",
        required=True,
    ),
    arg(
        "--predictions PATH",
        "JSON lines of calls and id or query, such as drafts, or the folder of a run",
        required=True,
    ),
    GRAPH,
    arg("--reply REPLY", "of a run: the reply that has the calls (calls)", default="calls"),
    arg("--out FILE", "write a JSON line for each question", Path),
    "json",
    about="Score written calls against gold programs: to the letter, and by what both give over a graph.",
)
def _score(args: Args) -> int:
    from raypipe.api.kg_score import score_calls
    from raypipe.api.paths import require_file
    from raypipe.metrics.textfile import write_json_lines

    if args.out is not None:
        require_file(args.out, "--out")
    found = called(score_calls, args)
    if args.out is not None:
        write_json_lines(args.out, map(dict, found.rows()))
    return printed(args, found, _print_score)


def _print_score(found: KgScoreResult) -> None:
    from raypipe.report.console import grid

    tree = found.to_json()
    shown = grid("questions", "count", *(m["measure"] for m in tree["measures"]))
    all_of = {"label": "", "value": "all", "measures": tree["measures"]}
    for part in (all_of, *tree["slices"]):
        of = max(m["of"] for m in part["measures"])
        cells = ["-" if m["rate"] is None else f"{m['rate']:.3f}" for m in part["measures"]]
        shown.add_row(f"{part['label']} {part['value']}".strip(), str(of), *cells)
    console().print(shown)
    print(f"{tree['missing']} questions without a prediction, {tree['extra']} predictions without a gold")


@command(
    "kg refresh",
    "raypipe kg refresh --graph crag-mock --propose llama-3-8b",
    arg("--graph NAME", "a graph of kind server in graphs.yaml", required=True),
    one_of_these(
        arg("--propose MODEL", "a generator of the models file"),
        arg("--observed", "by how often the store's replies changed"),
    ),
    "store models",
    arg("--accept", "write the proposal into graphs.yaml"),
    "cluster json",
    about="Propose how long a graph's replies hold, by domain: in a model's opinion, or by what changed.",
)
def _refresh(args: Args) -> int:
    from raypipe.api.kg_refresh import observed_refresh, propose_refresh

    def show(found: RefreshProposal) -> None:
        from raypipe.report.console import grid

        shown = grid("domain", "now", "proposed")
        for row in found.rows():
            shown.add_row(*row.values())
        console().print(shown)
        what = "is written to" if args.accept else "is not written: --accept puts it into"
        seen = [f"{d} {r.changed} of {r.pairs} changed" for d, r in found.seen.items()]
        by = ", ".join(seen) or "nothing" if args.observed else args.propose
        print(f"by {by}; it {what} {found.file}")

    if args.observed:
        return printed(args, called(observed_refresh, args), show)
    return printed(args, called(propose_refresh, args, model=args.propose), show)


@command(
    "facts build",
    "raypipe facts build the_oscar_award.csv --source oscar --out facts/oscar.parquet",
    arg("source CSV", type=Path),
    arg("--source", "whose columns it has", choices=SOURCES, required=True, dest="kind"),
    arg("--out FILE", "the table, a Parquet file", Path, required=True),
    arg("--credits CSV", "with movielens: its file of casts and crews", Path),
    "json",
    about="Convert a published CSV file to a table of facts: sentences by year or name.",
)
def _build(args: Args) -> int:
    from raypipe.api.graphs import build_facts

    use = f"use it with --graph {args.kind}={args.out}"
    return printed(args, called(build_facts, args), lambda found: print(found.title, use, sep="\n"))
