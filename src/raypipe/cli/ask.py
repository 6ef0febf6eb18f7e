"""The command `ask`: one question, from the store or from pages in a file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from raypipe.cli.command import Args, arg, called, command, console, printed, say
from raypipe.core.records import ABSTAINED

if TYPE_CHECKING:
    from raypipe.api.questions import AskResult
    from raypipe.text.places import Place

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

    if not (args.docs or args.pages or args.store or args.settings.store):
        say(f"no --docs and no --store: searching {args.settings.store_to_use(None)}")
    found = called(
        ask, args, passages=not args.json, on_text=None if args.json else _print_piece,
    )  # fmt: skip
    return printed(args, found, _print)


def _print_piece(piece: str) -> None:
    """Prints a piece of a reply as it is generated; the answer is printed at the end."""
    print(piece, end="", file=sys.stderr, flush=True)


def _where(url: str | None, place: Place | None) -> str:
    """The address of a passage; of a file its page and section, too."""
    return ", ".join(x for x in (url, place and place.page, place and place.section) if x)


def _print(found: AskResult) -> None:
    from rich.text import Text

    from raypipe.report.wording import cut

    out, answered, question = console(), found.result, found.result.question
    out.print(Text(question.answer or "(no answer)", "bold"), Text(f"  [{question.outcome}]"))
    for fault in (*answered.faults, *question.faults):
        out.print(Text(f"{fault.step}: {fault.reason}: {fault.detail}", "red"))
    label = "not sure: " if question.outcome == ABSTAINED else "evidence: "
    for e in answered.evidence[:SHOWN]:
        before, after = e.before[-AROUND_CHARS:], e.after[:AROUND_CHARS]
        said = Text.assemble(label, (before, "dim"), (e.quote[:SHOWN_CHARS], "bold"), (after, "dim"))
        out.print(said, Text(f"  {_where(e.url, e.place) or e.source}", "dim"))
    quoted = {e.chunk for e in answered.evidence[:SHOWN]}
    for passage in answered.passages[:5]:
        scores = " ".join(f"{name} {value:.3f}" for name, value in passage.hit.scores.items())
        text = "quoted above" if passage.hit.chunk in quoted else cut(passage.text, SHOWN_CHARS)
        where = _where(passage.url, passage.place) or passage.hit.source
        out.print(Text(f"  {scores}", "dim"), Text(f" {where}:", "bold"), Text(text))
    out.print(Text("  ".join(f"{name} {ms:.0f} ms" for name, ms in answered.timings_ms.items()), "dim"))
