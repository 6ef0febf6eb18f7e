"""The command `ann`: approximate indexes of vectors, built and measured."""

from __future__ import annotations

import argparse

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `ann`."""
    made = options.command(commands, "ann", "raypipe ann my-recipe --store /data/store", _ann)
    options.recipe(made)
    options.sets(made)
    options.store(made)
    options.cluster(made)
    made.add_argument(
        "--questions",
        metavar="N",
        type=options.at_least(1),
        default=200,
        help="stored questions on which recall is measured (200)",
    )
    made.add_argument(
        "--rebuild",
        action="store_true",
        help="replace indexes that are there; questions of the whole store are then answered again",
    )
    options.as_json(made)


def _ann(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.ann import build_ann

    found = build_ann(
        args.recipe, args.store, args.questions, args.rebuild, False, options.session(args, settings)
    )
    if args.json:
        options.print_json(found.to_json())
    else:
        from rich.text import Text

        from raypipe.report.wording import ann_lines

        console, rows = options.console(), list(found.rows())
        for row, line in zip(rows, ann_lines({"ann": rows}), strict=True):
            built = "built" if row["built"] else "was there"
            console.print(Text(f"{row['stage']}: {row['index']}, {built}"), soft_wrap=True)
            console.print(Text(f"  {line}; the worst is question {row['worst_question']}"), soft_wrap=True)
    found.check_recall()
    return 0
