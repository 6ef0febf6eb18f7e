"""The page of a run, of a pair or of a list of runs: `text.web_page` with the words and plots of reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raypipe.evaluation.report import plot, wording
from raypipe.metrics.losses import steps_of
from raypipe.text import web_page

OF_WORDING = ("signed", "share", "seconds", "measured", "fit_lines", "label_text", "ann_line", "listed")
"""Functions of `wording` that templates use."""
FILTERS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(wording, name) for name in OF_WORDING},
    "steps_of": steps_of,
    "expected": lambda calls: wording.between(calls, str, "-"),
}


def page(
    template: str, styles: Sequence[str], scripts: Sequence[str], own_host: bool, values: Mapping[str, Any]
) -> tuple[str, str]:
    """As `text.web_page.page`, of the templates of reports."""
    shown = {**values, "plot": plot}
    return web_page.page("raypipe.evaluation.report", template, styles, scripts, own_host, shown, FILTERS)
