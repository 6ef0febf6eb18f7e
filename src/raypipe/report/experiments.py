"""Labels, trainings, fits and sweeps: on a console and as HTML pages. Knows what the commands print as
JSON. Text from data is printed as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from raypipe.report import web_page
from raypipe.report.console import say, show
from raypipe.report.progress import clock
from raypipe.report.wording import calibration_line, cut, ends, hours, measured, ranged, share, signed, usd

SHOWN_CHARS = 80  # of a reply
STEPS_SHOWN = 60  # of the page's table: evenly spaced where there are more


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
    calls = f"calls: {found['planned']} planned, {found['computed']} computed, {found['cached']} cached"
    say(console, calls, fold=True)
    if found["digest"]:
        say(console, f"{found['out']}: labels.parquet, labels.json, labels.html")
    if found["review"]:
        say(console, f'{found["review"]}: correct a label, set "use": true, then add --import', fold=True)


def _leaks(found: Mapping[str, Any]) -> str:
    """What is known of questions in both splits."""
    if not found["evaluated"]:
        return "leaks: not looked for; --against DATA names what will be evaluated on"
    return f"leaks: none between these and {found['evaluated']} questions that are evaluated on"


def labels_page(found: Mapping[str, Any]) -> str:
    """Labels as one HTML file that loads nothing."""
    values = {"r": found, "leaks": _leaks(found)}
    return web_page.page("labels.html", ("base.css", "run.css"), (), False, values)[0]


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
    """What became of a training, and the entry that recipes need."""
    say(console, f"adapter {found['adapter']} on {found['base_name']}: {found['folder']}", style="bold")
    say(console, *_trained(found))
    say(console, "models.yaml:", fold=True)
    console.print(Text(entry), soft_wrap=True, end="")


def _trained(found: Mapping[str, Any]) -> list[str]:
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


def finetune_page(found: Mapping[str, Any]) -> str:
    """A training as one HTML file with its curves, which loads nothing from the network."""
    steps, looks = found["steps"], {p["step"]: p["loss"] for p in found["looks"]}
    every = max(1, -(-len(steps) // STEPS_SHOWN))
    some = [s for i, s in enumerate(steps) if i % every == 0 or s["step"] in looks]
    shown = [{**s, "held": looks.get(s["step"])} for s in some]
    values = {"r": found, "lines": _trained(found), "shown": shown}
    return web_page.page("finetune.html", ("base.css", "finetune.css"), (), False, values)[0]


DECIDE = ("answers are given by", "threshold", "score", "95 % interval", "answered", "right",
          "fitted is better by", "95 % interval", "p", "verdict")  # fmt: skip
FUSE = ("weights", "", "score", "95 % interval", "fitted is better by", "95 % interval", "p", "verdict")
FEATURES_SHOWN = 8  # by their effect; all of them are in --json


def _parts(found: Mapping[str, Any]) -> tuple[str, Sequence[str], Callable[[Mapping[str, Any]], list[str]]]:
    """Of a fit: the step, the heads of its table, and what makes a row of it."""
    return ("decide", DECIDE, _decided) if "calibration" in found else (found["step"], FUSE, _weighed)


def print_fit(console: Console, found: Mapping[str, Any]) -> None:
    """A fit of `decide` or `fuse`: the half that it has not seen first."""
    step, heads, row = _parts(found)
    say(console, f"{step} of {found['recipe']}, fitted on run {found['run']}", style="bold")
    left = found.get("not_scored", found.get("left_out"))
    rest = f"; left out: {left} that are not scored" if left else ""
    rest += f"; {before} that the recipe's own fits have seen" if (before := found["seen_before"]) else ""
    say(
        console,
        f"fitted on {found['split']}: {found['fitted_questions']} questions; below: mean "
        f"{found['measure']} of the {found['unseen_questions']} that the fit has not seen{rest}",
    )
    show(console, heads, [row(way) for way in found["unseen"]])
    if "calibration" in found:
        say(console, *_calibrations(found))
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
    """How well probabilities hold, in sentences: the fitted ones', then those that the replies state."""
    told = (("P(right)", found["calibration"]), ("stated confidence", found["stated"]))
    return [calibration_line(name, c) for name, c in told if c is not None]


def fit_page(found: Mapping[str, Any]) -> str:
    """A fit as one HTML file that loads nothing from the network."""
    decides, (step, head, row) = "calibration" in found, _parts(found)
    values = {
        "r": found if decides else {**found, "stated": None},
        "title": f"{step} of {found['recipe']}, fitted",
        "head": head,
        "unseen": [row(way) for way in found["unseen"]],
        "seen": [row(way) for way in found["seen"]],
        "calibration": _calibrations(found) if decides else [],
        "features": found["weights"] if decides else [],
    }
    return web_page.page("fit.html", ("fit.css",), (), False, values)[0]


NAMED = 4  # steps that a line names


def print_points(console: Console, plans: Sequence[Mapping[str, Any]]) -> None:
    """What each point is expected to take; what points share counts at the first of them."""
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
