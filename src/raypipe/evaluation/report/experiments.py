"""Console output of fits and sweeps. Text from data is printed literally."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from raypipe.evaluation.fit_decide import DecideFitReport, PolicyScore
from raypipe.evaluation.fit_fuse import FuseFitReport, WeightScore
from raypipe.evaluation.report.console import say, show
from raypipe.evaluation.report.formatting import (
    calibration_line,
    ends,
    hours,
    measured,
    ranged,
    share,
    signed,
    usd,
)
from raypipe.evaluation.sweep import PlannedPoint, Sweep
from raypipe.metrics.paired_tests import PairedDifference

INTERVAL = "95 % interval"
GAIN = ("fitted is better by", INTERVAL, "p", "verdict")
RELIABILITY = ("P(right), mean of a bin", "answers", "share right", INTERVAL)
FEATURES_SHOWN = 8  # largest effects first; the fit's .json has all


def print_fit(console: Console, found: DecideFitReport | FuseFitReport) -> None:
    """Prints a fit of `decide` or `fuse`. The scores on the unseen half come first."""
    heads: tuple[str, ...]
    rows = list[list[str]]()
    score = (found.measure, INTERVAL)
    if isinstance(found, DecideFitReport):
        step, left = "decide", found.not_scored
        heads = ("answers are given by", "threshold", *score, "answered", "right", *GAIN)
        for p in found.unseen:
            threshold = "" if p.threshold is None else f"{p.threshold:.3f}"
            cells = [p.policy, threshold, signed(p.score), _ends(p), share(p.answered)]
            rows.append([*cells, "none" if p.right is None else share(p.right), *_gain(p)])
    else:
        step, left, heads = found.step, found.left_out, ("weights", "", *score, *GAIN)
        for w in found.unseen:
            weights = ", ".join(f"{name} {value:.3g}" for name, value in w.weights.items())
            rows.append([w.weighing, weights, measured(w.score), _ends(w), *_gain(w)])
    say(console, f"{step} of {found.recipe}, fitted on run {found.run}", style="bold")
    rest = f"; left out: {left} that are not scored" if left else ""
    rest += f"; {before} that the recipe's own fits have seen" if (before := found.seen_before) else ""
    mean = f"mean {found.measure} of the {found.unseen_questions} that the fit has not seen"
    say(console, f"fitted on {found.split}: {found.fitted_questions} questions; below: {mean}{rest}")
    show(console, heads, rows)
    if undecided := max(row.open for row in found.unseen):
        open_ = f"{undecided} answers that the rule leaves open: --judge MODEL in the eval decides them"
        if isinstance(found, FuseFitReport):
            open_ = f"{undecided} questions whose passages lack a score: `missing: zero` or `min` ranks them"
        say(console, f"cannot tell because of {open_}", fold=True)
    if isinstance(found, DecideFitReport):
        told = (("P(right)", found.calibration), ("stated confidence", found.stated))
        say(console, *(calibration_line(name, c) for name, c in told if c is not None))
        bins = [(f"{b.mean:.2f}", b.n, f"{b.right:.2f}", ends(b.interval)) for b in found.calibration.bins]
        show(console, RELIABILITY, bins)
        best = ", ".join(f"{w.feature} {w.effect:+.2f}" for w in found.weights[:FEATURES_SHOWN])
        say(console, f"log odds for a standard deviation: {best}")
    mean = f"{found.measure} {signed(found.seen[0].score)}"
    say(console, f"seen: on the half that was fitted on, the fit has {mean}: not to be quoted")


def _gain(row: PolicyScore | WeightScore) -> list[str]:
    if (d := row.gain) is None:
        return ["", "", "", ""]
    return [signed(d.difference), _ends(d), f"{d.p:.3g}", str(row.verdict)]


def _ends(of: PolicyScore | WeightScore | PairedDifference) -> str:
    return ends(of.interval, signed, "too few groups")


NAMED = 4  # steps named in one line


def print_points(console: Console, plans: Sequence[PlannedPoint]) -> None:
    """Prints the expected cost of each point. A step that points share counts only at the first of them."""
    tokens = any(p.estimate.tokens is None or any(p.estimate.tokens) for p in plans)
    priced = any(p.estimate.usd is not None for p in plans)
    heads = ["point", "calls", "at most", *["tokens"] * tokens, "hours", *["usd"] * priced]
    rows = []
    for p in plans:
        e = p.estimate
        most = "not known" if e.max_calls is None else f"{e.max_calls:,}"
        shared = ", ".join(p.shared[:NAMED]) + ", ..." * (len(p.shared) > NAMED)
        costs = (*[ranged(e.tokens)] * tokens, hours(e.hours), *[usd(e.usd)] * priced)
        rows.append((p.point, ranged(e.calls), most, *costs, shared))
    console.print(f"plan of {len(plans)} points:")
    show(console, (*heads, "steps of an earlier point"), rows)


def print_sweep(console: Console, sweep: Sweep, plans: Sequence[PlannedPoint]) -> None:
    """Prints the table of a sweep, with planned and actual cost, and a sentence about the best point."""
    heads = ["point", sweep.measure, "difference", "95 % interval", "p", "verdict", "calls a question"]
    tokens, priced = (any(getattr(p.cost, n) for p in sweep.points) for n in ("tokens", "usd"))
    heads += ["planned", "new calls", *["planned", "new tokens"] * tokens, "planned", "took"]
    heads += ["planned", "usd"] * priced
    rows = []
    for p, plan in zip(sweep.points, plans, strict=True):
        gain, d = ("", "", "", "the first"), p.against_first
        if d is not None:
            within = ends(d.interval, signed, "not known")
            alike = "no score differs" if p.verdict == "cannot tell" and not d.up + d.down else p.verdict
            gain = (signed(d.difference), within, f"{p.p:.3g}", str(alike))
        each = "not known" if p.calls_per_question is None else f"{p.calls_per_question:,.1f}"
        e, cost = plan.estimate, [each]
        cost += [ranged(e.calls), f"{p.cost.calls:,}", *[ranged(e.tokens), f"{p.cost.tokens:,}"] * tokens]
        cost += [hours(e.hours), hours([p.cost.hours] * 2), *[usd(e.usd), usd(p.cost.usd)] * priced]
        rows.append((p.point, f"{p.score:+.3f}", *gain, *cost))
    show(console, heads, rows, [row[0] for row in rows].index(sweep.winner))
    others, n = len(sweep.points) - 1, sweep.scored
    if sweep.questions > n:
        console.print(f"left out: {sweep.questions - n} questions that some point did not score")
    console.print(
        f"{n} questions, each point against the first; p is corrected for {others} "
        f"comparison{'s' * (others > 1)} (maxT)"
    )
    say(console, _conclusion(sweep), style="bold")


def _conclusion(sweep: Sweep) -> str:
    """Returns a sentence about the best point and its score on unseen questions."""
    best = f"best: {sweep.winner}"
    if not sweep.unseen:
        return f"{best}. No question is left that the sweep did not see: --sample N leaves some"
    mean, name = sweep.winner_again, sweep.measure
    score = f"{name} not scored" if mean is None else f"{name} {mean:+.3f}"
    on = f"on {sweep.unseen} questions that the sweep did not see"
    if (again := sweep.again) is None:
        return f"{best}, which is the first; {on}: {score}"
    d = again.score
    return f"{best}; {on}: {score}, {d.difference:+.3f} against the first (p {again.p:.3g}), {again.verdict}"
