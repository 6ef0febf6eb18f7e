"""The command `finetune`."""

from __future__ import annotations

import argparse
import sys

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `finetune`."""
    made = options.command(
        commands,
        "finetune",
        "raypipe finetune db3-web --labels /data/labels/web --base llama-3-8b --name web-answer --out tuned",
        _finetune,
    )
    made.add_argument("preset", metavar="PRESET", help="a name under conf/finetune, or a path")
    made.add_argument("--labels", metavar="DIR", required=True, help="a folder that `raypipe labels` wrote")
    made.add_argument(
        "--base", metavar="MODEL", required=True, help="the model that gets the adapter: of loader vllm"
    )
    made.add_argument("--name", help="what recipes call the adapter (default: the preset's name)")
    made.add_argument(
        "--out",
        metavar="DIR",
        help="gets the report and models.yaml with the adapter's entry (default: neither)",
    )
    made.add_argument(
        "--workers",
        metavar="N",
        type=options.at_least(1),
        help="that share each batch (default: one for each GPU of the cluster file, else one)",
    )
    made.add_argument(
        "--set",
        dest="preset_sets",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="a field of the preset in place of its file's, such as steps=100; may be repeated",
    )
    made.add_argument("--plan", action="store_true", help="say what it would take, and train nothing")
    made.add_argument(
        "--show",
        metavar="N",
        type=options.at_least(1),
        help="print the first N training rows with the trained tokens in ⟦ ⟧, and train nothing",
    )
    options.models(made)
    options.cluster(made)
    options.store(made)
    options.as_json(made)


def _finetune(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.finetune import finetune, plan_finetune, show_rows

    session = options.session(args, settings, progress=True)
    given = (args.preset, args.labels, args.base)
    if args.show:
        for text in show_rows(*given, args.show, args.preset_sets, session):
            print(f"{text}\n")
        return 0
    plan = plan_finetune(*given, args.store, args.workers, args.preset_sets, session)
    from rich.console import Console

    from raypipe.report.finetune import print_finetune, print_plan

    if args.plan and args.json:
        options.print_json(plan.to_json())
        return 0
    where = options.console() if args.plan else Console(stderr=True)
    print_plan(where, plan.to_json())
    sys.stderr.flush()
    if args.plan:
        return 0
    done = finetune(
        *given, args.name, args.out, args.store, args.workers, args.preset_sets, session
    ).to_json()  # fmt: skip
    if args.json:
        options.print_json(done)
        return 0
    import yaml

    print_finetune(
        options.console(), done, yaml.safe_dump(done["entry"], sort_keys=False, allow_unicode=True)
    )
    if done["models"]:
        print(f"use it: raypipe eval RECIPE --models {done['models']}")
    return 0
