"""Console tables of labels and trainings. Text from data is printed literally."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from raypipe.core.progress import clock
from raypipe.evaluation.report.console import say, show
from raypipe.evaluation.report.formatting import cut, share

SHOWN_CHARS = 80  # of a reply
STEPS_SHOWN = 12  # of a training, evenly spaced; training.json has all steps


def print_labels(console: Console, record: Mapping[str, Any]) -> None:
    """Prints new labels: mix, questions per rule, examples, calls, files and the next command."""
    of = f"{record['questions']} questions for {record['step']} of {record['recipe']}"
    say(console, f"{record['labels']} labels of {of}", style="bold")
    rules = record["rules"]
    rows = []
    for m in record["mix"]:
        counts = (m["rules"].get(r, 0) for r in rules)
        rows.append((m["domain"] or "(none)", m["labels"], *counts, share(m["idk"])))
    show(console, ("domain", "labels", *rules, "i don't know"), rows)
    for path in record["paths"]:
        rule = f"rule {path['rule']}" if path["rule"] else "no label"
        to = f" -> {path['label']}" if path["label"] else ""
        say(console, f"{path['questions']:>6}  {rule}: {path['about']}{to}")
    for e in record["examples"]:
        said = f"; {record['step']} said {cut(e['reply'], SHOWN_CHARS, '...')!r}" if e["reply"] else ""
        say(console, f"  {e['rule']}: {e['query']} truth {e['gold']!r}{said}; label {e['label']!r}")
    leaks = "not looked for; --against DATA names what will be evaluated on"
    if record["evaluated"]:
        leaks = f"none between these and {record['evaluated']} questions that are evaluated on"
    say(console, f"leaks: {leaks}")
    calls = f"calls: {record['computed']} computed, {record['cached']} cached, at most {record['planned']}"
    say(console, calls, fold=True)
    if record["digest"]:
        say(console, f"{record['out']}: labels.parquet, labels.json")
    if record["review"]:
        say(console, f'{record["review"]}: correct a label, set "use": true, then add --import', fold=True)


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


def _workers(record: Mapping[str, Any]) -> str:
    return f"{record['workers']} worker{'s' * (record['workers'] > 1)}"


def print_finetune(console: Console, record: Mapping[str, Any], entry: str) -> None:
    """Prints a training's result, its loss by step, and the models-file entry for recipes."""
    say(console, f"adapter {record['adapter']} on {record['base_name']}: {record['folder']}", style="bold")
    say(console, *_trained(record))
    show(console, ("step", "epoch", "loss", "gradient norm", "held-out loss"), list(_curve(record)))
    say(console, "models.yaml:", fold=True)
    console.print(Text(entry), soft_wrap=True, end="")


def _trained(record: Mapping[str, Any]) -> list[str]:
    """Returns lines about a training's losses, time, 4-bit loading and effect."""
    first, last, held = record["steps"][0], record["steps"][-1], record["held_out_loss"]
    early = ", ended early" if record["ended_early"] else ""
    kept = "the last one's adapter was kept"
    if held is not None:
        kept = f"step {record['step_taken']} was kept, with held-out loss {held:.3f}"
    e, asked = record["effect"], record["engine"]
    said = "no engine was asked: vLLM is not installed here, or the cluster file has no engines"
    if asked is not None:
        both = f"{asked['base']!r} by the base, {asked['adapter']!r} with the adapter"
        said = f"the engine says to its prompt: {both}"
    return [
        f"loss {first['loss']:.3f} to {last['loss']:.3f} in {record['steps_done']} steps{early}, "
        f"{clock(record['seconds'])} on {_workers(record)}; {kept}",
        _four_bit(record["plan"]),
        f"log-probability of the first label: {e['base']:.2f} by the base, {e['adapter']:.2f} with the "
        "adapter (a token)",
        said,
    ]


def _curve(record: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    """Yields table rows of the loss: evenly spaced steps, the last step, and steps with a held-out loss."""
    steps, looks = record["steps"], {p["step"]: p["loss"] for p in record["looks"]}
    every = max(1, -(-len(steps) // STEPS_SHOWN))
    for i, s in enumerate(steps):
        if i % every == 0 or s["step"] in looks or i == len(steps) - 1:
            held = f"{looks[s['step']]:.4f}" if s["step"] in looks else ""
            yield s["step"], s["epoch"], f"{s['loss']:.4f}", f"{s['norm']:.3f}", held
