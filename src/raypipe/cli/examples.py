"""The command `examples`: training questions to a pool that the step `examples` shows from."""

from __future__ import annotations

import argparse

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `examples`."""
    made = options.command(
        commands,
        "examples",
        "raypipe examples qasper/qasper-train-v0.3.json --out qasper/train.jsonl",
        _examples,
    )
    made.add_argument("data", metavar="PATH", nargs="+", help="questions with answers")
    options.format_of(made)
    made.add_argument("--out", metavar="FILE", required=True, help="the pool: .jsonl or .jsonl.gz")
    made.add_argument(
        "--explain",
        metavar="MODEL",
        help="a generator of the models file: it says why each answer is right, and that is kept",
    )
    options.models(made)
    options.llm(made)
    options.cluster(made)
    options.as_json(made)


def _examples(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.example_pools import build_examples

    session = options.session(args, settings, not args.json)
    made = build_examples(args.data, args.out, args.explain, args.format, session, args.fields)
    if args.json:
        options.print_json(made.to_json())
    else:
        print(made.title)
        print(f"use it with --graph NAME={args.out}, NAME as the recipe calls its pool")
    return 0
