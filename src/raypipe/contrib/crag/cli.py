"""Commands `kg` and `facts`. The API of a command is imported when it runs, so that help stays quick."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raypipe.api.cli import arguments as shared
from raypipe.api.cli.command import Shell, Shown, arg, command, console, table
from raypipe.api.session import Session
from raypipe.core.errors import ConfError, DataError
from raypipe.core.textfile import require_file, write_json_lines

if TYPE_CHECKING:
    from raypipe.contrib.crag.api.graphs import CallsResult
    from raypipe.contrib.crag.api.kg_refresh import RefreshProposal
    from raypipe.contrib.crag.api.kg_score import KgScoreResult

SUBCOMMANDS = {"kg examples": "Draft calls with a model, and import corrected ones as examples."}
SHOWN_ROWS = 10  # values of a call on a terminal; --json prints all
GRAPH: Any = arg("the mock API's address, or a folder of tables", "URL|DIR", needed=True)
FOLDER: Any = arg("a folder of tables", "DIR", needed=True)


@command("kg run", "--graph DIR --time '03/05/2024, 23:18:31 PT' 'get_movie(amelie)[year]'")
def kg_run(
    session: Session,
    program: str = arg("lines of calls; - reads standard input", "PROGRAM", needed=True),
    *,
    graph: str = GRAPH,
    time: str = arg("time of the question: MM/DD/YYYY, HH:MM:SS PT", "T", needed=True),
) -> Shown[Any]:
    """Run calls over a graph and print values and sentences. Exit code 3 if a call fails."""
    from raypipe.contrib.crag.api.graphs import run_calls

    text = sys.stdin.read() if program == "-" else program
    result = run_calls(text, graph, time, session)
    return Shown(result, _print_calls, after=lambda: _require_rows(result))


def _require_rows(result: CallsResult) -> None:
    failed = [(r.call, r.fault) for r in result.results if r.fault is not None]
    if failed:
        call, fault = failed[0]
        counts = f"{len(failed)} of {len(result.results)} calls failed"
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise DataError(f"{counts}: {call}: {fault.reason}: {fault.detail}{more}")


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


@command("kg build", "shop.yaml --out kg")
def kg_build(
    plan: str = arg("tables of the graph, their files and columns", "YAML", needed=True),
    *,
    out: str = arg("a new folder", "DIR", needed=True),
) -> Shown[Any]:
    """Build a graph's folder from CSV files: their columns become entities, attributes and dated values."""
    from raypipe.contrib.crag.api.graphs import GraphResult, build_graph

    def show(result: GraphResult) -> None:
        table(("table", "lines", "rows", "keys"), [list(row.values()) for row in result.rows()])
        print(result.title, f"serve it with raypipe kg serve --graph {out}", sep="\n")

    return Shown(build_graph(plan, out), show)


@command("kg serve", "--graph DIR --port 8000")
def kg_serve(
    *,
    graph: str = FOLDER,
    port: int = arg("on this machine only (8000); 0: free", "N", shared.whole(0, 65535), default=8000),
) -> int:
    """Serve a folder of tables with the mock API's endpoints, for tests and demonstrations."""
    from raypipe.contrib.crag.api.graphs import serve_graph

    with serve_graph(graph, port) as url:
        print(f"serving {graph} at {url}; stop with Ctrl-C", flush=True)
        signal.pause()
    return 0


@command(
    "kg examples draft",
    "--data dev.jsonl --model llama-3-8b --prompt db3/calls-movie --graph kg --out drafts.jsonl",
)
def kg_examples_draft(
    shell: Shell,
    *,
    data: Sequence[str] = arg("questions", "PATH", needed=True),
    format: str | None = shared.FORMAT,
    fields: str | None = shared.FIELDS,
    model: str = arg("a generator of the models file", "MODEL", needed=True),
    models: str | None = shared.MODELS,
    prompt: str = arg("under conf/prompts (db3/calls-open)", "PROMPT", default="db3/calls-open"),
    graph: str = FOLDER,
    number: int = arg("questions (100)", "N", shared.whole(1), default=100),
    out: Path = arg("drafts, JSON lines", "FILE", needed=True),
) -> int:
    """Ask a model for the calls of some questions, run them, and show which failed."""
    from raypipe.contrib.crag.api.graphs import draft_examples

    require_file(out, "--out")
    session = shell.session(models)
    drafts = draft_examples(data, graph, model, prompt, number, format, session, fields)
    write_json_lines(out, drafts)
    failed = [d for d in drafts if d["failed"]]
    for d in failed:
        print(f"{d['query']}\n  {d['calls']}\n  {d['failed']}")
    print(
        f"{len(drafts)} drafts in {out}, {len(failed)} failed. Correct those worth keeping, "
        f'mark them "use": true, and import them.'
    )
    return 0


