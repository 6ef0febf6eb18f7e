"""A judge against people, as tables on a console."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from raypipe.evaluation.judge_check import JudgeCheck
from raypipe.metrics.agreement import Agreement
from raypipe.report.console import grid

SLICES_SHOWN = 12  # largest first; all of them are in --json


def print_check(console: Console, c: JudgeCheck) -> None:
    """Agreement first, then the corrected score, then what was left out."""
    judge = c.judge or "the judge"
    count = f"{c.labelled} of {c.judged} answers labelled"
    console.print(Text(f"{judge} in {c.run}, rule {c.rule}: {count}", "bold"), soft_wrap=True)
    if c.found is not None:
        table = grid("answers", "labelled", "agreement", "95 % interval", "kappa", "too kind", "too strict")
        table.add_row("all", *_numbers(c.found))
        for s in sorted(c.slices, key=lambda s: -s.found.n)[:SLICES_SHOWN]:
            table.add_row(Text(f"{s.label}: {s.value}"), *_numbers(s.found))
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


def _numbers(a: Agreement) -> tuple[str, ...]:
    low, high = a.interval
    kappa = "not known" if a.kappa is None else f"{a.kappa:.3f}"
    return (
        str(a.n), f"{a.agreement:.3f}", f"{low:.3f} to {high:.3f}", kappa, str(a.judge_too_kind),
        str(a.judge_too_strict),
    )  # fmt: skip
