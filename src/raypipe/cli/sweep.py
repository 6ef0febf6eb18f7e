"""The command `sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from raypipe.cli import options
from raypipe.cli.command import Args, arg, at_least, called, command, console, printed, say_data

if TYPE_CHECKING:
    from raypipe.api.sweep import SweepResult
    from raypipe.evaluation.sweep import PlannedPoint


@command(
    "sweep",
    "raypipe sweep local --set split.child_chars=500,700,1000 --set rerank.top=20,50 --sample 200 "
    "--store /data/store",
    "recipe",
    arg(
        "--set STEP[:INTO].FIELD=V1,V2,... ...",
        "values of a field, such as rerank.top=5,10; of several fields every combination is a point",
        dest="values",
        required=True,
    ),
    arg(
        "--sample N",
        "questions of each point; the best is scored again on as many others (default: all questions)",
        at_least(1),
    ),
    arg("--seed N", "draws the sample (default: 0)", int, 0),
    options.data("files to ingest first, or URIs of some"),
    "format kind store cluster scoring",
    options.margin("points"),
    options.measure("what the best point has most of"),
    arg("--dry-run", "print the plan of all points, run nothing"),
    arg(
        "--out DIR",
        "folder for sweep.json, sweep.svg and a report of each point (default: "
        "$RAYPIPE_HOME/runs/STORE/RECIPE-sweep/TIME)",
    ),
    "json",
)
def _sweep(args: Args) -> int:
    from raypipe.api.sweep import sweep

    say_data(args)
    tell = (lambda plans: None) if args.json else _print_plans
    return printed(args, called(sweep, args, sets=args.values, on_plan=tell), _print)


def _print(done: SweepResult) -> None:
    if (found := done.to_json()["sweep"]) is not None:
        from raypipe.report.sweep import print_sweep

        print_sweep(console(), found)
        for name in ("sweep.json", "sweep.svg"):
            print(done.folder / name)


def _print_plans(plans: Sequence[PlannedPoint]) -> None:
    from dataclasses import asdict

    from raypipe.report.sweep import print_plans

    print_plans(console(), [asdict(p) for p in plans])
