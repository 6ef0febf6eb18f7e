"""The command `plan`, and how a plan is printed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from raypipe.api.settings import Settings
from raypipe.cli import options
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.plans import PlanResult
    from raypipe.runs.plan.records import Plan


def add(commands: options.Commands) -> None:
    """Declares `plan`."""
    made = options.command(
        commands, "plan", "raypipe plan local --store /data/store --data dev.jsonl.bz2", _plan
    )
    options.recipe(made)
    options.sets(made)
    options.store(made)
    made.add_argument("--data", metavar="PATH", nargs="+", default=[], help="files of the eval, or URIs")
    options.format_of(made)
    options.kind_of(made)
    options.cluster(made)
    made.add_argument(
        "--limit", metavar="N", type=options.at_least(1), help="plan the first N questions only"
    )
    options.scoring(made)
    options.refresh(made)
    made.add_argument(
        "--calibrate",
        action="store_true",
        help="first run a few invented questions, which measures how fast this machine is: loads models, and "
        "calls those behind endpoints",
    )
    made.add_argument(
        "--assume",
        metavar="pages=N",
        help="plan a corpus that is not there: tasks, bytes, requests, hours and money, such as pages=1e8 or "
        "pages=1e7,html_bytes=20000,text_chars=3000,chunks=5",
    )
    options.as_json(made)


def _assume(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.plans import assume

    found = assume(args.recipe, args.assume, args.store, options.session(args, settings))
    if args.json:
        options.print_json(found.to_json())
        return 0
    from raypipe.report.plans import print_assumed

    print_assumed(options.console(), found.to_json())
    return 0


def _plan(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.plans import plan

    if args.assume is not None:
        if args.data or args.limit or args.judge:
            raise ConfError(
                "--assume plans pages that are not there: expected without --data, --limit, --judge"
            )
        return _assume(args, settings)
    options.say_data(args, settings)
    if args.calibrate:
        from raypipe.api.calibrate import calibrate

        calibrate(args.recipe, options.session(args, settings, not args.json))
    found = plan(
        args.recipe, args.data, args.store, args.format, args.limit, args.refresh,
        judge=args.judge, rule=args.rule, session=options.session(args, settings), kind=args.kind,
        fields=args.fields,
    )  # fmt: skip
    return show(args, found)


def show(args: argparse.Namespace, found: PlanResult) -> int:
    """Prints a plan."""
    if args.json:
        options.print_json(found.to_json())
        return 0
    from raypipe.report.plans import print_placement, print_plan

    console, planned = options.console(), found.to_json()
    print_plan(console, planned)
    if found.expired and not args.refresh:
        print(f"{found.expired} answers rest on expired replies of a graph: --refresh recomputes them")
    print_placement(console, planned)
    return 0


def printer(args: argparse.Namespace) -> Callable[[Plan], None]:
    """Prints the plan of a run before it starts; with --json nothing but JSON is printed."""

    def show_plan(plan: Plan) -> None:
        if not args.json:
            from raypipe.report.plans import print_plan

            print_plan(options.console(), plan.to_json())

    return show_plan
