"""Commands that look at a finished run: why, faults, losses."""

from __future__ import annotations

from raypipe.cli.command import Args, arg, called, command, console, on_console, printed


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
        from raypipe.report.console import print_losses, print_lost

        out = console()
        print_losses(out, found.to_json()["losses"])
        if at is not None:
            print_lost(out, found.questions)

    return printed(args, found if at is None else found.at(at), show)
