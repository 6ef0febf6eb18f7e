"""Draws the timeline of a run: each process a line, each task of Ray a bar in the colour of its operators.

    RAY_PROFILING=1 raypipe eval local --data questions.jsonl.bz2 --out out/run
    python bench/figures/timeline.py out/run/timeline.json timeline.svg

Prints, for each group of operators, its tasks and the seconds in which they ran, and the share of the
processes' time in which any task ran. Bars of actors that only pass messages are left out.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#bbbbbb")  # Paul Tol's "bright"
WIDTH, ROW, LEFT, TOP = 900, 18, 110, 26  # pixels
SHORTEST_S = 0.02  # of a bar: an actor that passes a message takes less


class Bar(NamedTuple):
    """A task: its process, its operators, and its seconds since the first task."""

    process: str
    operators: str
    start: float
    end: float


def _operators(event: dict[str, Any]) -> str:
    """Names the operators of a task; "" for everything else that Ray does."""
    if event["cat"] == "task::_load":
        return "models loaded ahead"
    return ", ".join(dict.fromkeys(re.findall(r"MapBatches\((\w+)\)", event["cat"])))


def bars(events: list[dict[str, Any]]) -> list[Bar]:
    """Returns the tasks of a trace, by their start."""
    tasks = [e for e in events if _operators(e) and e["dur"] >= SHORTEST_S * 1e6]
    zero = min(e["ts"] for e in tasks)
    found = []
    for e in tasks:
        start = (e["ts"] - zero) / 1e6
        found.append(Bar(e["tid"], _operators(e), start, start + e["dur"] / 1e6))
    return sorted(found, key=lambda bar: bar.start)


def drawn(found: list[Bar]) -> str:
    """Returns the picture as SVG: seconds from left to right."""
    processes = list(dict.fromkeys(bar.process for bar in found))
    seconds: dict[str, float] = defaultdict(float)
    for bar in found:
        seconds[bar.operators] += bar.end - bar.start
    groups = sorted(seconds, key=lambda name: -seconds[name])
    colour = {name: COLOURS[min(i, len(COLOURS) - 1)] for i, name in enumerate(groups)}
    end = max(bar.end for bar in found)
    scale = (WIDTH - LEFT - 10) / end
    bottom = TOP + ROW * len(processes)
    height = bottom + 24 + 18 * len(groups)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    step = next(s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 3600) if end / s <= 12 or s == 3600)
    for at in range(0, int(end) + 1, step):
        x = LEFT + at * scale
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>')
        out.append(f'<text x="{x:.1f}" y="{TOP - 6}" text-anchor="middle">{at} s</text>')
    for i, process in enumerate(processes):
        out.append(f'<text x="4" y="{TOP + ROW * i + 13}">process {i + 1}</text>')
        for bar in (bar for bar in found if bar.process == process):
            x, width = LEFT + bar.start * scale, max((bar.end - bar.start) * scale, 0.7)
            label = html.escape(f"{bar.operators}: {bar.start:.1f} to {bar.end:.1f} s")
            out.append(
                f'<rect x="{x:.1f}" y="{TOP + ROW * i + 2}" width="{width:.1f}" height="{ROW - 4}" '
                f'fill="{colour[bar.operators]}"><title>{label}</title></rect>'
            )
    for i, name in enumerate(groups):
        y = bottom + 14 + 18 * i
        out.append(f'<rect x="{LEFT}" y="{y}" width="12" height="12" fill="{colour[name]}"/>')
        out.append(f'<text x="{LEFT + 18}" y="{y + 10}">{html.escape(name)}: {seconds[name]:.1f} s</text>')
    return "\n".join((*out, "</svg>", ""))


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("timeline", type=Path)
    args.add_argument("picture", type=Path)
    given = args.parse_args()
    found = bars(json.loads(given.timeline.read_text()))
    given.picture.write_text(drawn(found))
    tasks: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    processes = {bar.process for bar in found}
    for bar in found:
        tasks[bar.operators] += 1
        seconds[bar.operators] += bar.end - bar.start
    for name in sorted(seconds, key=lambda name: -seconds[name]):
        print(f"{name}: {tasks[name]} tasks, {seconds[name]:.1f} s")
    end = max(bar.end for bar in found)
    busy = sum(seconds.values()) / (end * len(processes))
    print(f"{end:.1f} s from the first task to the last; {len(processes)} processes, busy {busy:.0%} of them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
