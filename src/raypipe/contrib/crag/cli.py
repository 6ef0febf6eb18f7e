"""The commands `kg` and `facts`: run calls over a graph, serve a folder of tables, draft and import examples
of calls, score written calls, propose refresh periods, convert public data."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from raypipe.api.cli.command import Args, called, command, console, printed, table
from raypipe.core.errors import DataError

if TYPE_CHECKING:
    from raypipe.contrib.crag.api.graphs import CallsResult
    from raypipe.contrib.crag.api.kg_refresh import RefreshProposal
    from raypipe.contrib.crag.api.kg_score import KgScoreResult

SUBCOMMANDS = {"kg examples": "Draft calls with a model, and import corrected ones as examples."}
SHOWN_ROWS = 10  # on a terminal; --json has them all


@command
def _kg_run(args: Args) -> int:
    """Run calls over a graph and print rows and sentences. Exit code 3 where a call fails.

    raypipe kg run --graph DIR --time '03/05/2024, 23:18:31 PT' 'get_movie(amelie)[year]'
    program PROGRAM: lines of calls; - reads standard input
    --graph URL|DIR {required}: the mock API's address, or a folder of tables
    --time T {required -> asked_at}: time of the question: MM/DD/YYYY, HH:MM:SS PT
    json
    """
    from raypipe.contrib.crag.api.graphs import run_calls

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
    from raypipe.evaluation.report.console import say

    out = console()
    for result in found.results:
        say(out, result.call, style="bold", fold=True)
        if result.fault is not None:
            say(out, f"  fault {result.fault.reason}: {result.fault.detail}", fold=True)
            continue
        values = ", ".join(str(v) for v in result.values[:SHOWN_ROWS])
        took = f"{len(result.rows)} rows, {len(result.requests)} requests, {result.ms:.0f} ms"
        lines = [f"{link.written} -> {link.name} ({link.level})" for link in result.links]
        lines += [f"{name}: not in the graph" for name in result.unknown]
        lines += [f"values: {values or 'none'} ({took})", *result.sentences]
        say(out, *(f"  {line}" for line in lines), fold=True)


@command
def _kg_serve(args: Args) -> int:
    """Serve a folder of tables with the mock API's endpoints, for tests and demonstrations.

    raypipe kg serve --graph DIR --port 8000
    --graph DIR {required}: a folder of tables
    --port N {0..65535 = 8000}: on this machine only (8000); 0: a free one
    """
    import signal

    from raypipe.contrib.crag.api.graphs import serve_graph

    with serve_graph(args.graph, args.port) as url:
        print(f"serving {args.graph} at {url}; stop with Ctrl-C", flush=True)
        signal.pause()
    return 0


@command
def _kg_examples_draft(args: Args) -> int:
    """Ask a model for the calls of some questions, run them, and show what failed.

    raypipe kg examples draft --data dev.jsonl --model llama-3-8b --prompt db3/calls-movie --graph kg
      --out drafts.jsonl
    --data PATH+ {required}: questions
    format
    --model MODEL {required}: a generator of the models file
    models
    --prompt PROMPT {= db3/calls-open}: under conf/prompts (db3/calls-open)
    --graph DIR {required}: a folder of tables
    --number N {1.. = 100}: questions (100)
    --out FILE {required path}: drafts, JSON lines
    """
    from raypipe.contrib.crag.api.graphs import draft_examples
    from raypipe.core.textfile import require_file, write_json_lines

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


@command
def _kg_examples_import(args: Args) -> int:
    """Check the drafts that are marked "use": true and append them to a bank of examples.

    raypipe kg examples import drafts.jsonl --domain movie --into conf/examples/mine.yaml
    drafts FILE
    --domain {required finance|movie|music|sports|open}
    --into FILE {required}: a bank; made where there is none
    """
    from raypipe.contrib.crag.api.graphs import import_examples

    print(f"{args.into}: {called(import_examples, args)} examples added")
    return 0


@command
def _kg_score(args: Args) -> int:
    """Score written calls against gold programs: to the letter, and by what both give over a graph.

    raypipe kg score --gold synth --predictions drafts.jsonl --graph synth/kg
    --gold PATH {required}: JSON lines of query, query_time, calls (or kg_program) and rule, or a folder of
      them
    --predictions PATH {required}: JSON lines of calls and id or query, such as drafts, or the folder of a run
    --graph URL|DIR {required}: the mock API's address, or a folder of tables
    --reply REPLY {= calls}: of a run: the reply that has the calls (calls)
    --out FILE {path}: write a JSON line for each question
    json
    """
    from raypipe.contrib.crag.api.kg_score import score_calls
    from raypipe.core.textfile import require_file, write_json_lines

    if args.out is not None:
        require_file(args.out, "--out")
    found = called(score_calls, args)
    if args.out is not None:
        write_json_lines(args.out, found.rows())
    return printed(args, found, _print_score)


def _print_score(found: KgScoreResult) -> None:
    tree, rows = found.to_dict(), []
    for part in ({"label": "", "value": "all", "measures": tree["measures"]}, *tree["slices"]):
        of = max(m["of"] for m in part["measures"])
        cells = ["-" if m["rate"] is None else f"{m['rate']:.3f}" for m in part["measures"]]
        rows.append((f"{part['label']} {part['value']}".strip(), of, *cells))
    table(("questions", "count", *(m["measure"] for m in tree["measures"])), rows)
    print(f"{tree['missing']} questions without a prediction, {tree['extra']} predictions without a gold")


@command
def _kg_refresh(args: Args) -> int:
    """Propose how long a graph's replies hold, by domain: in a model's opinion, or by what changed.

    raypipe kg refresh --graph crag-mock --propose llama-3-8b
    --graph NAME {required}: a graph of kind server in graphs.yaml

    one of these:
    --propose MODEL: a generator of the models file
    --observed: by how often the store's replies changed

    store models
    cluster json
    """
    from raypipe.contrib.crag.api.kg_refresh import observed_refresh, propose_refresh

    def show(found: RefreshProposal) -> None:
        table(("domain", "now", "proposed"), [list(row.values()) for row in found.rows()])
        seen = [f"{d} {r['changed']} of {r['pairs']} changed" for d, r in found.seen.items()]
        by = ", ".join(seen) or "nothing" if args.observed else args.propose
        print(f"by {by}; to accept it, put into {found.file}, under {found.graph}:\n  {found.line}")

    found = (
        called(observed_refresh, args) if args.observed else called(propose_refresh, args, model=args.propose)
    )
    return printed(args, found, show)


@command
def _facts_build(args: Args) -> int:
    """Convert a published CSV file to a table of facts: sentences by year or name.

    raypipe facts build the_oscar_award.csv --source oscar --out facts/oscar.parquet
    source CSV {path}
    --source {required oscar|grammy|movielens|stocks -> kind}: whose columns it has
    --out FILE {required path}: the table, a Parquet file
    --credits CSV {path}: with movielens: its file of casts and crews
    json
    """
    from raypipe.contrib.crag.api.graphs import build_facts

    use = f"use it with --graph {args.kind}={args.out}"
    return printed(args, called(build_facts, args), lambda found: print(found.title, use, sep="\n"))