@command("kg examples import", "drafts.jsonl --domain movie --into conf/examples/mine.yaml")
def kg_examples_import(
    session: Session,
    drafts: str = arg("drafts, JSON lines", "FILE", needed=True),
    *,
    domain: Literal["finance", "movie", "music", "sports", "open"] = arg("of the questions", needed=True),
    into: str = arg("a bank; made where there is none", "FILE", needed=True),
) -> int:
    """Check the drafts that are marked "use": true and append them to a bank of examples."""
    from raypipe.contrib.crag.api.graphs import import_examples

    print(f"{into}: {import_examples(drafts, domain, into, session)} examples added")
    return 0


@command("kg score", "--gold synth --predictions drafts.jsonl --graph synth/kg")
def kg_score(
    session: Session,
    *,
    gold: str = arg("lines of query, query_time, calls and rule, or a folder", "PATH", needed=True),
    predictions: str = arg("JSON lines of calls and id or query, or a run", "PATH", needed=True),
    graph: str = GRAPH,
    reply: str = arg("of a run: the reply that has the calls (calls)", "REPLY", default="calls"),
    out: Path | None = arg("write a JSON line for each question", "FILE"),
) -> Shown[Any]:
    """Score written calls against gold programs: by their text, and by their results over a graph."""
    from raypipe.contrib.crag.api.kg_score import score_calls

    if out is not None:
        require_file(out, "--out")
    result = score_calls(gold, predictions, graph, reply, session)
    if out is not None:
        write_json_lines(out, result.rows())
    return Shown(result, _print_score)


def _print_score(result: KgScoreResult) -> None:
    tree, rows = result.to_dict(), []
    for part in ({"label": "", "value": "all", "measures": tree["measures"]}, *tree["slices"]):
        of = max(m["of"] for m in part["measures"])
        cells = ["-" if m["rate"] is None else f"{m['rate']:.3f}" for m in part["measures"]]
        rows.append((f"{part['label']} {part['value']}".strip(), of, *cells))
    table(("questions", "count", *(m["measure"] for m in tree["measures"])), rows)
    print(f"{tree['missing']} questions without a prediction, {tree['extra']} predictions without a gold")


@command("kg refresh", "--graph crag-mock --propose llama-3-8b")
def kg_refresh(
    shell: Shell,
    *,
    graph: str = arg("a graph of kind server in graphs.yaml", "NAME", needed=True),
    propose: str | None = arg("a generator of the models file: this or --observed is required", "MODEL"),
    observed: bool = arg("by how often the store's replies changed"),
    place: shared.StoreFlags,
    models: str | None = shared.MODELS,
    cluster: str = shared.CLUSTER,
) -> Shown[Any]:
    """Propose how long a graph's replies stay valid, by domain: a model's opinion, or observed changes."""
    from raypipe.contrib.crag.api.kg_refresh import observed_refresh, propose_refresh

    def show(proposal: RefreshProposal) -> None:
        table(("domain", "now", "proposed"), [list(row.values()) for row in proposal.rows()])
        seen = [f"{d} {r['changed']} of {r['pairs']} changed" for d, r in proposal.seen.items()]
        by = propose or ", ".join(seen) or "nothing"
        print(f"by {by}; to accept it, put into {proposal.file}, under {proposal.graph}:\n  {proposal.line}")

    if observed == (propose is not None):
        raise ConfError("expected one of --propose MODEL and --observed")
    session = shell.session(models, cluster)
    if propose is not None:
        return Shown(propose_refresh(graph, propose, session), show)
    return Shown(observed_refresh(graph, place.uri(session), session), show)


@command("facts build", "the_oscar_award.csv --source oscar --out facts/oscar.parquet")
def facts_build(
    source: Path = arg("a published file", "CSV", needed=True),
    *,
    kind: Literal["oscar", "grammy", "movielens", "stocks"] = arg(
        "of its columns", flag="--source", needed=True
    ),
    out: Path = arg("the table, a Parquet file", "FILE", needed=True),
    credits: Path | None = arg("with movielens: its file of casts and crews", "CSV"),
    sentences: Literal["prose", "attributes"] = arg(
        'prose, as db3\'s code has them (default); attributes: "The [attribute] is [value]."', default="prose"
    ),
) -> Shown[Any]:
    """Convert a published CSV file to a table of facts: sentences by year or name."""
    from raypipe.contrib.crag.api.graphs import build_facts

    use = f"use it with --graph {kind}={out}"
    built = build_facts(source, kind, out, credits, sentences)
    return Shown(built, lambda result: print(result.title, use, sep="\n"))
