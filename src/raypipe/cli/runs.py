"""Commands that run a recipe over a store: index, answer, eval, reprocess."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypipe.api.settings import Settings
from raypipe.cli import options

if TYPE_CHECKING:
    from raypipe.api.run import EvalOptions, RunResult
    from raypipe.runs.plan.records import Plan


def add(commands: options.Commands) -> None:
    """Declares `index`, `answer`, `eval` and `reprocess`."""
    for name, run in (("index", _index), ("answer", _answer)):
        made = options.command(commands, name, f"raypipe {name} local --store /data/store", run)
        options.recipe(made)
        options.sets(made)
        options.store(made)
        options.cluster(made)
        if name == "answer":
            options.fresh(made)
        options.retry(made)
        options.as_json(made)
    made = options.command(
        commands,
        "eval",
        "raypipe eval local --data dev.jsonl.bz2 --store /data/store --out /data/runs/local",
        _eval,
    )
    options.recipe(made, optional=True)
    made.add_argument(
        "--repeats",
        metavar="K",
        type=options.at_least(1),
        default=1,
        help="run it K times, from the second on with language models asked again: mean and spread",
    )
    made.add_argument(
        "--oracle",
        choices=("passages", "answer"),
        help="put golds in the place of the ranking, or of the answering step: what could a better one gain?",
    )
    _of_eval(made)
    made = options.command(
        commands,
        "reprocess",
        "raypipe reprocess local --data dev.jsonl.bz2 --store /data/store --out /data/runs/next",
        _reprocess,
    )
    options.recipe(made)
    _of_eval(made)


def _of_eval(made: argparse.ArgumentParser) -> None:
    options.sets(made)
    made.add_argument(
        "--data", metavar="PATH", nargs="+", default=[], help="files to ingest first, or URIs of some"
    )
    options.format_of(made)
    options.kind_of(made)
    options.store(made)
    options.cluster(made)
    made.add_argument("--limit", metavar="N", type=options.at_least(1), help="run the first N questions only")
    options.scoring(made)
    options.labels(made)
    made.add_argument(
        "--swap",
        metavar="STEP=RECIPE",
        action="append",
        default=[],
        help="take one step of another recipe in place of this recipe's own",
    )
    options.fresh(made)
    options.caps(made)
    made.add_argument("--dry-run", action="store_true", help="check everything, print the plan, run nothing")
    options.retry(made)
    options.refresh(made)
    made.add_argument(
        "--out",
        metavar="DIR",
        help="folder for the report (default: $RAYPIPE_HOME/runs/STORE/RECIPE/TIME, one for each run)",
    )
    options.as_json(made)


def _index(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.run import index

    session = options.session(args, settings, not args.json)
    return _counts(args, index(args.recipe, args.store, args.retry_faults, session))


def _answer(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.run import answer

    session = options.session(args, settings, not args.json)
    return _counts(args, answer(args.recipe, args.store, args.fresh, args.retry_faults, session))


def _counts(args: argparse.Namespace, done: RunResult) -> int:
    counts = done.counters.counts
    if args.json:
        options.print_json(done.to_json())
        return 0
    if not counts:
        print("nothing was missing")
    for name, count in counts.items():
        work = f"{count.rows} rows, {count.calls.computed} model calls, {count.faults} faults"
        print(f"{name:<12} {work}, {count.seconds:.1f} s")
    return 0


def _eval(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.run import evaluate

    if not args.data and not args.store and not settings.store:
        _take_demo(args, settings)
    else:
        options.say_data(args, settings)
    _swap(args, settings)
    if args.dry_run:
        return _dry_run(args, settings)
    if args.repeats > 1:
        return _repeat(args, settings)
    start = time.perf_counter()
    given = _options(args, settings)
    given["oracle"] = args.oracle
    done = evaluate(args.recipe, args.data, args.store, args.out, **given)
    if args.json:
        options.print_json(done.to_json())
    else:
        from raypipe.report.console import print_report

        print_report(options.console(), done.to_json(), done.evaluation.folder)
        reused = done.evaluation.reused
        new, took = done.evaluation.report.questions - reused, time.perf_counter() - start
        print(f"{new} new answers, {reused} reused; took {took:.1f} s")
    done.check_faults()
    return 0


def _swap(args: argparse.Namespace, settings: Settings) -> None:
    """Puts the recipe with the steps of others in the place of its name."""
    if args.swap:
        from raypipe.api.swaps import swap_steps

        args.recipe = swap_steps(args.recipe, args.swap, args.data, options.session(args, settings))


def _repeat(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.repeats import evaluate_repeatedly

    given = _options(args, settings)
    given["check"], given["oracle"] = True, args.oracle
    done = evaluate_repeatedly(args.recipe, args.repeats, args.data, args.store, args.out, **given)
    if args.json:
        options.print_json(done.to_json())
        return 0
    from raypipe.cli.compare_table import print_repeats

    print_repeats(options.console(), done.found, done.folder)
    return 0


def _take_demo(args: argparse.Namespace, settings: Settings) -> None:
    """Sets data and store to the demo's, and says so. A name that is not known is refused before."""
    from raypipe.api.datasets import DEMO, demo_data
    from raypipe.api.run import check_names

    session = options.session(args, settings, not args.json)
    check_names(args.recipe, (), args.judge, args.rule, session, args.kind)
    store = settings.stores / "demo"
    print(
        f"no --data and no --store: the demo, {DEMO['questions']} invented questions with {DEMO['pages']} "
        f"pages each, in {store}",
        file=sys.stderr,
    )
    if (own := settings.stores / "default").exists():
        print(f"for the data that was read without --store: --store {own}", file=sys.stderr)
    args.data, args.store = [demo_data(session)], str(store)


