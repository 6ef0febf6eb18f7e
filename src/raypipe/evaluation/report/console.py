"""Console output of runs as tables and lines. Text from data is printed literally, never as markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from raypipe.core.terminal import shown
from raypipe.evaluation.report.formatting import (
    ann_line,
    between,
    cost_rows,
    ends,
    fit_lines,
    headline,
    label_text,
    lead_text,
    listed,
    measured,
    or_unscored,
    ranged,
    seconds,
    share,
    signed,
    told_apart,
)
from raypipe.metrics.kinds import MeasureSummary
from raypipe.metrics.losses import Losses, funnel, steps_of
from raypipe.metrics.verdict_rules import RuleScore, rate_intervals
from raypipe.runs.run_parts import JudgeLine, RunFolder, StepLine

if TYPE_CHECKING:  # pydantic and Arrow, which scores of a file do not need
    from raypipe.evaluation.fault_budget import RowFaults
    from raypipe.recipes.check import StepCheck
    from raypipe.runs.record import Run

FEW = 10
"""Fewest questions of a slice in the table of a rule; run.json and report.html have all slices. With fewer,
half of them right, the 95 % interval of the accuracy is wider than 19 % to 81 % (Clopper and Pearson)."""


def say(console: Console, *lines: str, style: str = "", fold: bool = False) -> None:
    """Prints lines. They are wrapped at the console's width only if `fold` is True."""
    for line in lines:
        console.print(Text(line, style), soft_wrap=not fold)


