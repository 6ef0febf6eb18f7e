"""The commands `plan` and `sweep`, and how a plan is printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import raypipe
from raypipe.cli.command import Args, called, command, console, on_console, printed, say_data
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.plans import PlanResult
    from raypipe.api.sweep import SweepResult
    from raypipe.evaluation.sweep import PlannedPoint
    from raypipe.runs.plan.records import Plan


@command(
    "plan",
    "raypipe plan local --store /data/store --data dev.jsonl.bz2",
    """
    recipe sets store
    --data PATH+: files of the eval, or URIs
    format kind cluster
    --limit N {1..}: plan the first N questions only
    scoring refresh
    --calibrate: first run a few invented questions, which measures how fast this machine is: loads models,
      and calls those behind endpoints
    --assume pages=N {-> assumed}: plan a corpus that is not there: tasks, bytes, requests, hours and money,
      such as pages=1e8 or pages=1e7,html_bytes=20000,text_chars=3000,chunks=5
    json
    """,
)
def _plan(args: Args) -> int:
    if args.assumed is not None:
        if args.data or args.limit or args.judge:
            raise ConfError(
                "--assume plans pages that are not there: expected without --data, --limit, --judge"
            )
        from raypipe.report.plans import print_assumed

        found = called(raypipe.assume, args)
        return printed(args, found, on_console(print_assumed))
    say_data(args)
    if args.calibrate:
        from raypipe.api.plans import calibrate

        called(calibrate, args)
    return show(args, called(raypipe.plan, args))


def show(args: Args, found: PlanResult) -> int:
    """Prints a plan."""

    from raypipe.report.plans import print_placement, print_plan

    def written(found: PlanResult) -> None:
        print_plan(console(), found.to_json())
        if found.expired and not args.refresh:
            print(f"{found.expired} answers rest on expired replies of a graph: --refresh recomputes them")
        print_placement(console(), found.to_json())

    return printed(args, found, written)


def printer(args: Args) -> Callable[[Plan], None]:
    """Prints the plan of a run before it starts; with --json nothing but JSON is printed."""

    from raypipe.report.plans import print_plan

    return lambda plan: None if args.json else print_plan(console(), plan.to_json())


@command(
    "sweep",
    "raypipe sweep local --set split.child_chars=500,700,1000 --set rerank.top=20,50 --sample 200 "
    "--store /data/store",
    """
    recipe
    --set STEP[:INTO].FIELD=V1,V2,... ... {required -> values}: values of a field, such as rerank.top=5,10; of
      several fields every combination is a point
    --sample N {1..}: questions of each point; the best is scored again on as many others (default: all
      questions)
    --seed N {int = 0}: draws the sample (default: 0)
    --data PATH+: files to ingest first, or URIs of some
    format kind store cluster scoring
    --margin M {above_0 = 0.02}: points whose 90 %% interval lies within M to either side are the same
      (default: 0.02)
    --measure NAME: what the best point has most of, such as f1 or ndcg_cut_10 (default: the one that reports
      of such data begin with)
    --dry-run: print the plan of all points, run nothing
    --out DIR: folder for sweep.json, sweep.svg and a report of each point (default:
      $RAYPIPE_HOME/runs/STORE/RECIPE-sweep/TIME)
    json
    """,
)
def _sweep(args: Args) -> int:
    say_data(args)
    tell = (lambda plans: None) if args.json else _print_plans
    return printed(args, called(raypipe.sweep, args, sets=args.values, on_plan=tell), _print)


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
