"""Questions that were made, on a console: the first of them, what was rejected, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from raypipe.text.made_questions import REASONS


def print_made(console: Console, made: Mapping[str, Any]) -> None:
    """The result of `raypipe questions`. Text from data is printed as it is."""
    kinds = ", ".join(f"{kind} {n}" for kind, n in made["kinds"].items())
    wanted = made["plan"]["wanted"]
    console.print(Text(f"{made['questions']} questions of {wanted} wanted ({kinds})", "bold"), soft_wrap=True)
    for q in made["first"]:
        console.print(Text(f"  {q['question_type']}: {q['question']}"), soft_wrap=True)
        console.print(Text(f"    {' | '.join(q['answers'])}"), soft_wrap=True)
        for e in q["evidence"]:
            named = e["title"] or e["document"] or e["source"][:8]
            console.print(Text(f"    \u201c{e['quote']}\u201d ({named})"), soft_wrap=True)
    if made["rejected"]:
        console.print(Text(f"{sum(made['rejected'].values())} of {made['written']} written were rejected:"))
        for reason, n in sorted(made["rejected"].items(), key=lambda r: (-r[1], r[0])):
            console.print(Text(f"  {n:>5}  {REASONS[reason]}"))
    console.print(Text(f"calls: {made['computed']} computed, {made['cached']} cached"))
    out, store = made["out"], made["plan"]["store"]
    console.print(
        Text(
            f'review {out}: a line with `"review": "drop"` is not read, one with keep is marked as reviewed. '
            f"Then: raypipe eval RECIPE --data {out} --store {store}"
        ),
        soft_wrap=True,
    )
