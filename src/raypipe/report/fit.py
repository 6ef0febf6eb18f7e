"""A fit on a console, and as one HTML page. Knows what `fit decide --json` and `fit fuse --json` print."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from rich.console import Console

from raypipe.report import plot
from raypipe.report.console import say, show
from raypipe.report.web_page import templates
from raypipe.report.wording import calibration_line, ends, measured, share, signed, told_apart

DECIDE = ("answers are given by", "threshold", "score", "95 % interval", "answered", "right",
          "fitted is better by", "95 % interval", "p", "verdict")  # fmt: skip
FUSE = ("weights", "", "score", "95 % interval", "fitted is better by", "95 % interval", "p", "verdict")
FEATURES_SHOWN = 8  # by their effect; all of them are in --json


def print_decide_fit(console: Console, found: Mapping[str, Any]) -> None:
    """A fit of `decide`: the half that it has not seen first."""
    _head(console, found, "decide")
    show(console, DECIDE, [_decided(p) for p in found["unseen"]])
    say(console, *calibration_lines(found))
    if shown := told_apart(found["slices"])[0]:
        counted = ("n", "answered", "wrong", "answered_fitted", "wrong_fitted")
        heads = ("unseen, by label", "questions", "answered", "wrong", "answered, fitted", "wrong, fitted")
        show(console, heads, [(f"{s['label']}: {s['value']}", *(s[k] for k in counted)) for s in shown])
    best = ", ".join(f"{w['feature']} {w['effect']:+.2f}" for w in found["weights"][:FEATURES_SHOWN])
    say(console, f"log odds for a standard deviation: {best}", _seen(found))


def print_fuse_fit(console: Console, found: Mapping[str, Any]) -> None:
    """A fit of `fuse`: the half that it has not seen first."""
    _head(console, found, found["step"])
    show(console, FUSE, [_weighed(w) for w in found["unseen"]])
    say(console, _seen(found))


def _head(console: Console, found: Mapping[str, Any], step: str) -> None:
    say(console, f"{step} of {found['recipe']}, fitted on run {found['run']}", style="bold")
    left = found.get("not_scored", found.get("left_out"))
    rest = f"; left out: {left} that are not scored" if left else ""
    rest += f"; {before} that the recipe's own fits have seen" if (before := found["seen_before"]) else ""
    say(
        console,
        f"fitted on {found['split']}: {found['fitted_questions']} questions; below: mean "
        f"{found['measure']} of the {found['unseen_questions']} that the fit has not seen{rest}",
    )


def _seen(found: Mapping[str, Any]) -> str:
    mean = f"{found['measure']} {signed(found['seen'][0]['score'])}"
    return f"seen: on the half that was fitted on, the fit has {mean}: not to be quoted"


def _decided(p: Mapping[str, Any]) -> list[str]:
    threshold = "" if p["threshold"] is None else f"{p['threshold']:.3f}"
    cells = [p["policy"], threshold, signed(p["score"]), _ends(p), share(p["answered"])]
    return [*cells, "none" if p["right"] is None else share(p["right"]), *_gain(p)]


def _weighed(w: Mapping[str, Any]) -> list[str]:
    weights = ", ".join(f"{name} {value:.3g}" for name, value in w["weights"].items())
    return [w["weighing"], weights, measured(w["score"]), _ends(w), *_gain(w)]


def _gain(row: Mapping[str, Any]) -> list[str]:
    if (d := row["gain"]) is None:
        return ["", "", "", ""]
    return [signed(d["difference"]), _ends(d), f"{d['p']:.3g}", row["verdict"]]


def _ends(of: Mapping[str, Any]) -> str:
    return ends(of["interval"], signed, "too few groups")


def calibration_lines(found: Mapping[str, Any]) -> list[str]:
    """How well probabilities hold, in sentences: the fitted ones', then those that the replies state."""
    told = (("P(right)", found["calibration"]), ("stated confidence", found["stated"]))
    return [calibration_line(name, c) for name, c in told if c is not None]


def page(found: Mapping[str, Any]) -> str:
    """The same as one HTML file that loads nothing from the network."""
    text = resources.files("raypipe.report").joinpath("fit.html").read_text(encoding="utf-8")
    decides = "calibration" in found
    row = _decided if decides else _weighed
    return (
        templates(keep_trailing_newline=False)
        .from_string(text)
        .render(
            r=found if decides else {**found, "stated": None},
            title=f"{'decide' if decides else found['step']} of {found['recipe']}, fitted",
            head=DECIDE if decides else FUSE,
            unseen=[row(p) for p in found["unseen"]],
            seen=[row(p) for p in found["seen"]],
            calibration=calibration_lines(found) if decides else [],
            features=found["weights"] if decides else [],
            plot=plot,
        )
    )
