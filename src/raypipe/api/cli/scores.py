"""Commands that score and compare answers, and measure judges: score, judge, compare."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import raypipe
from raypipe.api.cli import arguments as shared
from raypipe.api.cli.command import Shown, arg, command, console, on_console
from raypipe.api.session import Session
from raypipe.evaluation.report.formatting import ends, signed

if TYPE_CHECKING:
    from raypipe.api.compare import CompareResult
    from raypipe.api.scores import CragScoreResult, JudgeCheckResult, MeansResult, PickResult
    from raypipe.evaluation.compare import RunComparison
    from raypipe.evaluation.judge_check import Agreement
    from raypipe.metrics.paired_tests import PairedDifference

SLICES_SHOWN = 12  # slices, the largest first; --json has all
CAUSES_SHOWN = 8  # causes of differences
IDS_SHOWN = 3  # questions that a comparison leaves out
STYLES = {"better": "bold green", "worse": "bold red"}
NUMBERS = ("difference", "95 % interval", "p", "up", "down")  # heads of the columns that `_numbers` fills


@command("score crag", "predictions.jsonl.gz --rule accuracy")
def score_crag(
    predictions: str = arg("a run, or .jsonl[.gz] of query, answer, prediction, ...", "FILE", needed=True),
    *,
    rule: str | None = arg("official, accuracy, words, or MODULE:NAME (its own)", "RULE", shared.read_rule),
    judge: str | None = arg("ask this judge about answers that the rule leaves open, again", "MODEL"),
    trim: str | None = shared.TRIM,
    labels: str | None = shared.LABELS,
    session: Session = shared.session("models", "cluster"),
    out: str | None = arg("write the predictions as they were scored", "FILE"),
) -> Shown[Any]:
    """Score CRAG predictions, a run's or any system's, by one of CRAG's rules or your own."""

    def show(found: CragScoreResult) -> None:
        of = found.by_rule, found.normalized, found.trim, found.judge, found.people
        on_console("console.print_crag", *of)

    return Shown(raypipe.score_crag(predictions, rule, judge, trim, labels, out, session), show)


@command("score qa", "predictions.jsonl")
def score_qa(
    predictions: str = arg("a run, or .jsonl[.gz] of query, answer, prediction, ...", "FILE", needed=True),
) -> Shown[Any]:
    """Score answers to anyone's questions: exact match, token F1, containment."""
    printed = "console.print_measures"
    scored = raypipe.score_qa(predictions)
    return Shown(scored, lambda found: on_console(printed, "kind qa", found.lead, found.measures))


@command("score qasper", "--gold qasper-test-v0.3.json --predictions predictions.jsonl")
def score_qasper(
    *,
    gold: str = arg("QASPER's .json or .json.gz", "F", needed=True),
    predictions: str = arg("lines of question_id, predicted_answer, predicted_evidence", "F", needed=True),
    text_evidence_only: bool = arg("remove figures and tables from the golds' evidence"),
) -> Shown[Any]:
    """Score answers about papers and their evidence as QASPER's evaluator does."""
    return Shown(raypipe.score_qasper(gold, predictions, text_evidence_only), _print_means)


def _print_means(found: MeansResult) -> None:
    on_console("console.print_means", found.means, found.about, len(found.unjudged), found.per_query)


@command("score ranking", "--run R.trec --qrels Q.trec")
def score_ranking(
    *,
    run: str = arg("a TREC run", "R.trec", needed=True),
    qrels: str = arg("judgements", "Q.trec", needed=True),
    per_query: bool = arg("with --json: also the measures of each query"),
) -> Shown[Any]:
    """Score a TREC run against judgements."""
    return Shown(raypipe.score_ranking(run, qrels, per_query), _print_means)


@command("judge check", "labels.jsonl --run /data/runs/local")
def judge_check(
    labels: str = arg("lines of id, prediction, label: right, wrong, unclear", "LABELS", needed=True),
    *,
    run: str | None = arg("the run or file of predictions that was labelled (the folder of LABELS)", "RUN"),
    rule: str | None = shared.FILE_RULE,
) -> Shown[Any]:
    """Measure a judge by people's labels: agreement, kappa, and the score with its errors taken out."""
    return Shown(raypipe.check_judge(labels, run, rule), _print_check)


