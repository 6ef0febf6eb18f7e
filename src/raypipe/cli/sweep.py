"""The command `sweep`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from raypipe.api.settings import Settings
from raypipe.cli import options

if TYPE_CHECKING:
    from raypipe.evaluation.sweep import PlannedPoint


def add(commands: options.Commands) -> None:
    """Declares `sweep`."""
    made = options.command(
        commands,
        "sweep",
        "raypipe sweep local --set split.child_chars=500,700,1000 --set rerank.top=20,50 --sample 200 "
        "--store /data/store",
        _sweep,
    )
    options.recipe(made)
    made.add_argument(
        "--set",
        dest="values",
        metavar="STEP[:INTO].FIELD=V1,V2,...",
        action="append",
        required=True,
        help="values of a field, such as rerank.top=5,10; of several fields every combination is a point",
    )
    made.add_argument(
        "--sample",
        metavar="N",
        type=options.at_least(1),
        help="questions of each point; the best is scored again on as many others (default: all questions)",
    )
    made.add_argument("--seed", metavar="N", type=int, default=0, help="draws the sample (default: 0)")
    made.add_argument(
        "--data", metavar="PATH", nargs="+", default=[], help="files to ingest first, or URIs of some"
    )
    options.format_of(made)
    options.kind_of(made)
    options.store(made)
    options.cluster(made)
    options.scoring(made)
    options.margin(made, "points")
    options.measure(made, "what the best point has most of")
    made.add_argument("--dry-run", action="store_true", help="print the plan of all points, run nothing")
    made.add_argument(
        "--out",
        metavar="DIR",
        help="folder for sweep.json, sweep.svg and a report of each point (default: "
        "$RAYPIPE_HOME/runs/STORE/RECIPE-sweep/TIME)",
    )
    options.as_json(made)


def _sweep(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.sweep import sweep

    options.say_data(args, settings)
    done = sweep(
        args.recipe, args.values, args.data, args.store, args.out, args.sample, args.seed, args.margin,
        args.format, args.judge, args.rule, args.dry_run, _silent if args.json else _print_plans,
        options.session(args, settings, not args.json), args.fields, args.kind, args.measure,
    )  # fmt: skip
    found = done.to_json()
    if args.json:
        options.print_json(found)
    elif found["sweep"] is not None:
        from raypipe.report.sweep import print_sweep

        print_sweep(options.console(), found["sweep"])
        for name in ("sweep.json", "sweep.svg"):
            print(done.folder / name)
    return 0


def _silent(plans: Sequence[PlannedPoint]) -> None:
    """Nothing but JSON is printed on stdout."""


def _print_plans(plans: Sequence[PlannedPoint]) -> None:
    from dataclasses import asdict

    from raypipe.report.sweep import print_plans

    print_plans(options.console(), [asdict(p) for p in plans])