def show(
    console: Console,
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    bold: int | None = None,
    text: int = 0,
) -> None:
    """Prints a table. `bold` is the index of the highlighted row, `text` that of the wrapping column."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    for n, name in enumerate(heads):
        left = n in (0, text)
        table.add_column(name, overflow="fold", no_wrap=n != text, justify="left" if left else "right")
    for n, row in enumerate(rows):
        cells = (Text("" if cell is None else shown(str(cell))) for cell in row)  # before it is laid out
        table.add_row(*cells, style="bold" if n == bold else "")
    console.print(table)


def print_run(console: Console, record: Run, folder: str, reused: int) -> None:
    """Prints a run on one screen. `folder` is its path or address, `reused` the number of older answers."""
    lines = [("score", lead_text(record))]
    if (lost := record.losses) and lost.misses:
        steps = ((p, f" ({steps_of(p)})" if p.steps else "") for p, _ in funnel(lost))
        places = ", ".join(f"{p.loss} {p.questions}{named}" for p, named in steps)
        lines.append(("lost", f"{lost.misses} of {lost.right + lost.misses}: {places}"))
    lines += [("calls", _calls(record)), ("time", spent(record))]
    kept = sum(record.kept.values())
    new = record.questions - reused - kept
    lines.append(("answers", f"{new} new, {reused} reused" + (f", {kept} kept" if kept else "")))
    notes = list(_notes(record))
    lines += [("note", note) for note in notes[:NOTES]]
    if len(notes) > NOTES:
        lines.append(("note", f"and {len(notes) - NOTES} more: -v and the report have them"))
    lines += [("report", f"{folder}/{RunFolder.page}"), ("next", f"raypipe view {folder}")]
    say(console, f"{record.title}: {headline(record)}", style="bold", fold=True)
    for name, text in lines:
        console.print(Text(f"{name}: ", "dim") + Text(text), soft_wrap=name in ("report", "next"))


NOTES = 4  # notes of a run on its screen


def _calls(record: Run) -> str:
    """Formats the planned, computed and cached calls."""
    planned, likely = ([getattr(s, k) for s in record.steps] for k in ("planned", "expected"))
    computed, known = (sum(getattr(s, k) for s in record.steps) for k in ("computed", "cached"))
    most = "not known" if None in planned else f"{sum(planned):,}"
    expected = None if None in likely else [sum(n[i] for n in likely) for i in (0, 1)]
    judged = f" and {record.judge.computed} by the judge" if record.judge and record.judge.computed else ""
    plan = f"at most {most} planned" if expected is None else f"{ranged(expected)} planned"
    bound = "" if expected is None else f", at most {most}"
    return f"{plan}, {computed:,} computed{judged}, {known:,} cached{bound}"


def _notes(record: Run) -> Iterator[str]:
    """Yields notes that people need to read the score correctly, the gravest first."""
    if record.oracle == "labels":
        yield "this run made labels: a stage holds golds, so its score is no system's; it cannot be released"
    elif record.oracle:
        golds = f"golds of {record.oracle_golds} of {record.questions} questions"
        yield f"oracle run: {golds} replaced the {record.oracle}; it cannot be released"
    for run, n in record.kept.items():
        of = f"{n} of {record.questions} answers"
        yield f"{of} are kept from run {run[:8]}: they are in no comparison, and no gate counts them"
    for f in record.faults:
        yield f"{f.rows} rows failed in {f.step}: {f.reason}; {f.then}"
    if unscored := record.answers.get("not scored", 0):
        if record.rule and record.judge is None:
            yield f"{unscored} answers are not scored: --judge MODEL decides them, answers are reused"
        else:
            yield f"{unscored} answers are not scored"
    if record.without_truth:
        yield f"{record.without_truth} more questions have no gold in the dataset"
    yield from (m.adopted for m in record.models if m.adopted)
    yield from fit_lines(record)
    yield from (rows.sentence() for rows in record.replaced)
    yield from record.losses.notes if record.losses and record.losses.misses else ()
    if not (record.losses and record.losses.misses):  # else the notes of the losses say it already
        yield from (c.sentence() for c in record.cut_replies)
    if (orders := record.prompt_injection) and orders.exposed:
        yield f"prompt injection: {orders.followed} of {orders.exposed} were followed"
    if record.flips:
        yield record.flips.sentence()
    yield from map(ann_line, record.ann)
    if record.labels:
        yield label_text(record.labels)
    if record.memo_damaged:
        yield f"cache: {record.memo_damaged} damaged tables or files were repaired or dropped"
    if record.resumed:
        earlier = ", ".join(f"{s.step} {s.resumed}" for s in record.steps if s.resumed)
        yield f"resumed: earlier attempts finished {record.resumed} tasks; they computed: {earlier}"


def print_run_tables(console: Console, record: Run, folder: RunFolder) -> None:
    """Prints the tables of a run, its costs, faults and files, and the notes that `print_run` leaves out."""
    pages = f"{record.distinct_pages} distinct pages ({record.empty_pages} empty)"
    inputs = f"{record.questions} questions, {record.citations} citations, {pages}, {record.chunks} chunks"
    say(console, f"run {record.run}", inputs, fold=True)
    if record.answered_by:
        say(console, f"answered by: {listed(record.answered_by)}", fold=True)
    if record.parser_fallbacks:
        say(console, f"{record.parser_fallbacks} pages were parsed by the reference parser", fold=True)
    if record.normalized:
        say(console, f"normalized input: {listed(record.normalized)}", fold=True)
    print_measures(console, f"kind {record.kind}", record.lead, record.measures)
    if record.by_rule:
        _print_rule(console, record.by_rule, intervals=False)
    else:
        for part in told_apart(record.measure_slices)[0]:
            rest = f"{measured(part.mean)} on {part.scored} of {part.of}"
            say(console, f"{part.label}: {part.value}: {record.lead} {rest}")
    if cut := record.answer_cut:
        say(console, f"answers are cut to {cut.tokens} tokens of {cut.tokenizer} ({cut.weights})")
    if record.losses:
        print_losses(console, record.losses)
    counted = ("computed", "cached", "skipped", "faults")
    rows = []
    for s in (s for s in record.steps if s.rows):
        counts = (between(s.expected, str, "-"), *(getattr(s, k) for k in counted))
        most = "not known" if s.planned is None else s.planned
        rows.append((s.step, s.rows, *counts, f"{s.seconds:.1f}", most))
    if rows:
        show(console, ("step", "rows", "expected", *counted, "seconds", "at most"), rows)
    if record.cost:
        show(console, ("cost", "estimate", "actual"), cost_rows(record.cost))
    for s in record.steps:
        if s.prompt_tokens or s.generated_tokens:
            thoughts = f", of which about {s.thought_tokens} thoughts" if s.thought_tokens else ""
            say(console, f"{s.step}: {_tokens(s)}{thoughts}", fold=True)
    if record.judge:
        say(console, _judge(record.judge), fold=True)
    say(console, *(f"{f.step}, {f.reason}: {f.detail}" for f in record.faults if f.detail))
    say(console, *list(_notes(record))[NOTES:])
    say(console, *map(str, (folder.record, folder.predictions)))


def print_losses(console: Console, found: Losses) -> None:
    """Prints the places where wrong answers lost their golds. Prints nothing without wrong answers."""
    if not found.misses:
        return
    first = f"lost at ({found.misses} of {found.right + found.misses})"
    rows = [(p.loss, p.questions, left, steps_of(p), p.about) for p, left in funnel(found)]
    show(console, (first, "questions", "left", "step", "the gold is"), rows)
    say(console, *found.notes)


def print_lost(console: Console, questions: Sequence[Any]) -> None:
    """Prints each wrong answer in two lines: question and place, then expected and given answer."""
    for q in questions:
        at = f"{q.lost} ({q.step})" if q.step else q.lost
        say(console, f"{q.id}: {q.query} [{at}]")
        say(console, f"  expected {' | '.join(q.golds)}; said {q.answer}")


def print_row_faults(console: Console, found: RowFaults) -> None:
    """Prints the row counts of a run, and each row with a fault."""
    if found.counts:
        rows = [(t.kind, t.rows, t.done, t.failed, t.pending) for t in found.counts]
        show(console, ("rows", "total", "done", "failed", "pending"), rows)
    elif not found.rows:
        say(console, "every line and file was read")
    for x in found.rows:
        state = "pending" if x.transient else "failed permanently"
        state += f" after {x.attempts} attempt{'s' if x.attempts != 1 else ''}"
        state = "answered by another step" if x.recovered else state
        say(console, f"{x.id}: {x.step}, {x.reason}; {state}", f"  {x.detail}")


def spent(record: Run) -> str:
    """Formats the wall time of a run and its three longest parts, which fit a line."""
    parts = sorted(record.clock.items(), key=lambda part: -part[1])
    took = ", ".join(f"{name} {n:.1f}" for name, n in parts[:3] if n >= 0.05)
    return seconds(record.seconds) + (f": {took}" if took else "")


def _judge(judge: JudgeLine) -> str:
    said = f"{judge.model}, {judge.computed} computed, {judge.cached} cached"
    lost = f"{judge.unreadable} unreadable, {judge.no_reply} without a reply"
    return f"judge: {said}, {lost}; {_tokens(judge)}"


def _tokens(cost: StepLine | JudgeLine) -> str:
    prompt = cost.prompt_tokens
    found = f" ({100 * cost.cached_tokens / prompt:.0f} % cached)" if prompt else ""
    return f"{prompt} prompt tokens{found}, {cost.generated_tokens} generated"


def print_crag(
    console: Console,
    score: RuleScore,
    normalized: Mapping[str, int],
    trim: str,
    judge: JudgeLine | None,
    people: int,
) -> None:
    """Prints the score of a file of predictions (`api.scores.score_crag`)."""
    if normalized:
        say(console, f"normalized input: {listed(normalized)}", fold=True)
    _print_rule(console, score, intervals=True)
    if trim:
        say(console, f"answers are cut to {trim}")
    if judge:
        say(console, _judge(judge), fold=True)
    if people:
        console.print(f"people's labels changed {people} verdicts: people outrank the judge")


def print_means(
    console: Console,
    means: Mapping[str, float | None],
    about: str,
    unjudged: int = 0,
    per_query: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Prints means of measures, then the line `about`. `unjudged` counts queries that have no judgements."""
    show(console, ("measure", "mean"), [(name, four_digits(mean)) for name, mean in means.items()])
    say(console, about, fold=True)
    if unjudged:
        say(console, f"{unjudged} ranked queries have no judgements and count nowhere", fold=True)
    for query, values in (per_query or {}).items():  # as trec_eval prints them
        say(console, *(f"{name:<22}\t{query}\t{four_digits(value)}" for name, value in values.items()))


