"""A fit on a console, and as one HTML page. Knows what `fit decide --json` and `fit fuse --json` print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from raypipe.report import plot
from raypipe.report.console import grid
from raypipe.report.web_page import read_part
from raypipe.report.wording import calibration_line, measured, share, signed, told_apart

DECIDE = ("answers are given by", "threshold", "score", "95 % interval", "answered", "right",
          "fitted is better by", "95 % interval", "p", "verdict")  # fmt: skip
FUSE = ("weights", "", "score", "95 % interval", "fitted is better by", "95 % interval", "p", "verdict")
FEATURES_SHOWN = 8  # by their effect; all of them are in --json


def print_decide_fit(console: Console, found: Mapping[str, Any]) -> None:
    """A fit of `decide`: the half that it has not seen first."""
    _head(console, found, "decide")
    rows = [_decided(p) for p in found["unseen"]]
    console.print(_table(DECIDE, rows))
    for text in calibration_lines(found):
        console.print(Text(text), soft_wrap=True)
    shown = told_apart(found["slices"])[0]
    if shown:
        table = grid(
            "unseen, by label", "questions", "answered", "wrong", "answered, fitted", "wrong, fitted"
        )
        for s in shown:
            counts = (str(s[k]) for k in ("n", "answered", "wrong", "answered_fitted", "wrong_fitted"))
            table.add_row(Text(f"{s['label']}: {s['value']}"), *counts)
        console.print(table)
    best = ", ".join(f"{w['feature']} {w['effect']:+.2f}" for w in found["weights"][:FEATURES_SHOWN])
    console.print(Text(f"log odds for a standard deviation: {best}"), soft_wrap=True)
    _seen(console, found)


def print_fuse_fit(console: Console, found: Mapping[str, Any]) -> None:
    """A fit of `fuse`: the half that it has not seen first."""
    _head(console, found, found["step"])
    console.print(_table(FUSE, [_weighed(w) for w in found["unseen"]]))
    _seen(console, found)


def _head(console: Console, found: Mapping[str, Any], step: str) -> None:
    console.print(Text(f"{step} of {found['recipe']}, fitted on run {found['run']}", "bold"), soft_wrap=True)
    left = found.get("not_scored", found.get("left_out"))
    rest = f"; left out: {left} that are not scored" if left else ""
    rest += f"; {before} that the recipe's own fits have seen" if (before := found["seen_before"]) else ""
    console.print(
        Text(
            f"fitted on {found['split']}: {found['fitted_questions']} questions; below: mean "
            f"{found['measure']} of the {found['unseen_questions']} that the fit has not seen{rest}"
        ),
        soft_wrap=True,
    )


def _seen(console: Console, found: Mapping[str, Any]) -> None:
    first = found["seen"][0]
    console.print(
        Text(
            f"seen: on the half that was fitted on, the fit has {found['measure']} {signed(first['score'])}: "
            "not to be quoted"
        ),
        soft_wrap=True,
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = grid(*head)
    for row in rows:
        table.add_row(Text(row[0]), *row[1:])
    return table


def _decided(p: Mapping[str, Any]) -> list[str]:
    threshold = "" if p["threshold"] is None else f"{p['threshold']:.3f}"
    cells = [p["policy"], threshold, signed(p["score"]), _ends(p["interval"]), share(p["answered"])]
    return [*cells, "none" if p["right"] is None else share(p["right"]), *_gain(p)]


def _weighed(w: Mapping[str, Any]) -> list[str]:
    weights = ", ".join(f"{name} {value:.3g}" for name, value in w["weights"].items())
    return [w["weighing"], weights, measured(w["score"]), _ends(w["interval"]), *_gain(w)]


def _gain(row: Mapping[str, Any]) -> list[str]:
    if (d := row["gain"]) is None:
        return ["", "", "", ""]
    return [f"{d['difference']:+.3f}", _ends(d["interval"]), f"{d['p']:.3g}", row["verdict"]]


def _ends(interval: Sequence[float] | None) -> str:
    return "too few groups" if interval is None else f"{interval[0]:+.3f} to {interval[1]:+.3f}"


def calibration_lines(found: Mapping[str, Any]) -> list[str]:
    """How well probabilities hold, in sentences: the fitted ones', then those that the replies state."""
    lines = []
    for name, c in (("P(right)", found["calibration"]), ("stated confidence", found["stated"])):
        if c is not None:
            lines.append(calibration_line(name, c))
    return lines


def page(found: Mapping[str, Any]) -> str:
    """The same as one HTML file that loads nothing from the network."""
    from jinja2 import (  # 20 ms that the console does without
        Environment,
        FunctionLoader,
        StrictUndefined,
    )

    env = Environment(
        loader=FunctionLoader(read_part), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    text = resources.files("raypipe.report").joinpath("fit.html").read_text(encoding="utf-8")
    decides = "calibration" in found
    row = _decided if decides else _weighed
    return env.from_string(text).render(
        r=found if decides else {**found, "stated": None},
        title=f"{'decide' if decides else found['step']} of {found['recipe']}, fitted",
        head=DECIDE if decides else FUSE,
        unseen=[row(p) for p in found["unseen"]],
        seen=[row(p) for p in found["seen"]],
        calibration=calibration_lines(found) if decides else [],
        features=found["weights"] if decides else [],
        plot=plot,
    )
