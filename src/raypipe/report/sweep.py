"""A sweep on a console, and as one SVG. Knows what `sweep --json` prints."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from raypipe.report.console import grid
from raypipe.report.costs import hours, ranged, usd
from raypipe.report.wording import cut, ends, signed

SHARED_SHOWN = 4  # steps that a line names

WIDTH, LINE = 760, 26  # of the plot; height of one point's line
LEFT, RIGHT, SCORE_Y = 300, 560, 46  # the axis of scores; where the first line is


def print_plans(console: Console, plans: Sequence[Mapping[str, Any]]) -> None:
    """What each point is expected to take; what points share counts at the first of them."""
    shown = grid("point", "calls", "at most", "tokens", "hours", "usd", "steps of an earlier point")
    for p in plans:
        e = p["estimate"]
        most = "not known" if e["max_calls"] is None else f"{e['max_calls']:,}"
        shared = ", ".join(p["shared"][:SHARED_SHOWN]) + ", ..." * (len(p["shared"]) > SHARED_SHOWN)
        numbers = (ranged(e["calls"]), most, ranged(e["tokens"]), hours(e["hours"]), usd(e["usd"]))
        shown.add_row(Text(p["point"]), *numbers, shared)
    console.print(f"plan of {len(plans)} points:")
    console.print(shown)


def print_sweep(console: Console, sweep: Mapping[str, Any]) -> None:
    """The one table of a sweep, and what became of its winner."""
    shown = grid(
        "point", sweep["measure"], "difference", "95 % interval", "p", "verdict", "calls a question",
        "new calls", "new tokens", "usd",
    )  # fmt: skip
    for p in sweep["points"]:
        style = "bold" if p["point"] == sweep["winner"] else ""
        each = "not known" if p["calls_per_question"] is None else f"{p['calls_per_question']:,.1f}"
        cost = (each, f"{p['cost']['calls']:,}", f"{p['cost']['tokens']:,}", usd(p["cost"]["usd"]))
        shown.add_row(Text(p["point"]), f"{p['score']:+.3f}", *_against(p), *cost, style=style)
    console.print(shown)
    others, n = len(sweep["points"]) - 1, sweep["scored"]
    if sweep["questions"] > n:
        console.print(f"left out: {sweep['questions'] - n} questions that some point did not score")
    console.print(
        f"{n} questions, each point against the first; p is corrected for {others} "
        f"comparison{'s' * (others > 1)} (maxT)"
    )
    console.print(Text(conclusion(sweep), "bold"), soft_wrap=True)


def _against(point: Mapping[str, Any]) -> tuple[str, str, str, str]:
    d = point["against_first"]
    if d is None:
        return "", "", "", "the first"
    within = ends(d["interval"], signed, "not known")
    return signed(d["difference"]), within, f"{point['p']:.3g}", point["verdict"]


def conclusion(sweep: Mapping[str, Any]) -> str:
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


def plot(sweep: Mapping[str, Any]) -> str:
    """The points as an SVG: score with the interval of its difference from the first, calls next to it."""
    points = sweep["points"]
    first, measure = points[0]["score"], html.escape(sweep["measure"])
    spans: list[list[float]] = []  # the ends of each bar: those of the difference, from the first's score
    for p in points:
        within = (p["against_first"] or {}).get("interval")
        spans.append([first + end for end in within] if within else [p["score"], p["score"]])
    low, high = min(s[0] for s in spans), max(s[1] for s in spans)
    margin = 0.05 * (high - low) or 0.05
    low, high = low - margin, high + margin

    def x(score: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * (score - low) / (high - low), 1)

    height = SCORE_Y + LINE * len(points) + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{html.escape(conclusion(sweep))}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="22">{measure}, with the interval against the first</text>',
        f'<text x="{RIGHT + 20}" y="22">calls a question</text>',
        f'<line x1="{x(first)}" y1="32" x2="{x(first)}" y2="{height - 30}" stroke="#999" '
        'stroke-dasharray="4 3"/>',
    ]
    for n, (p, span) in enumerate(zip(points, spans, strict=True)):
        y, bold = SCORE_Y + LINE * n, ' font-weight="bold"' if p["point"] == sweep["winner"] else ""
        each = "not known" if p["calls_per_question"] is None else f"{p['calls_per_question']:,.1f}"
        out += [
            f'<text x="8" y="{y + 4}"{bold}>{html.escape(cut(p["point"], 40))}</text>',
            f'<line x1="{x(span[0])}" y1="{y}" x2="{x(span[1])}" y2="{y}" stroke="#246" stroke-width="2"/>',
            f'<circle cx="{x(p["score"])}" cy="{y}" r="5" fill="#246"/>',
            f'<text x="{RIGHT + 20}" y="{y + 4}"{bold}>{each}; {measure} {p["score"]:+.3f}</text>',
        ]
    out += [
        f'<text x="{LEFT}" y="{height - 10}" text-anchor="middle">{low:+.2f}</text>',
        f'<text x="{RIGHT}" y="{height - 10}" text-anchor="middle">{high:+.2f}</text>',
        "</svg>",
    ]
    return "\n".join(out) + "\n"
