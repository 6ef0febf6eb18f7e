"""Labels and trainings as tables on a console. Text from data is printed as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from raypipe.core.progress import clock
from raypipe.evaluation.report.console import say, show
from raypipe.evaluation.report.wording import cut, share

SHOWN_CHARS = 80  # of a reply
STEPS_SHOWN = 12  # of a training: evenly spaced where there are more; all of them are in training.json


def print_labels(console: Console, found: Mapping[str, Any]) -> None:
    """Labels that were made: their mix, where each path went, examples, and what to do next."""
    of = f"{found['questions']} questions for {found['step']} of {found['recipe']}"
    say(console, f"{found['labels']} labels of {of}", style="bold")
    rules = found["rules"]
    rows = []
    for m in found["mix"]:
        counts = (m["rules"].get(r, 0) for r in rules)
        rows.append((m["domain"] or "(none)", m["labels"], *counts, share(m["idk"])))
    show(console, ("domain", "labels", *rules, "i don't know"), rows)
    for path in found["paths"]:
        rule = f"rule {path['rule']}" if path["rule"] else "no label"
        to = f" -> {path['label']}" if path["label"] else ""
        say(console, f"{path['questions']:>6}  {rule}: {path['about']}{to}")
    for e in found["examples"]:
        said = f"; {found['step']} said {cut(e['reply'], SHOWN_CHARS, '...')!r}" if e["reply"] else ""
        say(console, f"  {e['rule']}: {e['query']} truth {e['gold']!r}{said}; label {e['label']!r}")
    say(console, _leaks(found))
    calls = f"calls: {found['computed']} computed, {found['cached']} cached, at most {found['planned']}"
    say(console, calls, fold=True)
    if found["digest"]:
        say(console, f"{found['out']}: labels.parquet, labels.json")
    if found["review"]:
        say(console, f'{found["review"]}: correct a label, set "use": true, then add --import', fold=True)


def _leaks(found: Mapping[str, Any]) -> str:
    """Returns what is known of questions in both splits."""
    if not found["evaluated"]:
        return "leaks: not looked for; --against DATA names what will be evaluated on"
    return f"leaks: none between these and {found['evaluated']} questions that are evaluated on"


def print_plan(console: Console, plan: Mapping[str, Any]) -> None:
    e = plan["estimate"]
    m, time = e["memory"], str(e["rate_from"])
    if e["seconds"] is not None:
        low, high = map(clock, e["seconds"])
        time = f"{low} to {high}, from {time}"
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
        f"time: {time}",
    )


def _four_bit(plan: Mapping[str, Any]) -> str:
    four = plan["four_bit"]
    return f"4-bit: {'on' if four['on'] else 'off'}, because {four['because']}"


def _workers(found: Mapping[str, Any]) -> str:
    return f"{found['workers']} worker{'s' * (found['workers'] > 1)}"


def print_finetune(console: Console, found: Mapping[str, Any], entry: str) -> None:
    """Prints what became of a training, and the entry that recipes need."""
    say(console, f"adapter {found['adapter']} on {found['base_name']}: {found['folder']}", style="bold")
    say(console, *_trained(found))
    show(console, ("step", "epoch", "loss", "gradient norm", "held-out loss"), list(_curve(found)))
    say(console, "models.yaml:", fold=True)
    console.print(Text(entry), soft_wrap=True, end="")


def _trained(found: Mapping[str, Any]) -> list[str]:
    """Returns what became of a training, in sentences."""
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


def _curve(found: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    """Yields rows of the loss by step: some steps, evenly spaced, the last, and each with a held-out loss."""
    steps, looks = found["steps"], {p["step"]: p["loss"] for p in found["looks"]}
    every = max(1, -(-len(steps) // STEPS_SHOWN))
    for i, s in enumerate(steps):
        if i % every == 0 or s["step"] in looks or i == len(steps) - 1:
            held = f"{looks[s['step']]:.4f}" if s["step"] in looks else ""
            yield s["step"], s["epoch"], f"{s['loss']:.4f}", f"{s['norm']:.3f}", held
