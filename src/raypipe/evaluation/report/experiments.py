"""Fits and sweeps on a console. Knows what the commands print as JSON. Text from data is printed as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from raypipe.evaluation.report.console import say, show
from raypipe.evaluation.report.wording import (
    calibration_line,
    ends,
    hours,
    measured,
    ranged,
    share,
    signed,
    usd,
)

DECIDE = ("answers are given by", "threshold", "score", "95 % interval", "answered", "right",
          "fitted is better by", "95 % interval", "p", "verdict")  # fmt: skip
FUSE = ("weights", "", "score", "95 % interval", "fitted is better by", "95 % interval", "p", "verdict")
RELIABILITY = ("P(right), mean of a bin", "answers", "share right", "95 % interval")
FEATURES_SHOWN = 8  # by their effect; all of them are in the fit's .json


def print_fit(console: Console, found: Mapping[str, Any]) -> None:
    """A fit of `decide` or `fuse`: the half that it has not seen first."""
    decides = "calibration" in found
    step = "decide" if decides else found["step"]
    say(console, f"{step} of {found['recipe']}, fitted on run {found['run']}", style="bold")
    left = found.get("not_scored", found.get("left_out"))
    rest = f"; left out: {left} that are not scored" if left else ""
    rest += f"; {before} that the recipe's own fits have seen" if (before := found["seen_before"]) else ""
    say(
        console,
        f"fitted on {found['split']}: {found['fitted_questions']} questions; below: mean "
        f"{found['measure']} of the {found['unseen_questions']} that the fit has not seen{rest}",
    )
    heads, row = (DECIDE, _decided) if decides else (FUSE, _weighed)
    show(console, heads, [row(way) for way in found["unseen"]])
    if decides:
        say(console, *_calibrations(found))
        show(console, RELIABILITY, [_reliability(b) for b in found["calibration"]["bins"]])
        best = ", ".join(f"{w['feature']} {w['effect']:+.2f}" for w in found["weights"][:FEATURES_SHOWN])
        say(console, f"log odds for a standard deviation: {best}")
    mean = f"{found['measure']} {signed(found['seen'][0]['score'])}"
    say(console, f"seen: on the half that was fitted on, the fit has {mean}: not to be quoted")


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
    """Returns how well probabilities hold, in sentences: the fitted ones', then those that the replies
    state."""
    told = (("P(right)", found["calibration"]), ("stated confidence", found["stated"]))
    return [calibration_line(name, c) for name, c in told if c is not None]


def _reliability(b: Mapping[str, Any]) -> list[object]:
    return [f"{b['mean']:.2f}", b["n"], f"{b['right']:.2f}", ends(b["interval"])]


NAMED = 4  # steps that a line names


def print_points(console: Console, plans: Sequence[Mapping[str, Any]]) -> None:
    """Prints what each point is expected to take; what points share counts at the first of them."""
    estimates = [p["estimate"] for p in plans]
    tokens = any(e["tokens"] is None or any(e["tokens"]) for e in estimates)
    priced = any(e["usd"] is not None for e in estimates)
    heads = ["point", "calls", "at most", *["tokens"] * tokens, "hours", *["usd"] * priced]
    rows = []
    for p in plans:
        e = p["estimate"]
        most = "not known" if e["max_calls"] is None else f"{e['max_calls']:,}"
        shared = ", ".join(p["shared"][:NAMED]) + ", ..." * (len(p["shared"]) > NAMED)
        costs = (*[ranged(e["tokens"])] * tokens, hours(e["hours"]), *[usd(e["usd"])] * priced)
        rows.append((p["point"], ranged(e["calls"]), most, *costs, shared))
    console.print(f"plan of {len(plans)} points:")
    show(console, (*heads, "steps of an earlier point"), rows)


def print_sweep(console: Console, sweep: Mapping[str, Any]) -> None:
    """The one table of a sweep, and what became of its winner."""
    heads = ["point", sweep["measure"], "difference", "95 % interval", "p", "verdict"]
    tokens, priced = (any(p["cost"][n] for p in sweep["points"]) for n in ("tokens", "usd"))
    heads += ["calls a question", "new calls", *["new tokens"] * tokens, *["usd"] * priced]
    rows = []
    for p in sweep["points"]:
        gain, d = ("", "", "", "the first"), p["against_first"]
        if d is not None:
            within = ends(d["interval"], signed, "not known")
            gain = (signed(d["difference"]), within, f"{p['p']:.3g}", p["verdict"])
        cost = [_calls(p), f"{p['cost']['calls']:,}", *[f"{p['cost']['tokens']:,}"] * tokens]
        rows.append((p["point"], f"{p['score']:+.3f}", *gain, *cost, *[usd(p["cost"]["usd"])] * priced))
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
    each = point["calls_per_question"]
    return "not known" if each is None else f"{each:,.1f}"


def _conclusion(sweep: Mapping[str, Any]) -> str:
    """Returns what the best point is worth, in a sentence."""
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