def _reprocess(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.run import reprocess

    options.say_data(args, settings)
    _swap(args, settings)
    if args.dry_run:
        return _dry_run(args, settings)
    done = reprocess(args.recipe, args.data, args.store, args.out, **_options(args, settings))
    found = done.to_json()
    if args.json:
        options.print_json(found)
    else:
        from raypipe.report.console import print_report
        from raypipe.report.plans import print_changes

        console = options.console()
        print_report(console, found["report"], done.eval.evaluation.folder)
        if found["changes"] is None:
            print("no earlier run has answered any of these questions: nothing to compare with")
        else:
            print_changes(console, found["changes"])
    done.eval.check_faults()
    return 0


def _dry_run(args: argparse.Namespace, settings: Settings) -> int:
    """Connects to the cluster and finds the models as the run itself would, then prints the plan."""
    from raypipe.api.plans import plan
    from raypipe.cli.plans import show

    if args.labels is not None:
        from raypipe.evaluation.labels import read_labels

        read_labels(Path(args.labels))
    session = options.session(args, settings)
    found = plan(
        args.recipe, args.data, args.store, args.format, args.limit, args.refresh, check_run=True,
        judge=args.judge, rule=args.rule, session=session, kind=args.kind, fields=args.fields,
    )  # fmt: skip
    return show(args, found)


def _options(args: argparse.Namespace, settings: Settings) -> EvalOptions:
    """The options of an eval. Faults are checked after the report is printed."""
    return {
        "format": args.format,
        "kind": args.kind,
        "fields": args.fields,
        "limit": args.limit,
        "rule": args.rule,
        "judge": args.judge,
        "labels": args.labels,
        "fresh": args.fresh,
        "retry_faults": args.retry_faults,
        "refresh": args.refresh,
        "on_plan": _silent if args.json else _print_plan,
        "check": False,
        "max_calls": args.max_calls,
        "max_usd": args.max_usd,
        "max_hours": args.max_hours,
        "session": options.session(args, settings, not args.json),
        "began": args.began,
    }


def _silent(plan: Plan) -> None:
    """Nothing but JSON is printed on stdout."""


def _print_plan(plan: Plan) -> None:
    from raypipe.report.plans import print_plan

    found: dict[str, Any] = plan.to_json()
    print_plan(options.console(), found)
