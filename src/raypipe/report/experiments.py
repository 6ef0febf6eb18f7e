"""Fits and sweeps on a console, a fit as one HTML page, and a sweep as one SVG. Knows what the commands `fit`
and `sweep` print as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from raypipe.report import plot, web_page
from raypipe.report.console import say, show
from raypipe.report.costs import hours, ranged, usd
from raypipe.report.wording import calibration_line, ends, measured, share, signed, told_apart

DECIDE = ("answers are given by", "threshold", "score", "95 % interval", "answered", "right",
          "fitted is better by", "95 % interval", "p", "verdict")  # fmt: skip
FUSE = ("weights", "", "score", "95 % interval", "fitted is better by", "95 % interval", "p", "verdict")
FEATURES_SHOWN = 8  # by their effect; all of them are in --json


def print_decide_fit(console: Console, found: Mapping[str, Any]) -> None:
    """A fit of `decide`: the half that it has not seen first."""
    _head(console, found, "decide")
    show(console, DECIDE, [_decided(p) for p in found["unseen"]])
    say(console, *_calibrations(found))
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


def _calibrations(found: Mapping[str, Any]) -> list[str]:
    """How well probabilities hold, in sentences: the fitted ones', then those that the replies state."""
    told = (("P(right)", found["calibration"]), ("stated confidence", found["stated"]))
    return [calibration_line(name, c) for name, c in told if c is not None]


def fit_page(found: Mapping[str, Any]) -> str:
    """A fit as one HTML file that loads nothing from the network."""
    decides = "calibration" in found
    row = _decided if decides else _weighed
    values = {
        "r": found if decides else {**found, "stated": None},
        "title": f"{'decide' if decides else found['step']} of {found['recipe']}, fitted",
        "head": DECIDE if decides else FUSE,
        "unseen": [row(p) for p in found["unseen"]],
        "seen": [row(p) for p in found["seen"]],
        "calibration": _calibrations(found) if decides else [],
        "features": found["weights"] if decides else [],
    }
    return web_page.page("fit.html", ("fit.css",), (), False, values)[0]


STEPS_SHOWN = 4  # that a line names
LINE = 26  # height of one point's line in the plot
LEFT, RIGHT = 300, 560  # the plot's axis of scores


def print_points(console: Console, plans: Sequence[Mapping[str, Any]]) -> None:
    """What each point is expected to take; what points share counts at the first of them."""
    heads = ("point", "calls", "at most", "tokens", "hours", "usd", "steps of an earlier point")
    rows = []
    for p in plans:
        e = p["estimate"]
        most = "not known" if e["max_calls"] is None else f"{e['max_calls']:,}"
        shared = ", ".join(p["shared"][:STEPS_SHOWN]) + ", ..." * (len(p["shared"]) > STEPS_SHOWN)
        numbers = (ranged(e["calls"]), most, ranged(e["tokens"]), hours(e["hours"]), usd(e["usd"]))
        rows.append((p["point"], *numbers, shared))
    console.print(f"plan of {len(plans)} points:")
    show(console, heads, rows)


def print_sweep(console: Console, sweep: Mapping[str, Any]) -> None:
    """The one table of a sweep, and what became of its winner."""
    heads = ["point", sweep["measure"], "difference", "95 % interval", "p", "verdict"]
    heads += ["calls a question", "new calls", "new tokens", "usd"]
    rows = []
    for p in sweep["points"]:
        cost = (_calls(p), f"{p['cost']['calls']:,}", f"{p['cost']['tokens']:,}", usd(p["cost"]["usd"]))
        rows.append((p["point"], f"{p['score']:+.3f}", *_against(p), *cost))
    show(console, heads, rows, [row[0] for row in rows].index(sweep["winner"]))
    others, n = len(sweep["points"]) - 1, sweep["scored"]
    if sweep["questions"] > n:
        console.print(f"left out: {sweep['questions'] - n} questions that some point did not score")
    console.print(
        f"{n} questions, each point against the first; p is corrected for {others} "
        f"comparison{'s' * (others > 1)} (maxT)"
    )
    say(console, _conclusion(sweep), style="bold")


def _calls(point: Mapping[str, Any]) -> str:
    """Calls a question."""
    each = point["calls_per_question"]
    return "not known" if each is None else f"{each:,.1f}"


def _against(point: Mapping[str, Any]) -> tuple[str, str, str, str]:
    d = point["against_first"]
    if d is None:
        return "", "", "", "the first"
    within = ends(d["interval"], signed, "not known")
    return signed(d["difference"]), within, f"{point['p']:.3g}", point["verdict"]


def _conclusion(sweep: Mapping[str, Any]) -> str:
    """What the best point is worth, in a sentence."""
    best = f"best: {sweep['winner']}"
    if not sweep["unseen"]:
        return f"{best}. No question is left that the sweep did not see: --sample N leaves some"
    again, name = sweep["winner_again"], sweep["measure"]
    score = f"{name} not scored" if again is None else f"{name} {again:+.3f}"
    on = f"on {sweep['unseen']} questions that the sweep did not see"
    if (again := sweep["again"]) is None:
        return f"{best}, which is the first; {on}: {score}"
    d = again["score"]
    return (
        f"{best}; {on}: {score}, {d['difference']:+.3f} against the first (p {again['p']:.3g}), "
        f"{again['verdict']}"
    )


def sweep_plot(sweep: Mapping[str, Any]) -> str:
    """The points as an SVG: score with the interval of its difference from the first, calls next to it."""
    points, first = sweep["points"], sweep["points"][0]["score"]
    lines = []  # a point, and the ends of its bar: those of the difference, from the first's score
    for p in points:
        within = (p["against_first"] or {}).get("interval")
        lines.append((p, *([first + end for end in within] if within else [p["score"]] * 2)))
    low, high = min(low for _, low, _ in lines), max(high for _, _, high in lines)
    margin = 0.05 * (high - low) or 0.05
    low, high = low - margin, high + margin
    values = {"s": sweep, "title": _conclusion(sweep), "lines": lines, "calls": _calls, "first": first}
    values |= {"ends": (low, high), "left": LEFT, "right": RIGHT, "x": plot.scale(low, high, LEFT, RIGHT)}
    values |= {"line": LINE, "height": 86 + LINE * len(points)}
    return web_page.templates().get_template("sweep.svg").render(**values)
