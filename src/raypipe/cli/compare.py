"""The command `compare`."""

from __future__ import annotations

from raypipe.cli import options
from raypipe.cli.command import Args, arg, called, command, console, printed


@command(
    "compare",
    "raypipe compare /data/runs/local /data/runs/tuned",
    arg(
        "runs RUN+",
        "the --out folder of a finished eval, a file of predictions, or a release: its id, or live; "
        "live shadow and live canary compare what both sides of a trial answered",
    ),
    arg(
        "--rule RULE",
        "by which files of predictions are scored: official (default), accuracy, or MODULE:NAME",
        options.RULES,
    ),
    options.margin("runs"),
    options.group("count as one each"),
    options.measure("what is compared"),
    arg("--rejudge MODEL?", "have one judge decide about all runs; without MODEL the first run's", const=""),
    arg("--unseen", "leave out the questions that a fit of one of the recipes has seen"),
    "judged models cluster store json",
)
def _compare(args: Args) -> int:
    from raypipe.api.compare import CompareResult, compare

    def show(found: CompareResult) -> None:
        from raypipe.cli.compare_table import print_comparison

        out = console()
        for c in found.comparisons:
            print_comparison(out, c)

    return printed(args, called(compare, args, *args.runs), show)
