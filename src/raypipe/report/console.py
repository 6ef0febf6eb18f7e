"""Scores and reports as tables on a console. Text from data is printed as it is, never read as markup."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from raypipe.metrics.losses import funnel, steps_of
from raypipe.metrics.ranking import MAP_CUT_20_MIN, MEASURES
from raypipe.report.money import cost_rows
from raypipe.report.report import ReplacedRows, RunFolder
from raypipe.report.wording import (
    ann_lines,
    fit_lines,
    label_text,
    measured,
    seconds,
    share,
    signed,
    told_apart,
)


def print_report(console: Console, report: Mapping[str, Any], folder: RunFolder) -> None:
    """A run (`report.to_json`): scores, steps, faults, and where its files are."""
    console.print(Text(f"{report['recipe']}, run {report['run']}, {seconds(report['seconds'])}", "bold"))
    pages = f"{report['distinct_pages']} distinct pages ({report['empty_pages']} empty)"
    if report["oracle"] == "labels":
        console.print(
            Text("this run made labels: a stage holds golds, so its score is no system's; no release")
        )
    elif report["oracle"]:
        golds = f"golds of {report['oracle_golds']} of {report['questions']} questions"
        console.print(Text(f"oracle run: {golds} stood in the place of the {report['oracle']}; no release"))
    inputs = f"{report['questions']} questions, {report['citations']} citations, {pages}"
    console.print(Text(f"{inputs}, {report['chunks']} chunks"))
    if report["parser_fallbacks"]:
        console.print(Text(f"{report['parser_fallbacks']} pages were parsed by the reference parser"))
    _normalized(console, report["normalized"])
    for rows in report["replaced"]:
        console.print(Text(ReplacedRows(**rows).sentence()), soft_wrap=True)
    print_measures(console, report)
    if report["rule"]:
        _scores(console, report)
    for text in ann_lines(report):
        console.print(Text(text), soft_wrap=True)
    for text in fit_lines(report):
        console.print(Text(text), soft_wrap=True)
    if said := label_text(report):
        console.print(Text(said), soft_wrap=True)
    if report["n_unscored"] and report["judge"] is None:
        console.print(
            Text("no judge ran: with --judge MODEL answers are reused, only the unscored are judged")
        )
    if cut := report["answer_cut"]:
        console.print(
            Text(f"answers are cut to {cut['tokens']} tokens of {cut['tokenizer']} ({cut['weights']})"),
            soft_wrap=True,
        )
    if report["without_truth"]:
        console.print(Text(f"{report['without_truth']} more questions have no gold in the dataset"))
    if report["losses"]:
        print_losses(console, report["losses"])
    steps = grid("step", "rows", "planned", "computed", "cached", "skipped", "faults", "seconds")
    for s in report["steps"]:
        planned = "not known" if s["planned"] is None else str(s["planned"])
        counts = (str(s[k]) for k in ("computed", "cached", "skipped", "faults"))
        steps.add_row(Text(s["step"]), str(s["rows"]), planned, *counts, f"{s['seconds']:.1f}")
    console.print(steps)
    bounds = [s["planned"] for s in report["steps"]]
    planned = "not known how many" if None in bounds else str(sum(bounds))
    computed, known = (sum(s[k] for s in report["steps"]) for k in ("computed", "cached"))
    console.print(Text(f"calls: {planned} planned, {computed} computed, {known} cached"))
    if report["memo_damaged"]:
        console.print(Text(f"cache: {report['memo_damaged']} damaged tables or files were mended or dropped"))
    console.print(Text(spent(report)), soft_wrap=True)
    if report["resumed"]:
        console.print(Text(resumed(report)))
    if report["cost"]:
        costs = grid("cost", "estimate", "actual")
        for row in cost_rows(report["cost"]):
            costs.add_row(*map(Text, row))
        console.print(costs)
    for name, cost in _costs(report):
        console.print(Text(f"{name}: {cost}"))
    if report["faults_by_reason"]:
        faults = grid("failed rows", "reason", "tried again", "rows")
        for f in report["faults_by_reason"]:
            again = "yes" if f["transient"] else "no"
            faults.add_row(Text(f["step"]), Text(f["reason"]), again, str(f["rows"]))
        console.print(faults)
    for path in (folder.report, folder.predictions, folder.page):
        console.print(Text(str(path)), soft_wrap=True)


def print_losses(console: Console, found: Mapping[str, Any]) -> None:
    """Where the misses of a run were lost (`metrics.losses.Losses`)."""
    scored = found["right"] + found["misses"]
    if not found["misses"]:
        return
    table = grid(f"lost at ({found['misses']} of {scored})", "questions", "left", "step", "the gold is")
    for place, left in funnel(found):
        steps = Text(steps_of(place))
        table.add_row(place["loss"], str(place["questions"]), str(left), steps, place["about"])
    console.print(table)
    for note in found["notes"]:
        console.print(Text(note), soft_wrap=True)


def print_lost(console: Console, questions: Sequence[Mapping[str, Any]]) -> None:
    """Questions whose gold was lost, a line each and a line for what was expected and said."""
    for q in questions:
        at = f"{q['lost']} ({q['step']})" if q["step"] else q["lost"]
        console.print(Text(f"{q['id']}: {q['query']} [{at}]"), soft_wrap=True)
        console.print(Text(f"  expected {' | '.join(q['golds'])}; said {q['answer']}"), soft_wrap=True)


def print_undone_rows(console: Console, found: Mapping[str, Any]) -> None:
    """Counts of the rows of a run, and each failed row (`evaluation.fault_budget.UndoneRows`)."""
    table = grid("rows", "total", "done", "failed", "pending")
    for t in found["rows"]:
        table.add_row(t["kind"], *(str(t[k]) for k in ("rows", "done", "failed", "pending")))
    if found["rows"]:
        console.print(table)
    for x in found["faults"]:
        tries = f"after {x['attempts']} attempt{'s' if x['attempts'] != 1 else ''}"
        state = "pending" if x["transient"] else "failed permanently"
        console.print(Text(f"{x['id']}: {x['step']}, {x['reason']}; {state} {tries}"), soft_wrap=True)
        console.print(Text(f"  {x['detail']}"), soft_wrap=True)


def spent(report: Mapping[str, Any]) -> str:
    """Where the wall time went, the longest part first."""
    parts = sorted(report["clock"].items(), key=lambda part: -part[1])
    listed = ", ".join(f"{name} {took:.1f}" for name, took in parts if took >= 0.05)
    return f"wall time: {report['seconds']:.1f} s" + (f", of which {listed}" if listed else "")


def resumed(report: Mapping[str, Any]) -> str:
    """What earlier attempts of the run computed."""
    computed = ", ".join(f"{s['step']} {s['resumed']}" for s in report["steps"] if s["resumed"])
    return f"resumed: earlier attempts finished {report['resumed']} tasks; they computed: {computed}"


def _costs(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Calls and tokens of each language model."""
    for s in report["steps"]:
        if s["prompt_tokens"] or s["generated_tokens"]:
            yield s["step"], _tokens(s)
    if judge := report["judge"]:
        said = f"{judge['model']}, {judge['computed']} computed, {judge['cached']} cached"
        lost = f"{judge['unreadable']} unreadable, {judge['no_reply']} without a reply"
        yield "judge", f"{said}, {lost}; {_tokens(judge)}"
    if injected := report["prompt_injection"]:
        said = f"{injected['followed']} of {injected['exposed']} were followed"
        yield "Prompt injection", f"{said}." if injected["exposed"] else "none found."


