"""Comparisons, and a judge against people, as tables on a console."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from raypipe.evaluation.compare import RunComparison
from raypipe.evaluation.judge_check import JudgeCheck
from raypipe.evaluation.repeats import Repeats
from raypipe.metrics.agreement import Agreement
from raypipe.metrics.intervals import Interval
from raypipe.metrics.paired import PairedDifference
from raypipe.report.console import grid

SLICES_SHOWN = 12  # largest first; all of them are in --json
CAUSES_SHOWN = 8


def print_comparison(console: Console, c: RunComparison) -> None:
    """The verdict first, then metrics, causes and slices."""
    console.print(Text(f"{c.after} against {c.before}", "bold"), soft_wrap=True)
    console.print(Text(verdict_line(c), "bold"), soft_wrap=True)
    metrics = grid("metric", "before", "after", "difference", "95 % interval", "p", "up", "down")
    for name, d in ((c.measure, c.score), *((r.metric, r.found) for r in c.rates)):
        metrics.add_row(name, *(f"{v:.3f}" for v in (d.before, d.after)), *_numbers(d, d.p))
    console.print(metrics)
    if sum(c.people):
        console.print(
            f"people's labels changed {c.people[0]} and {c.people[1]} verdicts: people outrank judges"
        )
    for name, n in zip((c.before, c.after), c.seen, strict=True):
        if n:
            said = (
                f"seen: a fit of {name} has seen {n} of the {c.score.n} questions, so its score is too good"
            )
            console.print(Text(f"{said}; --unseen leaves them out"), soft_wrap=True)
    for text in _left_out(c):
        console.print(Text(text), soft_wrap=True)
    if c.causes:
        causes = grid("answers part at", "what differs there", "moved", "up", "down", "difference")
        for k in c.causes[:CAUSES_SHOWN]:
            counts = (str(k.moved), str(k.up), str(k.down), f"{k.difference:+.4f}")
            causes.add_row(Text(k.step), Text(k.field), *counts)
        console.print(causes)
    if c.slices and all(s.verdict == "cannot tell" for s in c.slices):
        console.print(f"cannot tell in any of {len(c.slices)} slices")
    elif c.slices:
        slices = grid("slice", "questions", "verdict", "difference", "95 % interval", "p", "up", "down")
        for s in sorted(c.slices, key=lambda s: -s.found.n)[:SLICES_SHOWN]:
            slices.add_row(Text(f"{s.label}: {s.value}"), str(s.found.n), s.verdict, *_numbers(s.found, s.p))
        console.print(slices)
        console.print(f"p of the {len(c.slices)} slices is corrected for their number (Holm)")


REPEATED_SHOWN = 10  # questions that moved most; all of them are in --json


def print_repeats(console: Console, found: Repeats, folder: Path) -> None:
    """Score of each repeat, mean and spread, and the questions that moved most."""
    scores = grid("run", "score", "against the first")
    for name, score, verdict in zip(found.runs, found.scores, ("", *found.verdicts), strict=False):
        scores.add_row(Text(Path(name).name), "not scored" if score is None else f"{score:+.3f}", verdict)
    console.print(scores)
    mean = "not scored" if found.mean is None else f"{found.mean:+.4f}"
    console.print(
        f"mean {mean}, spread {found.spread:.4f} from run to run; {found.moved} of {len(found.questions)} "
        "questions have several verdicts",
        soft_wrap=True,
    )
    moved = sorted((q for q in found.questions if len(set(q.verdicts)) > 1), key=lambda q: -q.spread)
    for q in moved[:REPEATED_SHOWN]:
        mean = "not scored" if q.mean is None else f"mean {q.mean:+.2f}, spread {q.spread:.2f}"
        console.print(Text(f"  {q.question}: {mean}: {', '.join(q.verdicts)}"), soft_wrap=True)
    console.print(Text(str(folder / "repeats.json")), soft_wrap=True)


def verdict_line(c: RunComparison) -> str:
    """What these questions say, in a sentence."""
    d = c.score
    difference = f"{c.measure} {d.difference:+.3f} over {d.n} questions, p {c.p:.3g}"
    if c.verdict == "same":
        return f"same within {c.margin:g}: {difference}"
    if c.verdict != "cannot tell":
        return f"{c.verdict}: {difference}"
    if d.interval is None:
        return f"cannot tell: {d.groups} groups of questions are too few. {difference}"
    more = f"; {d.questions_needed} questions would show this one" if d.questions_needed else ""
    least = "not known" if d.minimum_detectable is None else f"{d.minimum_detectable:.3f}"
    return f"cannot tell: {difference}. The smallest difference that they show is {least}{more}"


def _numbers(d: PairedDifference, p: float) -> tuple[str, ...]:
    return f"{d.difference:+.3f}", _interval(d.interval), f"{p:.3g}", str(d.up), str(d.down)


def _interval(found: Interval | None) -> str:
    return "too few groups" if found is None else f"{found[0]:+.3f} to {found[1]:+.3f}"


def _left_out(c: RunComparison) -> list[str]:
    said = []
    for ids, what in (
        (c.only_before, f"only in {c.before}"), (c.only_after, f"only in {c.after}"),
        (c.unscored, "not scored in one of them"),
        (c.other_questions, "whose ids name another question in each"),
    ):  # fmt: skip
        if ids:
            said.append(
                f"left out: {len(ids)} questions {what}: {', '.join(ids[:3])}{', ...' * (len(ids) > 3)}"
            )
    return said


def print_check(console: Console, c: JudgeCheck) -> None:
    """Agreement first, then the corrected score, then what was left out."""
    judge = c.judge or "the judge"
    count = f"{c.labelled} of {c.judged} answers labelled"
    console.print(Text(f"{judge} in {c.run}, rule {c.rule}: {count}", "bold"), soft_wrap=True)
    if c.found is not None:
        table = grid("answers", "labelled", "agreement", "95 % interval", "kappa", "too kind", "too strict")
        table.add_row("all", *_agreement(c.found))
        for s in sorted(c.slices, key=lambda s: -s.found.n)[:SLICES_SHOWN]:
            table.add_row(Text(f"{s.label}: {s.value}"), *_agreement(s.found))
        console.print(table)
        console.print("too kind: the judge says right, people say wrong; too strict: the opposite")
    if c.corrected is None:
        console.print(Text(f"no corrected score: {c.why_not}"), soft_wrap=True)
    else:
        low, high = c.corrected.interval
        console.print(
            f"score by the judge {c.corrected.judged:+.3f}; with its errors taken out "
            f"{c.corrected.corrected:+.3f}, 95 % interval {low:+.3f} to {high:+.3f}, from "
            f"{c.corrected.labelled} labels drawn at random",
            soft_wrap=True,
        )
    for left, what in (
        (c.unclear, "labels: unclear"),
        (c.unlabelled, "lines: without a label yet"),
        (c.without_judge, "labels: no judge decided the answer"),
        (c.elsewhere, "labels: the run does not give the answer"),
    ):
        if left:
            console.print(f"left out: {left} {what}")


def _agreement(a: Agreement) -> tuple[str, ...]:
    low, high = a.interval
    kappa = "not known" if a.kappa is None else f"{a.kappa:.3f}"
    return (
        str(a.n), f"{a.agreement:.3f}", f"{low:.3f} to {high:.3f}", kappa, str(a.judge_too_kind),
        str(a.judge_too_strict),
    )  # fmt: skip
