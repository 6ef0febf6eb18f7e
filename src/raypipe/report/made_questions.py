"""Questions that were made, on a console: the first of them, what was rejected, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from raypipe.report.console import say
from raypipe.text.made_questions import REASONS


def print_made(console: Console, made: Mapping[str, Any]) -> None:
    """The result of `raypipe questions`. Text from data is printed as it is."""
    kinds = ", ".join(f"{kind} {n}" for kind, n in made["kinds"].items())
    out, store, wanted = made["out"], made["plan"]["store"], made["plan"]["wanted"]
    say(console, f"{made['questions']} questions of {wanted} wanted ({kinds})", style="bold")
    for q in made["first"]:
        say(console, f"  {q['question_type']}: {q['question']}", f"    {' | '.join(q['answers'])}")
        for e in q["evidence"]:
            say(console, f"    \u201c{e['quote']}\u201d ({e['title'] or e['document'] or e['source'][:8]})")
    if made["rejected"]:
        rejected = sorted(made["rejected"].items(), key=lambda r: (-r[1], r[0]))
        total = f"{sum(made['rejected'].values())} of {made['written']} written were rejected:"
        say(console, total, *(f"  {n:>5}  {REASONS[reason]}" for reason, n in rejected), fold=True)
    say(console, f"calls: {made['computed']} computed, {made['cached']} cached", fold=True)
    say(
        console,
        f'review {out}: a line with `"review": "drop"` is not read, one with keep is marked as reviewed. '
        f"Then: raypipe eval RECIPE --data {out} --store {store}",
    )
