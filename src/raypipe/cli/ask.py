"""The command `ask`: one question, from the store or from pages in a file."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from raypipe.api.settings import Settings
from raypipe.cli import options

if TYPE_CHECKING:
    from raypipe.serving.query import QueryResult

SHOWN, SHOWN_CHARS = 3, 160  # quotes of a reply and characters of each on a terminal; `--json` has all


def add(commands: options.Commands) -> None:
    """Declares `ask`."""
    made = options.command(
        commands,
        "ask",
        'raypipe ask rag "how long is the warranty?" --docs manuals',
        _ask,
    )
    options.recipe(made, live=True)
    options.sets(made)
    about = "the question; one that is stored, by its id or in its words, has its own pages"
    made.add_argument("question", metavar="QUESTION", help=about)
    made.add_argument("--pages", metavar="FILE", help="a CRAG line: its search results are searched")
    options.docs(made)
    made.add_argument(
        "--time", metavar="T", default="", help='time of the question: "03/05/2024, 23:18:31 PT"'
    )
    options.store(made)
    options.cluster(made)
    options.as_json(made)


def _ask(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.questions import ask

    found = ask(
        args.recipe, args.question, args.pages, args.time, args.store,
        passages=not args.json, on_text=None if args.json else _print_piece,
        session=options.session(args, settings, progress=args.docs is not None and not args.json),
        docs=args.docs,
    )  # fmt: skip
    if args.json:
        options.print_json(found.to_json())
    else:
        _print(found.result)
    return 0


def _print_piece(piece: str) -> None:
    """Prints a piece of a reply as it is generated; the answer is printed at the end."""
    print(piece, end="", file=sys.stderr, flush=True)


def _print(answered: QueryResult) -> None:
    from rich.text import Text

    out, question = options.console(), answered.question
    out.print(Text(question.answer or "(no answer)", "bold"), Text(f"  [{question.outcome}]"))
    for fault in (*answered.faults, *question.faults):
        out.print(Text(f"{fault.step}: {fault.reason}: {fault.detail}", "red"))
    for e in answered.evidence[:SHOWN]:
        where = ", ".join(x for x in (e.url, e.place.page, e.place.section) if x) if e.place else e.url
        out.print(Text(f"evidence: {e.quote[:SHOWN_CHARS]}"), Text(f"  {where or e.source}", "dim"))
    for passage in answered.passages[:5]:
        scores = " ".join(f"{name} {value:.3f}" for name, value in passage.hit.scores.items())
        out.print(Text(f"  {scores}", "dim"), Text(f" {passage.text[:SHOWN_CHARS]}"))
    out.print(Text("  ".join(f"{name} {ms:.0f} ms" for name, ms in answered.timings_ms.items()), "dim"))
