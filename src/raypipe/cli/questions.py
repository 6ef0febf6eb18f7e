"""The command `questions`: a test set from documents of one's own."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from raypipe.api.settings import Settings
from raypipe.cli import options

if TYPE_CHECKING:
    from raypipe.api.made_questions import QuestionsPlan


def add(commands: options.Commands) -> None:
    """Declares `questions`."""
    made = options.command(
        commands,
        "questions",
        "raypipe questions /data/handbook --llm http://127.0.0.1:8000/v1#MODEL --n 200 --store /data/store",
        _questions,
    )
    made.add_argument(
        "documents", metavar="PATH", nargs="*", help="documents to read into the store first (default: none)"
    )
    options.format_of(made, files=True)
    options.store(made)
    options.models(made)
    options.llm(made)
    made.add_argument(
        "--n", metavar="N", type=options.at_least(1), default=200, help="questions wanted (200)"
    )
    made.add_argument("--seed", metavar="S", type=int, default=1, help="other passages for other seeds (1)")
    made.add_argument(
        "--out", metavar="FILE", default="questions.jsonl", help="the questions, as rows (questions.jsonl)"
    )
    made.add_argument("--dry-run", action="store_true", help="print the number of calls, make nothing")
    options.as_json(made)


def _questions(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.made_questions import make_questions

    made = make_questions(
        args.out,
        args.documents,
        args.n,
        args.store,
        args.seed,
        args.format,
        args.fields,
        args.dry_run,
        (lambda plan: None) if args.json else _print_plan,
        options.session(args, settings, not args.json),
    )
    if args.json:
        options.print_json(made.to_json())
    elif made.out is not None:
        from raypipe.report.made_questions import print_made

        print_made(options.console(), made.to_json())
    return 0


def _print_plan(plan: QuestionsPlan) -> None:
    print(
        f"at most {plan.max_calls:,} calls of {plan.model}: {plan.candidates:,} questions are written "
        f"({plan.cached:,} of them cached) and checked, until {plan.wanted:,} are kept; passages of "
        f"{plan.documents:,} documents in {plan.store}"
    )
    if plan.unreadable:
        print(f"{plan.unreadable:,} more documents have no text, or no passage of prose")
