"""Scores and reports as tables on a console. Text from data is printed as it is, never read as markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from raypipe.evaluation.report.wording import (  # fmt: skip
    ann_lines,
    between,
    cost_rows,
    ends,
    fault_rows,
    fit_lines,
    label_text,
    measured,
    origin_text,
    seconds,
    share,
    signed,
    told_apart,
)
from raypipe.metrics.losses import funnel, steps_of
from raypipe.metrics.ranking import MAP_CUT_20_MIN, MEASURES
from raypipe.runs.report import CutReplies, ReplacedRows, RunFolder

FEW = 10
"""Questions of a slice from which on it is printed: of fewer, half of them right, the 95 % interval of the
accuracy is wider than from 19 % to 81 % (Clopper and Pearson). report.json and report.html have all."""


def say(console: Console, *lines: str, style: str = "", fold: bool = False) -> None:
    """Prints lines whole; `fold` breaks them at the console's width."""
    for line in lines:
        console.print(Text(line, style), soft_wrap=not fold)


def grid(*columns: str) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(columns[0], overflow="fold")
    for name in columns[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def show(
    console: Console, heads: Sequence[str], rows: Iterable[Sequence[object]], bold: int | None = None
) -> None:
    """Prints a table; `bold`: number of the row that stands out."""
    table = grid(*heads)
    for n, row in enumerate(rows):
        cells = (Text("" if cell is None else str(cell)) for cell in row)
        table.add_row(*cells, style="bold" if n == bold else "")
    console.print(table)


def print_report(console: Console, report: Mapping[str, Any], folder: RunFolder) -> None:
    """A run (`report.to_json`): scores, steps, faults, and where its files are."""
    head = f"{report['recipe']}, run {report['run']}, {seconds(report['seconds'])}"
    say(console, head, style="bold", fold=True)
    if by := origin_text(report):
        say(console, f"answered by: {by}", style="bold", fold=True)
    if not (report["losses"] and report["losses"]["misses"]):  # whose notes say it
        say(console, *(CutReplies(**c).sentence() for c in report["cut_replies"]))
    say(console, *_inputs(report), fold=True)
    say(console, *(ReplacedRows(**rows).sentence() for rows in report["replaced"]))
    print_measures(console, report)
    if report["rule"]:
        _scores(console, report)
    say(console, *ann_lines(report), *fit_lines(report), *filter(None, [label_text(report)]))
    if report["n_unscored"] and report["judge"] is None:
        text = "no judge ran: with --judge MODEL answers are reused, only the unscored are judged"
        say(console, text, fold=True)
    if cut := report["answer_cut"]:
        say(console, f"answers are cut to {cut['tokens']} tokens of {cut['tokenizer']} ({cut['weights']})")
    if report["without_truth"]:
        say(console, f"{report['without_truth']} more questions have no gold in the dataset", fold=True)
    if report["losses"]:
        print_losses(console, report["losses"])
    _print_steps(console, report)
    if report["cost"]:
        show(console, ("cost", "estimate", "actual"), cost_rows(report["cost"]))
    say(console, *_costs(report), fold=True)
    if rows := fault_rows(report):
        show(console, ("rows with faults", "reason", "then", "rows"), [row[:4] for row in rows])
        say(console, *(f"{step}, {reason}: {detail}" for step, reason, _, _, detail in rows if detail))
    say(console, *map(str, (folder.report, folder.predictions, folder.page)))


def _inputs(report: Mapping[str, Any]) -> Iterator[str]:
    if report["oracle"] == "labels":
        yield "this run made labels: a stage holds golds, so its score is no system's; no release"
    elif report["oracle"]:
        golds = f"golds of {report['oracle_golds']} of {report['questions']} questions"
        yield f"oracle run: {golds} stood in the place of the {report['oracle']}; no release"
    pages = f"{report['distinct_pages']} distinct pages ({report['empty_pages']} empty)"
    inputs = f"{report['questions']} questions, {report['citations']} citations, {pages}"
    yield f"{inputs}, {report['chunks']} chunks"
    if report["parser_fallbacks"]:
        yield f"{report['parser_fallbacks']} pages were parsed by the reference parser"
    yield from _normalized(report)


def _print_steps(console: Console, report: Mapping[str, Any]) -> None:
    steps, counted = report["steps"], ("computed", "cached", "skipped", "faults")
    rows = []
    for s in (s for s in steps if s["rows"]):
        most = "not known" if s["planned"] is None else s["planned"]
        counts = (between(s["expected"], str, "-"), *(s[k] for k in counted))
        rows.append((s["step"], s["rows"], *counts, f"{s['seconds']:.1f}", most))
    if rows:
        show(console, ("step", "rows", "expected", *counted, "seconds", "at most"), rows)
    bounds, likely = ([s[k] for s in steps] for k in ("planned", "expected"))
    planned = "not known how many" if None in bounds else str(sum(bounds))
    expected = None if None in likely else [sum(n[i] for n in likely) for i in (0, 1)]
    computed, known = (sum(s[k] for s in steps) for k in ("computed", "cached"))
    said = f"{between(expected, str)} planned, {computed} computed, {known} cached"
    say(console, f"calls: {said}, at most {planned}", fold=True)
    if damaged := report["memo_damaged"]:
        say(console, f"cache: {damaged} damaged tables or files were mended or dropped", fold=True)
    say(console, spent(report))
    if report["resumed"]:
        earlier = ", ".join(f"{s['step']} {s['resumed']}" for s in steps if s["resumed"])
        text = f"resumed: earlier attempts finished {report['resumed']} tasks; they computed: {earlier}"
        say(console, text, fold=True)


def print_losses(console: Console, found: Mapping[str, Any]) -> None:
    """Prints where the misses of a run were lost (`metrics.losses.Losses`)."""
    if not found["misses"]:
        return
    first = f"lost at ({found['misses']} of {found['right'] + found['misses']})"
    rows = [(p["loss"], p["questions"], left, steps_of(p), p["about"]) for p, left in funnel(found)]
    show(console, (first, "questions", "left", "step", "the gold is"), rows)
    say(console, *found["notes"])


def print_lost(console: Console, questions: Sequence[Mapping[str, Any]]) -> None:
    """Questions whose gold was lost, a line each and a line for what was expected and said."""
    for q in questions:
        at = f"{q['lost']} ({q['step']})" if q["step"] else q["lost"]
        say(console, f"{q['id']}: {q['query']} [{at}]")
        say(console, f"  expected {' | '.join(q['golds'])}; said {q['answer']}")


def print_row_faults(console: Console, found: Mapping[str, Any]) -> None:
    """Counts of the rows of a run, and each row with a fault (`evaluation.fault_budget.RowFaults`)."""
    if found["rows"]:
        rows = [[t[k] for k in ("kind", "rows", "done", "failed", "pending")] for t in found["rows"]]
        show(console, ("rows", "total", "done", "failed", "pending"), rows)
    elif not found["faults"]:
        say(console, "every line and file was read")
    for x in found["faults"]:
        tries = f"after {x['attempts']} attempt{'s' if x['attempts'] != 1 else ''}"
        state = "pending" if x["transient"] else "failed permanently"
        if x["recovered"]:
            state, tries = "answered by another step", ""
        say(console, f"{x['id']}: {x['step']}, {x['reason']}; {state} {tries}".rstrip(), f"  {x['detail']}")


def spent(report: Mapping[str, Any]) -> str:
    """Returns where the wall time went, the longest part first."""
    parts = sorted(report["clock"].items(), key=lambda part: -part[1])
    listed = ", ".join(f"{name} {took:.1f}" for name, took in parts if took >= 0.05)
    return f"wall time: {report['seconds']:.1f} s" + (f", of which {listed}" if listed else "")


def _costs(report: Mapping[str, Any]) -> Iterator[str]:
    """Calls and tokens of each language model."""
    for s in report["steps"]:
        if s["prompt_tokens"] or s["generated_tokens"]:
            yield f"{s['step']}: {_tokens(s)}"
    if judge := report["judge"]:
        said = f"{judge['model']}, {judge['computed']} computed, {judge['cached']} cached"
        lost = f"{judge['unreadable']} unreadable, {judge['no_reply']} without a reply"
        yield f"judge: {said}, {lost}; {_tokens(judge)}"
    if injected := report["prompt_injection"]:
        said = f"{injected['followed']} of {injected['exposed']} were followed"
        yield f"Prompt injection: {f'{said}.' if injected['exposed'] else 'none found.'}"


def _tokens(cost: Mapping[str, Any]) -> str:
    prompt, cached = cost["prompt_tokens"], cost["cached_tokens"]
    found = f" ({100 * cached / prompt:.0f} % cached)" if prompt else ""
    thoughts = f", of which about {n} thoughts" if (n := cost.get("thought_tokens")) else ""
    return f"{prompt} prompt tokens{found}, {cost['generated_tokens']} generated{thoughts}"


def print_crag(console: Console, found: Mapping[str, Any]) -> None:
    """Scores of predictions (`api.scores.score_crag`)."""
    say(console, *_normalized(found), fold=True)
    _scores(console, found)
    if found.get("trim"):
        say(console, f"answers are cut to {found['trim']}")
    say(console, *_costs({"steps": (), "prompt_injection": None, **found}), fold=True)
    if found.get("people"):
        console.print(f"people's labels changed {found['people']} verdicts: people outrank the judge")


def print_ranking(console: Console, found: Mapping[str, Any]) -> None:
    """Measures of a ranking (`metrics.files.score_ranking_files`)."""
    names = (*MEASURES, MAP_CUT_20_MIN)
    counted = f"mean of {found['queries']} judged queries"
    said = f"{counted}; {len(found['unranked'])} had no ranking and count 0"
    print_means(console, {name: found[name] for name in names}, said)
    if unjudged := len(found["unjudged"]):
        say(console, f"{unjudged} ranked queries have no judgements and count nowhere", fold=True)
    for query, values in found.get("per_query", {}).items():  # as trec_eval prints them
        say(console, *(f"{name:<22}\t{query}\t{_four(values[name])}" for name in names))


def print_means(console: Console, means: Mapping[str, float | None], title: str) -> None:
    """Means by measure, and what they are of."""
    show(console, ("measure", "mean"), [(name, _four(mean)) for name, mean in means.items()])
    say(console, title, fold=True)


def _four(value: float | None) -> str:
    return "not scored" if value is None else f"{value:.4f}"


def _normalized(found: Mapping[str, Any]) -> Iterator[str]:
    if found["normalized"]:
        yield f"normalized input: {', '.join(f'{what} {n}' for what, n in found['normalized'].items())}"


def print_measures(console: Console, report: Mapping[str, Any]) -> None:
    """Prints what the kind of the data measures, the measure first that leads the report."""
    if not report["measures"]:
        return
    listed = sorted(report["measures"], key=lambda m: m["measure"] != report["lead"])
    rows = [(m["measure"], measured(m["mean"]), ends(m["interval"]), m["scored"], m["of"]) for m in listed]
    bold = 0 if listed[0]["measure"] == report["lead"] else None
    show(console, (f"kind {report['kind']}", "mean", "95 % interval", "scored", "of"), rows, bold)
    for s in () if report["rule"] else told_apart(report["measure_slices"])[0]:
        rest = f"{measured(s['mean'])} on {s['scored']} of {s['of']}"
        say(console, f"{s['label']}: {s['value']}: {report['lead']} {rest}")


def _scores(console: Console, found: Mapping[str, Any]) -> None:
    # Seven columns fit 80 characters, the width of a log, with 28 left for the name of a slice.
    rates = ("accuracy", "hallucination", "missing")
    parts = [("this run", found)]
    parts += [(f'always "{answer}"', s) for answer, s in found["controls"].items()]
    shown = [s for s in told_apart(found["slices"])[0] if s["total"] >= FEW]
    parts += [(f"{s['label']}: {s['value']}", s) for s in shown]
    rows = []
    for name, s in parts:
        shares = (share(s[k]) for k in rates)
        rows.append((name, signed(s["score"]), *shares, s["n_unscored"], s["total"]))
    show(console, (f"rule {found['rule']}", "score", *rates, "unscored", "of"), rows, 0)
    correct = f"{found['n_correct']} correct ({found['n_correct_exact']} exactly)"
    counted = f"{correct}, {found['n_miss']} missing, {found['n_hallucination']} hallucinated"
    wordy = "" if found["answer_words"] is None else f"; {found['answer_words']:.1f} words an answer"
    lines = [f"{counted}, {found['n_unscored']} unscored{wordy}"]
    if found["interval"] and "measures" not in found:  # those of a run stand in the table of its measures
        within = (f"{name} {ends(of, share)}" for name, of in found["rate_intervals"].items())
        lines += [f"95 % interval of the score: {ends(found['interval'], signed)}"]
        lines += [f"of the rates: {', '.join(within)}"]
    if found["n_unscored"] and found["bounds"]:
        low, high = map(signed, found["bounds"])
        all_of = f"the score of all {found['total']}"
        lines += [f"{found['n_unscored']} unscored: a judge has to decide, or they failed; {all_of} lies"]
        lines += [f"between {low} (all of them wrong) and {high} (all right)"]
    say(console, *lines, fold=True)


LOCKS = {
    "same": "puts out what is locked in {}",
    "none": "not locked; --lock writes its line in {}",
    "written": "locked in {}",
    "moved": "puts out something else than {} has for its version: raise the version, then --lock",
}


def print_step_check(console: Console, found: Mapping[str, Any]) -> None:
    """Which laws a step keeps, what it declares, and how it compares with its lock."""
    head = f"{found['step']}, a {found['half']} step, version {found['version']}"
    say(console, head, style="bold", fold=True)
    rows = [(c["law"], "yes" if c["holds"] else "no", c["detail"]) for c in found["laws"]]
    show(console, ("law", "holds", "found"), rows)
    say(console, *(f"{what}: {', '.join(found[what]) or 'nothing'}" for what in ("reads", "writes")))
    if not found["bounded"]:
        console.print("bound: none, so a plan cannot say how many calls it makes")
    say(console, f"lock: {LOCKS[found['lock']].format(found['lock_file'])}")
