"""The command `ask`: one question, from the store or from pages in a file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from raypipe.cli.command import Args, arg, called, command, console, printed
from raypipe.core.records import ABSTAINED

if TYPE_CHECKING:
    from raypipe.api.questions import AskResult

SHOWN, SHOWN_CHARS = 3, 160  # quotes of a reply and characters of each on a terminal; `--json` has all
AROUND_CHARS = 40  # of the page before and after a quote


@command(
    "ask",
    'raypipe ask rag "how long is the warranty?" --docs manuals',
    "live sets",
    arg(
        "question QUESTION", "the question; one that is stored, by its id or in its words, has its own pages"
    ),
    arg("--pages FILE", "a CRAG line: its search results are searched"),
    "docs",
    arg("--time T", 'time of the question: "03/05/2024, 23:18:31 PT"', default="", dest="asked_at"),
    "store cluster json",
)
def _ask(args: Args) -> int:
    from raypipe.api.questions import ask

    found = called(
        ask, args, passages=not args.json, on_text=None if args.json else _print_piece,
    )  # fmt: skip
    return printed(args, found, _print)


def _print_piece(piece: str) -> None:
    """Prints a piece of a reply as it is generated; the answer is printed at the end."""
    print(piece, end="", file=sys.stderr, flush=True)


def _print(found: AskResult) -> None:
    from rich.text import Text

    out, answered, question = console(), found.result, found.result.question
    out.print(Text(question.answer or "(no answer)", "bold"), Text(f"  [{question.outcome}]"))
    for fault in (*answered.faults, *question.faults):
        out.print(Text(f"{fault.step}: {fault.reason}: {fault.detail}", "red"))
    label = "not sure: " if question.outcome == ABSTAINED else "evidence: "
    for e in answered.evidence[:SHOWN]:
        where = ", ".join(x for x in (e.url, e.place.page, e.place.section) if x) if e.place else e.url
        before, after = e.before[-AROUND_CHARS:], e.after[:AROUND_CHARS]
        said = Text.assemble(label, (before, "dim"), (e.quote[:SHOWN_CHARS], "bold"), (after, "dim"))
        out.print(said, Text(f"  {where or e.source}", "dim"))
    quoted = {e.chunk for e in answered.evidence[:SHOWN]}
    for passage in answered.passages[:5]:
        scores = " ".join(f"{name} {value:.3f}" for name, value in passage.hit.scores.items())
        text = "quoted above" if passage.hit.chunk in quoted else passage.text[:SHOWN_CHARS]
        out.print(Text(f"  {scores}", "dim"), Text(f" {text}"))
    out.print(Text("  ".join(f"{name} {ms:.0f} ms" for name, ms in answered.timings_ms.items()), "dim"))
