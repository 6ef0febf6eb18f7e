"""Training labels on a console, and as one HTML page. Knows what `labels --json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from raypipe.report.console import grid
from raypipe.report.web_page import page as web_page
from raypipe.report.wording import share

SHOWN_CHARS = 80  # of a reply


def print_labels(console: Console, found: Mapping[str, Any]) -> None:
    """Labels that were made: their mix, where each path went, examples, and what to do next. Text from data
    is printed as it is."""
    head = (
        f"{found['labels']} labels of {found['questions']} questions for {found['step']} of {found['recipe']}"
    )
    console.print(Text(head, "bold"), soft_wrap=True)
    mix = grid("domain", "labels", *found["rules"], "i don't know")
    for line in found["mix"]:
        counts = (str(line["rules"].get(rule, 0)) for rule in found["rules"])
        mix.add_row(Text(line["domain"] or "(none)"), str(line["labels"]), *counts, share(line["idk"]))
    console.print(mix)
    for path in found["paths"]:
        rule = f"rule {path['rule']}" if path["rule"] else "no label"
        to = f" -> {path['label']}" if path["label"] else ""
        console.print(Text(f"{path['questions']:>6}  {rule}: {path['about']}{to}"), soft_wrap=True)
    for e in found["examples"]:
        said = f"; {found['step']} said {_short(e['reply'])!r}" if e["reply"] else ""
        line = f"  {e['rule']}: {e['query']} truth {e['gold']!r}{said}; label {e['label']!r}"
        console.print(Text(line), soft_wrap=True)
    console.print(Text(leak_line(found)), soft_wrap=True)
    console.print(
        Text(f"calls: {found['planned']} planned, {found['computed']} computed, {found['cached']} cached")
    )
    if found["digest"]:
        console.print(Text(f"{found['out']}: labels.parquet, labels.json, labels.html"), soft_wrap=True)
    if found["review"]:
        console.print(Text(f'{found["review"]}: correct a label, set "use": true, then add --import'))


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 3]}..."


def leak_line(found: Mapping[str, Any]) -> str:
    """What is known of questions in both splits."""
    if not found["evaluated"]:
        return "leaks: not looked for; --against DATA names what will be evaluated on"
    return f"leaks: none between these and {found['evaluated']} questions that are evaluated on"


def page(found: Mapping[str, Any]) -> str:
    """The same as one HTML file that loads nothing."""
    text, _ = web_page(
        "labels.html", ("base.css", "run.css"), (), False, {"r": found, "leaks": leak_line(found)}
    )
    return text
