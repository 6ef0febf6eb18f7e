"""The command `plan`, and how a plan is printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from raypipe.cli import options
from raypipe.cli.command import Args, arg, called, command, console, on_console, printed, say_data
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.plans import PlanResult
    from raypipe.runs.plan.records import Plan


@command(
    "plan",
    "raypipe plan local --store /data/store --data dev.jsonl.bz2",
    "recipe sets store",
    options.data("files of the eval, or URIs"),
    "format kind cluster",
    options.limit("plan"),
    "scoring refresh",
    arg(
        "--calibrate",
        "first run a few invented questions, which measures how fast this machine is: loads models, and "
        "calls those behind endpoints",
    ),
    arg(
        "--assume pages=N",
        "plan a corpus that is not there: tasks, bytes, requests, hours and money, such as pages=1e8 or "
        "pages=1e7,html_bytes=20000,text_chars=3000,chunks=5",
        dest="assumed",
    ),
    "json",
)
def _plan(args: Args) -> int:
    from raypipe.api.plans import assume, plan

    if args.assumed is not None:
        if args.data or args.limit or args.judge:
            raise ConfError(
                "--assume plans pages that are not there: expected without --data, --limit, --judge"
            )
        from raypipe.report.plans import print_assumed

        found = called(assume, args)
        return printed(args, found, on_console(print_assumed))
    say_data(args)
    if args.calibrate:
        from raypipe.api.calibrate import calibrate

        called(calibrate, args)
    return show(args, called(plan, args))


def show(args: Args, found: PlanResult) -> int:
    """Prints a plan."""

    def written(found: PlanResult) -> None:
        from raypipe.report.plans import print_placement, print_plan

        out, planned = console(), found.to_json()
        print_plan(out, planned)
        if found.expired and not args.refresh:
            print(f"{found.expired} answers rest on expired replies of a graph: --refresh recomputes them")
        print_placement(out, planned)

    return printed(args, found, written)


def printer(args: Args) -> Callable[[Plan], None]:
    """Prints the plan of a run before it starts; with --json nothing but JSON is printed."""

    def show_plan(plan: Plan) -> None:
        if not args.json:
            from raypipe.report.plans import print_plan

            print_plan(console(), plan.to_json())

    return show_plan