def _print_check(checked: JudgeCheckResult) -> None:
    """Prints the agreement, then the corrected score, then the answers left out."""
    from raypipe.evaluation.report.console import say, show

    out, c = console(), checked.found
    count = f"{c.labelled} of {c.judged} answers labelled"
    say(out, f"{c.judge or 'the judge'} in {c.run}, rule {c.rule}: {count}", style="bold")
    if c.found is not None:
        largest = sorted(c.slices, key=lambda s: -s.found.n)[:SLICES_SHOWN]
        rows = [("all", *_agreement(c.found))]
        rows += [(f"{s.label}: {s.value}", *_agreement(s.found)) for s in largest]
        heads = ("answers", "labelled", "agreement", "95 % interval", "kappa", "too kind", "too strict")
        show(out, heads, rows)
        say(out, "too kind: the judge says right, people say wrong; too strict: the opposite", fold=True)
    if c.corrected is None:
        say(out, f"no corrected score: {c.why_not}")
    else:
        score, within = c.corrected, ends(c.corrected.interval, signed, "too few groups")
        said = f"score by the judge {score.judged:+.3f}; with its errors taken out {score.corrected:+.3f}"
        say(out, f"{said}, 95 % interval {within}, from {score.labelled} labels drawn at random")
    for left, what in (
        (c.unclear, "labels: unclear"),
        (c.unlabelled, "lines: without a label yet"),
        (c.without_judge, "labels: no judge decided the answer"),
        (c.elsewhere, "labels: the run does not give the answer"),
    ):
        if left:
            say(out, f"left out: {left} {what}", fold=True)


def _agreement(a: Agreement) -> tuple[object, ...]:
    kappa = "not known" if a.kappa is None else f"{a.kappa:.3f}"
    return a.n, f"{a.agreement:.3f}", ends(a.interval), kappa, a.judge_too_kind, a.judge_too_strict


@command("judge pick", "/data/runs/local --random 100 --disagreements 50 --out labels.jsonl")
def judge_pick(
    run: str = arg("a finished eval's folder, or a file of predictions", "RUN", needed=True),
    *,
    disagreements: int = arg("pick N on which judge and words disagree", "N", shared.whole(0), default=0),
    random: int = arg("pick N at random, which show how often a judge errs", "N", shared.whole(0), default=0),
    seed: int = arg("seed of the draw (default: 0)", "S", default=0),
    labels: str | None = arg("leave out answers with a label in this file", "FILE"),
    out: str = arg("the file to write; it must not exist", "FILE", needed=True),
    rule: str | None = shared.FILE_RULE,
) -> Shown[Any]:
    """Write answers for people to label: some at random, and those of which two measures disagree."""

    def show(found: PickResult) -> None:
        print(f"{found.random} answers at random, {found.chosen} disagreements: {found.file}")
        by_rule = "" if rule is None else f" --rule {rule}"
        print("set each label to right, wrong or unclear, then:")
        print(f"  raypipe judge check {shlex.quote(found.file)} --run {shlex.quote(run)}{by_rule}")

    return Shown(raypipe.pick_to_label(run, out, disagreements, random, seed, labels, rule), show)


@dataclass(frozen=True)
class CompareFlags(shared.Options):
    """Options of a comparison. Each has the name of an argument of `raypipe.compare`."""

    rule: str | None = arg("official, accuracy, words, or MODULE:NAME (its own)", "RULE", shared.read_rule)
    margin: float = shared.MARGIN
    group: str | None = arg("count questions with the same value of this label as one", "LABEL")
    measure: str | None = shared.MEASURE
    rejudge: str | None = arg("judge all runs by one model (the first run's judge)", "MODEL", const="")
    unseen: bool = arg("leave out questions that a fit or an adapter of a recipe has seen")
    trim: str | None = shared.TRIM
    labels: str | None = shared.LABELS


