"""Training labels on a console, and as one HTML page. Knows what `labels --json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from raypipe.report.console import say, show
from raypipe.report.web_page import page as web_page
from raypipe.report.wording import cut, share

SHOWN_CHARS = 80  # of a reply


def print_labels(console: Console, found: Mapping[str, Any]) -> None:
    """Labels that were made: their mix, where each path went, examples, and what to do next. Text from data
    is printed as it is."""
    head = (
        f"{found['labels']} labels of {found['questions']} questions for {found['step']} of {found['recipe']}"
    )
    say(console, head, style="bold")
    rows = [
        (
            m["domain"] or "(none)",
            m["labels"],
            *(m["rules"].get(r, 0) for r in found["rules"]),
            share(m["idk"]),
        )
        for m in found["mix"]
    ]
    show(console, ("domain", "labels", *found["rules"], "i don't know"), rows)
    for path in found["paths"]:
        rule = f"rule {path['rule']}" if path["rule"] else "no label"
        to = f" -> {path['label']}" if path["label"] else ""
        say(console, f"{path['questions']:>6}  {rule}: {path['about']}{to}")
    for e in found["examples"]:
        said = f"; {found['step']} said {cut(e['reply'], SHOWN_CHARS, '...')!r}" if e["reply"] else ""
        say(console, f"  {e['rule']}: {e['query']} truth {e['gold']!r}{said}; label {e['label']!r}")
    say(console, leak_line(found))
    calls = f"calls: {found['planned']} planned, {found['computed']} computed, {found['cached']} cached"
    say(console, calls, fold=True)
    if found["digest"]:
        say(console, f"{found['out']}: labels.parquet, labels.json, labels.html")
    if found["review"]:
        say(console, f'{found["review"]}: correct a label, set "use": true, then add --import', fold=True)


def leak_line(found: Mapping[str, Any]) -> str:
    """What is known of questions in both splits."""
    if not found["evaluated"]:
        return "leaks: not looked for; --against DATA names what will be evaluated on"
    return f"leaks: none between these and {found['evaluated']} questions that are evaluated on"


def page(found: Mapping[str, Any]) -> str:
    """The same as one HTML file that loads nothing."""
    values = {"r": found, "leaks": leak_line(found)}
    return web_page("labels.html", ("base.css", "run.css"), (), False, values)[0]
