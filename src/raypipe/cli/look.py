"""Commands that look at a finished run: why, faults, losses, export, view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raypipe.cli.command import (
    Args,
    arg,
    between,
    called,
    command,
    console,
    names,
    on_console,
    print_json,
    printed,
    say,
)
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.export import ExportResult


@command(
    "why",
    "raypipe why /data/runs/local 2f5d8a",
    "run",
    arg("row ROW", "a question's id, or how it begins"),
    "json",
)
def _why(args: Args) -> int:
    from raypipe.api.look import why
    from raypipe.report.plans import print_explanation

    return printed(args, called(why, args), on_console(print_explanation))


@command(
    "faults",
    "raypipe faults /data/runs/local --json",
    arg(
        "run DIR?",
        "the --out folder of a finished eval (default: the files and lines that could not be read into "
        "the store)",
    ),
    "store json",
)
def _faults(args: Args) -> int:
    from raypipe.api.look import faults
    from raypipe.report.console import print_undone_rows

    return printed(args, called(faults, args), on_console(print_undone_rows))


@command(
    "losses",
    "raypipe losses /data/runs/local --at recall",
    "run",
    arg("--at PLACE", "list the questions that were lost there (default: of all places, none)"),
    "json",
)
def _losses(args: Args) -> int:
    from raypipe.api.look import LossesResult, losses
    from raypipe.metrics.losses import place

    at = None if args.at is None else place(args.at)
    found = losses(args.run)

    def show(found: LossesResult) -> None:
        from raypipe.report.console import print_losses, print_lost, say

        out = console()
        print_losses(out, found.to_json()["losses"])
        if at is not None:
            print_lost(out, found.questions)
        if not (found.losses.misses if at is None else found.questions):
            say(out, f"no question was lost{'' if at is None else f' at {args.at}'}")

    return printed(args, found if at is None else found.at(at), show)


@command(
    "export",
    "raypipe export /data/runs/local --as trec --out local.trec",
    arg("run RUN", "the --out folder of a finished eval"),
    arg(
        "--as",
        "predictions: as predictions.jsonl; crag: what CRAG's evaluation reads; trec: the ranking; "
        "oag: OAG-QA's submission, a line of 20 papers a question; mlflow: a run of an MLflow server",
        dest="shape",
        choices=("predictions", "crag", "trec", "oag", "mlflow"),
        required=True,
    ),
    arg("--out FILE", "the file to write; of mlflow the server's address", required=True),
    arg("--experiment NAME", "of mlflow: the experiment that gets the run (default: raypipe)"),
    "json",
)
def _export(args: Args) -> int:
    from raypipe.api.export import export_run

    return printed(args, called(export_run, args), _print_export)


def _print_export(made: ExportResult) -> None:
    if made.shape == "mlflow":
        what = ", ".join(f"{n} {name}" for name, n in made.counts.items()).replace("artifacts", "files")
        print(f"run {made.run} of {made.file}: {'was there already' if made.there else what}")
        return
    print(f"{made.counts['lines']} lines: {made.file}")
    if failed := made.counts.get("failed"):
        said = "their lines are empty" if made.shape == "oag" else 'the file says "i don\'t know" of them'
        print(f"{failed} questions failed; {said}")


@command(
    "view",
    "raypipe view /data/runs/local /data/runs/tuned",
    arg(
        "runs DIR*",
        "folder or URI of a finished eval, or a folder of such (default: the runs under $RAYPIPE_HOME, "
        "and those that the store knows)",
    ),
    arg("--out FILE", "write the page of one run or two as one file, and end"),
    arg(
        "--without PARTS",
        "of the file: leave out prompts, or pages (texts of pages, and the prompts, which hold them)",
        names,
        (),
    ),
    arg("--labels FILE", "where people's marks are written (default: labels.jsonl in the run's folder)"),
    arg("--port N", "0: a free one (default: 8001)", between(0, 65535), 8001),
    "store json",
)
def _view(args: Args) -> int:
    from raypipe.api.view import left_out, list_runs, serve_view, write_view

    if args.out is None and args.without:
        raise ConfError("--without: it leaves parts out of a file, found no --out. Name it: --out FILE")
    if args.out is not None and args.labels is not None:
        raise ConfError("--labels: a file of --out takes no marks. Leave out one of the two")
    if args.out is not None:
        made = called(write_view, args)
        return printed(args, made, lambda made: print(f"{made.file}: {made.bytes / 1e6:.1f} MB"))
    if args.json:
        found = called(list_runs, args, dirs=args.runs)
        print_json(found.to_json())
        if found.unread:
            say(f"{len(found.runs)} runs{left_out(found.unread)}")
        return 0
    called(serve_view, args, dirs=args.runs, say=say)
    return 0
