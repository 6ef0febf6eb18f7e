"""A training on a console, and as one HTML page. Knows what `finetune --json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from raypipe.report import web_page
from raypipe.report.console import say
from raypipe.report.progress import clock

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 300, 50, 710, 15, 270  # of the plot, and of its axes
SHOWN = 60  # steps of the page's table: evenly spaced where there are more


def print_plan(console: Console, plan: Mapping[str, Any]) -> None:
    e = plan["estimate"]
    m = e["memory"]
    left = f", {e['left_out']} left out as too long" if e["left_out"] else ""
    say(
        console,
        f"{plan['preset']} on {plan['base']}, {_workers(plan)} on {plan['device']}",
        f"labels: {e['rows']} to train on, {e['held_out']} held out{left} ({plan['labels']})",
        f"steps: {e['steps']} at most, {e['epochs']:.2f} epochs, {e['looks']} looks at the held-out labels",
        f"tokens: {e['tokens']:,}, of which {e['trained']:,} are answers; longest row {e['longest']}",
        f"adapter: {e['adapter_parameters']:,} numbers on {e['adapted_layers']} layers",
        f"base: {e['parameters']:,} numbers",
        f"memory of a worker: {m['total']:.2f} GiB = weights {m['weights']:.2f} + adapter {m['adapter']:.2f} "
        f"+ activations {m['activations']:.2f} + logits {m['logits']:.2f} ({m['arithmetic']})",
        _four_bit(plan),
        f"time: {_time(e)}",
    )


def _four_bit(plan: Mapping[str, Any]) -> str:
    four = plan["four_bit"]
    return f"4-bit: {'on' if four['on'] else 'off'}, because {four['because']}"


def _workers(found: Mapping[str, Any]) -> str:
    return f"{found['workers']} worker{'s' * (found['workers'] > 1)}"


def _time(e: Mapping[str, Any]) -> str:
    if e["seconds"] is None:
        return str(e["rate_from"])
    low, high = e["seconds"]
    return f"{clock(low)} to {clock(high)}, from {e['rate_from']}"


def print_finetune(console: Console, found: Mapping[str, Any], entry: str) -> None:
    """What became of a training, and the entry that recipes need."""
    say(console, f"adapter {found['adapter']} on {found['base_name']}: {found['folder']}", style="bold")
    say(console, *lines_of(found))
    say(console, "models.yaml:", fold=True)
    console.print(Text(entry), soft_wrap=True, end="")


def lines_of(found: Mapping[str, Any]) -> list[str]:
    """What became of a training, in sentences."""
    first, last, held = found["steps"][0], found["steps"][-1], found["held_out_loss"]
    early = ", ended early" if found["ended_early"] else ""
    kept = "the last one's adapter was kept"
    if held is not None:
        kept = f"step {found['step_taken']} was kept, with held-out loss {held:.3f}"
    e, asked = found["effect"], found["engine"]
    said = "no engine was asked: vLLM is not installed here, or the cluster file has no engines"
    if asked is not None:
        both = f"{asked['base']!r} by the base, {asked['adapter']!r} with the adapter"
        said = f"the engine says to its prompt: {both}"
    return [
        f"loss {first['loss']:.3f} to {last['loss']:.3f} in {found['steps_done']} steps{early}, "
        f"{clock(found['seconds'])} on {_workers(found)}; {kept}",
        _four_bit(found["plan"]),
        f"log-probability of the first label: {e['base']:.2f} by the base, {e['adapter']:.2f} with the "
        "adapter (a token)",
        said,
    ]


def page(found: Mapping[str, Any]) -> str:
    """The same as one HTML file with its curves, which loads nothing from the network."""
    looks = {p["step"]: p["loss"] for p in found["looks"]}
    steps = found["steps"]
    every = max(1, -(-len(steps) // SHOWN))
    shown = [
        {**s, "held": looks.get(s["step"])}
        for i, s in enumerate(steps)
        if i % every == 0 or s["step"] in looks
    ]
    values = {"r": found, "lines": lines_of(found), "c": _curves(found), "shown": shown}
    return web_page.page("finetune.html", ("base.css", "finetune.css"), (), False, values)[0]


def _curves(found: Mapping[str, Any]) -> dict[str, Any]:
    """The plot's geometry, in the units of its view box."""
    steps, looks = found["steps"], found["looks"]
    last = max(2, steps[-1]["step"])
    most = max(p["loss"] for p in (*steps, *looks)) or 1.0

    def x(step: int) -> float:
        return round(LEFT + (RIGHT - LEFT) * (step - 1) / float(last - 1), 1)

    def y(loss: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * loss / float(most), 1)

    dots = [
        {"x": x(p["step"]), "y": y(p["loss"]), "text": f"step {p['step']}: {p['loss']:.4f}"} for p in looks
    ]
    return {
        "width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM,
        "train": " ".join(f"{x(p['step'])},{y(p['loss'])}" for p in steps),
        "held": " ".join(f"{d['x']},{d['y']}" for d in dots), "dots": dots,
        "taken": x(found["step_taken"]), "most": most, "last": last,
    }  # fmt: skip
