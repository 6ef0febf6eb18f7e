"""The command `questions`: a test set from documents of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raypipe.cli.command import Args, arg, at_least, called, command, console, printed

if TYPE_CHECKING:
    from raypipe.api.made_questions import MadeQuestionsResult, QuestionsPlan


@command(
    "questions",
    "raypipe questions /data/handbook --llm http://127.0.0.1:8000/v1#MODEL --n 200 --store /data/store",
    arg("documents PATH*", "documents to read into the store first (default: none)"),
    "files store models llm",
    arg("--n N", "questions wanted (200)", at_least(1), 200, dest="number"),
    arg("--seed S", "other passages for other seeds (1)", int, 1),
    arg("--out FILE", "the questions, as rows (questions.jsonl)", default="questions.jsonl"),
    arg("--dry-run", "print the number of calls, make nothing"),
    "json",
)
def _questions(args: Args) -> int:
    from raypipe.api.made_questions import make_questions

    quiet = (lambda plan: None) if args.json else _print_plan
    return printed(args, called(make_questions, args, on_plan=quiet), _print)


def _print(made: MadeQuestionsResult) -> None:
    if made.out is not None:
        from raypipe.report.made_questions import print_made

        print_made(console(), made.to_json())


def _print_plan(plan: QuestionsPlan) -> None:
    print(
        f"at most {plan.max_calls:,} calls of {plan.model}: {plan.candidates:,} questions are written "
        f"({plan.cached:,} of them cached) and checked, until {plan.wanted:,} are kept; passages of "
        f"{plan.documents:,} documents in {plan.store}"
    )
    if plan.unreadable:
        print(f"{plan.unreadable:,} more documents have no text, or no passage of prose")
