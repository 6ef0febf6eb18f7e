"""The command `labels`: training labels for a step of a recipe."""

from __future__ import annotations

import argparse
import shlex

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `labels`."""
    made = options.command(
        commands,
        "labels",
        "raypipe labels db3-task1-700 --data dev.jsonl --where split=0 --against split=1 --store /data/store",
        _labels,
    )
    options.recipe(made)
    options.sets(made)
    made.add_argument(
        "--data", metavar="PATH", nargs="+", default=[], help="training questions to ingest first, or URIs"
    )
    options.format_of(made)
    options.store(made)
    options.cluster(made)
    made.add_argument(
        "--step", metavar="INTO", help="the step, by the name of its reply (default: the last that answers)"
    )
    made.add_argument(
        "--where",
        metavar="LABEL=V1,V2",
        action="append",
        default=[],
        help="only questions with this label, such as split=0 or domain=movie,music; may be repeated",
    )
    made.add_argument(
        "--against",
        metavar="DATA",
        action="append",
        default=[],
        help="files, or LABEL=V1,V2, of what will be evaluated on: a question in both is an error",
    )
    made.add_argument(
        "--judge",
        metavar="MODEL",
        help="judges the answers (default: the step's own model); words: no model, the truth's words decide",
    )
    made.add_argument(
        "--held-out", metavar="SHARE", type=float, default=0.1, help="of questions, to stop training by (0.1)"
    )
    made.add_argument(
        "--idk-share",
        metavar="SHARE",
        type=float,
        help='of train rows that say "i don\'t know", reached by leaving rows out (default: as it comes)',
    )
    made.add_argument("--review", metavar="FILE", help="write what a person may correct")
    made.add_argument(
        "--import", dest="reviewed", metavar="FILE", help='take the lines marked "use": true of such a file'
    )
    made.add_argument("--limit", metavar="N", type=options.at_least(1), help="the first N questions only")
    options.fresh(made)
    options.caps(made)
    options.retry(made)
    options.refresh(made)
    made.add_argument("--dry-run", action="store_true", help="check everything, print the plan, ask nothing")
    made.add_argument(
        "--out", metavar="DIR", help="folder (default: $RAYPIPE_HOME/runs/STORE/labels/RECIPE-STEP/TIME)"
    )
    options.as_json(made)


def _labels(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.labels import make_labels, plan_labels
    from raypipe.api.run import EvalOptions
    from raypipe.cli.plans import printer

    options.say_data(args, settings)
    given: EvalOptions = {
        "format": args.format,
        "fields": args.fields,
        "limit": args.limit,
        "judge": args.judge,
        "fresh": args.fresh,
        "retry_faults": args.retry_faults,
        "refresh": args.refresh,
        "max_calls": args.max_calls,
        "max_usd": args.max_usd,
        "max_hours": args.max_hours,
        "on_plan": printer(args),
        "session": options.session(args, settings, not args.json),
        "began": args.began,
    }
    if args.dry_run:
        from raypipe.cli.plans import show

        return show(
            args,
            plan_labels(args.recipe, args.data, args.store, args.step, args.where, args.against, **given),
        )
    done = make_labels(
        args.recipe, args.data, args.store, args.out, args.step, args.where, args.against, args.held_out,
        args.idk_share, args.review, args.reviewed, **given,
    )  # fmt: skip
    if args.json:
        options.print_json(done.to_json())
    else:
        from raypipe.report.labels import print_labels

        print_labels(options.console(), done.to_json())
        if done.labels:
            model = shlex.quote(done.found["model"])
            print(f"next: raypipe finetune PRESET --labels {shlex.quote(str(done.folder))} --base {model}")
    done.eval.check_faults()
    return 0
