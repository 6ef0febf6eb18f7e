"""Commands that look at a finished run: why, faults, losses, export, view, reproduce."""

from __future__ import annotations

from typing import TYPE_CHECKING

import raypipe
from raypipe.api.cli.command import Args, called, command, console, on_console, printed, say, table
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.look import ExportResult, LossesResult
    from raypipe.api.reproduce import ReproduceResult, Reproductions


@command
def _why(args: Args) -> int:
    """raypipe why /data/runs/local 2f5d8a
    run
    row ROW: a question's id, or how it begins
    json
    """
    shown = lambda found: on_console("plans.print_explanation", found.explanation)  # noqa: E731
    return printed(args, called(raypipe.why, args), shown)


@command
def _faults(args: Args) -> int:
    """raypipe faults /data/runs/local --json
    run DIR?: the --out folder of a finished eval (default: the files and lines that could not be read into
      the store)
    store json
    """
    shown = lambda found: on_console("console.print_row_faults", found.found)  # noqa: E731
    return printed(args, called(raypipe.faults, args), shown)


@command
def _losses(args: Args) -> int:
    """raypipe losses /data/runs/local --at recall
    run
    --at PLACE: list the questions that were lost there (default: of all places, none)
    json
    """
    from raypipe.metrics.losses import place

    at = None if args.at is None else place(args.at)
    found = raypipe.losses(args.run)

    def show(found: LossesResult) -> None:
        on_console("console.print_losses", found.losses)
        on_console("console.print_lost", () if at is None else found.questions)
        if not (found.losses.misses if at is None else found.questions):
            print(f"no question was lost{'' if at is None else f' at {args.at}'}")

    return printed(args, found if at is None else found.at(at), show)


@command
def _export(args: Args) -> int:
    """raypipe export /data/runs/local --as trec --out local.trec
    run RUN: the --out folder of a finished eval
    --as {required predictions|crag|trec|oag|mlflow -> shape}: predictions: as predictions.jsonl; crag: what
      CRAG's evaluation reads; trec: the ranking; oag: OAG-QA's submission, a line of 20 papers a question;
      mlflow: a run of an MLflow server
    --out FILE {required}: the file to write; of mlflow the server's address
    --experiment NAME: of mlflow: the experiment that gets the run (default: raypipe)
    json
    """
    return printed(args, called(raypipe.export_run, args), _print_export)


def _print_export(made: ExportResult) -> None:
    if made.shape == "mlflow":
        what = ", ".join(f"{n} {name}" for name, n in made.counts.items()).replace("artifacts", "files")
        print(f"run {made.run} of {made.file}: {'was there already' if made.there else what}")
        return
    print(f"{made.counts['lines']} lines: {made.file}")
    if failed := made.counts.get("failed"):
        said = "their lines are empty" if made.shape == "oag" else 'the file says "i don\'t know" of them'
        print(f"{failed} questions failed; {said}")


@command
def _view(args: Args) -> int:
    """raypipe view /data/runs/local /data/runs/tuned
    runs DIR*: folder or URI of a finished eval, or a folder of such (default: the runs under $RAYPIPE_HOME,
      and those that the store knows)
    --labels FILE: where people's marks are written (default: labels.jsonl in the run's folder)
    --port N {0..65535 = 8001}: 0: a free one (default: 8001)
    store json
    """
    from raypipe.api.view import left_out, serve_view

    if args.json:
        found = called(raypipe.list_runs, args, dirs=args.runs)
        if found.unread:
            say(f"{len(found.runs)} runs{left_out(found.unread)}")
        return printed(args, found, say)
    called(serve_view, args, dirs=args.runs, say=say)
    return 0


MOST = 6  # expected numbers that are listed


@command
def _reproduce(args: Args) -> int:
    """raypipe reproduce scifact --check --data /data/scifact
    name NAME?: a run of conf/reproduce.yaml (default: list them, and what the papers' own numbers need)
    --check: run it and compare its numbers (default: say what they are)
    --data PATH: the folder or file that the run reads
    store cluster json
    """
    from raypipe.api.reproduce import reproductions

    if args.name is None or not args.check:
        return printed(args, called(reproductions, args), _list)
    if args.data is None:
        run = called(reproductions, args).runs[args.name]
        raise ConfError(f"--check: expected --data, {run.data}")
    found = called(raypipe.reproduce, args, check=False)
    printed(args, found, _show)
    found.check()
    return 0


def _show(found: ReproduceResult) -> None:
    print(found.about)
    rows = []
    for n in found.numbers:
        apart = "" if n.difference is None else f"{n.difference:+.4f}"
        said = "none" if n.found is None else f"{n.found:.4f}"
        rows.append((n.measure, n.by, f"{n.expected:.4f}", said, apart, n.verdict))
    table(("measure", "by", "expected", "found", "difference", ""), rows)
    print(f"{found.name}: {found.verdict}")


def _list(known: Reproductions) -> None:
    from raypipe.evaluation.report.console import say

    out = console()
    for name, run in known.runs.items():
        say(out, f"{name}: {run.about}; {run.minutes:g} min", style="bold")
        first = [f"{e.measure}{f' by {e.by}' if e.by else ''} {e.value:g}" for e in run.expected[:MOST]]
        more = f" and {len(run.expected) - MOST} more" if len(run.expected) > MOST else ""
        say(out, f"  --data: {run.data}", f"  expected: {', '.join(first)}{more}")
        say(out, f"  raypipe reproduce {name} --check --data PATH")
    if known.published:
        say(out, "What papers state; their runs need models and data of their own:", style="bold", fold=True)
    for p in known.published:
        say(out, f"{p.recipe}: {p.states}", f"  their model: {p.theirs}; data: {p.data}", f"  {p.command}")
