"""Commands that make numbers from runs: fit, sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import raypipe
from raypipe.api.cli.command import Args, called, command, on_console, printed, say_data

if TYPE_CHECKING:
    from raypipe.api.experiments import DecideFitResult, FuseFitResult, SweepResult
    from raypipe.evaluation.sweep import PlannedPoint


@command
def _fit_decide(args: Args) -> int:
    """Fit the probability that an answer is right, and the threshold below which none is given.

    raypipe fit decide /data/runs/local --split 0 --out abstain.yaml
    of-fit
    """
    return printed(args, called(raypipe.fit_decide, args), _print_fit)


@command
def _fit_fuse(args: Args) -> int:
    """Fit the weights of a fuse step to the ranking measure of the data.

    raypipe fit fuse /data/runs/ranks --split 0 --step fuse:final --out weights.yaml
    of-fit
    --step NAME: the step, such as fuse:final (default: the last fuse)
    --scores NAME,... {names = ""}: what is weighed, of the scores that the run's rankers gave (default: what
      the step weighs now)
    store
    """
    return printed(args, called(raypipe.fit_fuse, args), _print_fit)


def _print_fit(found: DecideFitResult | FuseFitResult) -> None:
    on_console("experiments.print_fit", found.report)
    print(f"{found.file} (next to it {found.file.stem}.json, the whole report)")
    print(f"use it: raypipe eval ... --set {found.step}.fitted={found.file}")


@command
def _sweep(args: Args) -> int:
    """raypipe sweep local --set split.child_chars=500,700,1000 --set rerank.top=20,50 --sample 200
      --store /data/store
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
    --out DIR: folder for sweep.json and a report of each point (default:
      $RAYPIPE_HOME/runs/STORE/RECIPE-sweep/TIME)
    json
    """
    say_data(args)
    tell = (lambda plans: None) if args.json else _print_plans
    return printed(args, called(raypipe.sweep, args, sets=args.values, on_plan=tell), _print_sweep)


def _print_sweep(done: SweepResult) -> None:
    if done.sweep is not None:
        on_console("experiments.print_sweep", done.sweep)
        print(done.folder / "sweep.json")


def _print_plans(plans: Sequence[PlannedPoint]) -> None:
    on_console("experiments.print_points", plans)