four_digits = or_unscored("{:.4f}".format)


def print_measures(console: Console, title: str, lead: str, measures: Sequence[MeasureSummary]) -> None:
    """Prints the measures of the kind of data, the leading one first."""
    if not measures:
        return
    ordered = sorted(measures, key=lambda m: m.measure != lead)
    rows = [(m.measure, measured(m.mean), ends(m.interval), m.scored, m.of) for m in ordered]
    bold = 0 if ordered[0].measure == lead else None
    show(console, (title, "mean", "95 % interval", "scored", "of"), rows, bold)


def _print_rule(console: Console, found: RuleScore, intervals: bool) -> None:
    """Prints the score by a rule. `intervals` also prints intervals; a run prints them in another table."""
    # Seven columns fit 80 characters, the width of a log, with 28 left for the name of a slice.
    parts = [("this run", found.score)]
    parts += [(f'always "{answer}"', s) for answer, s in found.controls.items()]
    large = (s for s in told_apart(found.slices)[0] if s.score.total >= FEW)
    parts += [(f"{s.label}: {s.value}", s.score) for s in large]
    rates = ("accuracy", "hallucination", "missing")
    rows = [
        (name, signed(s.score), *(share(getattr(s, r)) for r in rates), s.n_unscored, s.total)
        for name, s in parts
    ]
    show(console, (f"rule {found.rule}", "score", *rates, "unscored", "of"), rows, 0)
    s = found.score
    counted = f"{s.n_correct} correct ({s.n_correct_exact} exactly), {s.n_miss} missing"
    wordy = "" if found.words is None else f"; {found.words:.1f} words an answer"
    lines = [f"{counted}, {s.n_hallucination} hallucinated, {s.n_unscored} unscored{wordy}"]
    if intervals and found.interval:
        within = (f"{name} {ends(of, share)}" for name, of in rate_intervals(s).items())
        lines += [f"95 % interval of the score: {ends(found.interval, signed)}"]
        lines += [f"of the rates: {', '.join(within)}"]
    if s.n_unscored and found.bounds:
        low, high = map(signed, found.bounds)
        why = f"{s.n_unscored} unscored: a judge has to decide, or they failed; the score of all {s.total}"
        lines += [f"{why} lies", f"between {low} (all of them wrong) and {high} (all right)"]
    say(console, *lines, fold=True)


LOCKS = {
    "same": "its output matches {}",
    "none": "not locked; --lock writes its line to {}",
    "written": "locked in {}",
    "moved": "its output differs from {} under the same version: raise the version, then --lock",
}


def print_step_check(console: Console, found: StepCheck) -> None:
    """Prints the check of a step: which laws (required properties) it keeps, its declarations, and whether
    its output is the one that its lock records."""
    say(console, f"{found.step}, a {found.half} step, version {found.version}", style="bold", fold=True)
    laws = [(c.law, "yes" if c.holds else "no", c.detail) for c in found.laws]
    show(console, ("law", "holds", "found"), laws)
    for verb, fields in (("reads", found.reads), ("writes", found.writes)):
        say(console, f"{verb}: {', '.join(fields) or 'nothing'}")
    if not found.bounded:
        console.print("bound: none, so a plan cannot say how many calls it makes")
    say(console, f"lock: {LOCKS[found.lock].format(found.lock_file)}")