def _tokens(cost: Mapping[str, Any]) -> str:
    prompt, cached = cost["prompt_tokens"], cost["cached_tokens"]
    found = f" ({100 * cached / prompt:.0f} % cached)" if prompt else ""
    thoughts = f", of which about {n} thoughts" if (n := cost.get("thought_tokens")) else ""
    return f"{prompt} prompt tokens{found}, {cost['generated_tokens']} generated{thoughts}"


def print_crag(console: Console, found: Mapping[str, Any]) -> None:
    """Scores of predictions (`api.scores.score_crag`)."""
    _normalized(console, found["normalized"])
    _scores(console, found)
    if found.get("trim"):
        console.print(Text(f"answers are cut to {found['trim']}"), soft_wrap=True)
    for name, cost in _costs({"steps": (), "prompt_injection": None, **found}):
        console.print(Text(f"{name}: {cost}"))
    if found.get("people"):
        console.print(f"people's labels changed {found['people']} verdicts: people outrank the judge")


def print_ranking(console: Console, found: Mapping[str, Any]) -> None:
    """Measures of a ranking (`metrics.files.score_ranking_files`)."""
    names = (*MEASURES, MAP_CUT_20_MIN)
    table = grid("measure", "mean")
    for name in names:
        table.add_row(name, _four(found[name]))
    console.print(table)
    unranked, unjudged = len(found["unranked"]), len(found["unjudged"])
    console.print(Text(f"mean of {found['queries']} judged queries; {unranked} had no ranking and count 0"))
    if unjudged:
        console.print(Text(f"{unjudged} ranked queries have no judgements and count nowhere"))
    if "per_query" in found:
        for query, values in found["per_query"].items():
            for name in names:  # as trec_eval prints them
                console.print(Text(f"{name:<22}\t{query}\t{_four(values[name])}"), soft_wrap=True)