@command("compare", "/data/runs/local /data/runs/tuned")
def compare(
    runs: Sequence[str] = arg("runs, files of predictions, or releases: an id, or live", "RUN", needed=True),
    *,
    options: CompareFlags,
    session: Session = shared.session("models", "cluster"),
    place: shared.StoreFlags,
) -> Shown[Any]:
    found = raypipe.compare(*runs, store=place.uri(session), session=session, **options.given())
    return Shown(found, _print_comparisons)


def _print_comparisons(found: CompareResult) -> None:
    """Prints each comparison: the verdict first, then metrics, causes and slices."""
    from raypipe.api.compare import left_out
    from raypipe.evaluation.report.console import say, show

    out = console()
    for c in found.comparisons:
        say(out, _verdict_line(c, len(found.comparisons)), style=STYLES.get(c.verdict, "bold"), fold=True)
        say(out, f"{c.after} against {c.before}", style="dim")
        if c.same_run:
            say(out, "both are one run, so nothing can differ: name two")
        compared = ((c.measure, c.score), *((r.metric, r.found) for r in c.rates))
        counts = any(d.n != c.score.n for _, d in compared)  # a column only where the first line's is not all
        rows = [
            (name, *[d.n] * counts, f"{d.before:.3f}", f"{d.after:.3f}", *_numbers(d, d.p))
            for name, d in compared
        ]
        show(out, ("metric", *["questions"] * counts, "before", "after", *NUMBERS), rows)
        if sum(c.people):
            one, two = c.people
            say(out, f"people's labels changed {one} and {two} verdicts: people outrank judges", fold=True)
        for name, n in zip((c.before, c.after), c.seen, strict=True):
            if n:
                seen = f"seen: a fit or an adapter of {name} has seen {n} of the {c.score.n} questions"
                say(out, f"{seen}, so its score is too good; --unseen leaves them out")
        say(out, *(f"left out: {line}" for line in left_out(c, IDS_SHOWN)))
        if c.causes:
            heads = ("first changed step", "changed field", "answers", "up", "down", f"\u0394{c.measure}")
            shown = [(k.step, k.field, k.moved, k.up, k.down, f"{k.difference:+.4f}") for k in c.causes]
            show(out, heads, shown[:CAUSES_SHOWN])
        if c.slices and all(s.verdict == "cannot tell" for s in c.slices):
            say(out, f"cannot tell in any of {len(c.slices)} slices")
        elif c.slices:
            largest = sorted(c.slices, key=lambda s: -s.found.n)[:SLICES_SHOWN]
            top = [(f"{s.label}: {s.value}", s.found.n, s.verdict, *_numbers(s.found, s.p)) for s in largest]
            show(out, ("slice", "questions", "verdict", *NUMBERS), top)
            say(out, f"p of the {len(c.slices)} slices is corrected for their number (Holm)", fold=True)


def _verdict_line(c: RunComparison, comparisons: int) -> str:
    """Formats the verdict of a comparison as a sentence. Its p is corrected for `comparisons`."""
    from raypipe.evaluation.compare import open_text

    d = c.score
    difference = f"{c.measure} {d.difference:+.3f} over {d.n} questions, p {c.p:.3g}"
    if comparisons > 1:
        difference += f" corrected for {comparisons} comparisons (Holm)"
    if c.verdict == "same":
        return f"same within {c.margin:g}: {difference}"
    if c.verdict != "cannot tell":
        return f"{c.verdict}: {difference}"
    if c.open:
        return f"cannot tell: {difference}. {open_text(c)}"
    if d.interval is None:
        return f"cannot tell: {d.groups} groups of questions are too few. {difference}"
    more = f"; {d.questions_needed} questions would show this one" if d.questions_needed else ""
    least = "not known" if d.minimum_detectable is None else f"{d.minimum_detectable:.3f}"
    return f"cannot tell: {difference}. The smallest difference that they show is {least}{more}"


def _numbers(d: PairedDifference, p: float) -> tuple[object, ...]:
    return signed(d.difference), ends(d.interval, signed, "too few groups"), f"{p:.3g}", d.up, d.down
