"""The page of a run, of a pair or of a list of runs: `text.web_page` with the words and plots of reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raypipe.evaluation.report import plot
from raypipe.evaluation.report.wording import (
    ann_line,
    between,
    cut,
    fit_lines,
    label_text,
    listed,
    measured,
    seconds,
    share,
    signed,
)
from raypipe.metrics.losses import steps_of
from raypipe.text import web_page

FILTERS: Mapping[str, Callable[..., Any]] = {
    "signed": signed, "share": share, "seconds": seconds, "measured": measured, "steps_of": steps_of,
    "fit_lines": fit_lines, "label_text": label_text, "ann_line": ann_line, "cut": cut, "listed": listed,
    "expected": lambda calls: between(calls, str, "-"),
}  # fmt: skip


def page(
    template: str, styles: Sequence[str], scripts: Sequence[str], own_host: bool, values: Mapping[str, Any]
) -> tuple[str, str]:
    """As `text.web_page.page`, of the templates of reports."""
    shown = {**values, "plot": plot}
    return web_page.page("raypipe.evaluation.report", template, styles, scripts, own_host, shown, FILTERS)