def print_means(console: Console, means: Mapping[str, float], title: str) -> None:
    """Means by measure, and what they are of."""
    table = grid("measure", "mean")
    for name, mean in means.items():
        table.add_row(name, _four(mean))
    console.print(table)
    console.print(Text(title))


def _four(value: float | None) -> str:
    return "not scored" if value is None else f"{value:.4f}"


def grid(*columns: str) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(columns[0], overflow="fold")
    for name in columns[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _normalized(console: Console, normalized: Mapping[str, int]) -> None:
    if normalized:
        listed = ", ".join(f"{what} {n}" for what, n in normalized.items())
        console.print(Text(f"normalized input: {listed}"))


def print_measures(console: Console, report: Mapping[str, Any]) -> None:
    """What the kind of the data measures, the measure first that leads the report."""
    if not report["measures"]:
        return
    table = grid(f"kind {report['kind']}", "mean", "95 % interval", "scored", "of")
    for m in sorted(report["measures"], key=lambda m: m["measure"] != report["lead"]):
        low, high = m["interval"] or (None, None)
        within = "" if low is None else f"{measured(low)} to {measured(high)}"
        first = "bold" if m["measure"] == report["lead"] else ""
        counts = (str(m["scored"]), str(m["of"]))
        table.add_row(m["measure"], measured(m["mean"]), within, *counts, style=first)
    console.print(table)
    if report["rule"]:
        return
    for s in told_apart(report["measure_slices"])[0]:
        rest = f"{measured(s['mean'])} on {s['scored']} of {s['of']}"
        console.print(Text(f"{s['label']}: {s['value']}: {report['lead']} {rest}"), soft_wrap=True)


def _scores(console: Console, found: Mapping[str, Any]) -> None:
    # Seven columns fit 80 characters, the width of a log, with 28 left for the name of a slice.
    table = grid(f"rule {found['rule']}", "score", "accuracy", "hallucination", "missing", "unscored", "of")
    rows = [("this run", found)]
    rows += [(f'always "{answer}"', s) for answer, s in found["controls"].items()]
    rows += [(f"{s['label']}: {s['value']}", s) for s in told_apart(found["slices"])[0]]
    for i, (name, s) in enumerate(rows):
        shares = (share(s[k]) for k in ("accuracy", "hallucination", "missing"))
        counts = (str(s["n_unscored"]), str(s["total"]))
        table.add_row(Text(name), signed(s["score"]), *shares, *counts, style="" if i else "bold")
    console.print(table)
    correct = f"{found['n_correct']} correct ({found['n_correct_exact']} exactly)"
    counted = f"{correct}, {found['n_miss']} missing, {found['n_hallucination']} hallucinated"
    console.print(Text(f"{counted}, {found['n_unscored']} unscored"))
    if found["interval"]:
        low, high = found["interval"]
        console.print(Text(f"95 % interval of the score: {signed(low)} to {signed(high)}"))
        rates = found["rate_intervals"].items()
        ends = (f"{name} {share(low)} to {share(high)}" for name, (low, high) in rates)
        console.print(Text(f"of the rates: {', '.join(ends)}"))
    if found["n_unscored"] and found["bounds"]:
        low, high = found["bounds"]
        open_, whole = found["n_unscored"], f"the score of all {found['total']}"
        console.print(Text(f"{open_} unscored: a judge has to decide, or they failed; {whole} lies"))
        console.print(Text(f"between {signed(low)} (all of them wrong) and {signed(high)} (all right)"))


LOCKS = {
    "same": "puts out what is locked in {}",
    "none": "not locked; --lock writes its line in {}",
    "written": "locked in {}",
    "moved": "puts out something else than {} has for its version: raise the version, then --lock",
}


def print_step_check(console: Console, found: Mapping[str, Any]) -> None:
    """Which laws a step keeps, what it declares, and how it compares with its lock."""
    console.print(Text(f"{found['step']}, a {found['half']} step, version {found['version']}", "bold"))
    shown = grid("law", "holds", "found")
    for c in found["laws"]:
        shown.add_row(c["law"], "yes" if c["holds"] else "no", Text(c["detail"]))
    console.print(shown)
    for what in ("reads", "writes"):
        console.print(Text(f"{what}: {', '.join(found[what]) or 'nothing'}"), soft_wrap=True)
    if not found["bounded"]:
        console.print("bound: none, so a plan cannot say how many calls it makes")
    console.print(Text(f"lock: {LOCKS[found['lock']].format(found['lock_file'])}"), soft_wrap=True)
