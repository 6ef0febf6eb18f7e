"""Commands that score and compare answers, and measure judges: score, judge, compare."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import raypipe
from raypipe.api.cli import arguments as shared
from raypipe.api.cli.command import Shell, Shown, arg, command, on_console

if TYPE_CHECKING:
    from raypipe.api.scores import CragScoreResult, MeansResult, PickResult


@command("score crag", "predictions.jsonl.gz --rule accuracy")
def score_crag(
    shell: Shell,
    predictions: str = arg("a run, or .jsonl[.gz] of query, answer, prediction, ...", "FILE", needed=True),
    *,
    rule: str | None = arg("official, accuracy, words, or MODULE:NAME (its own)", "RULE", shared.read_rule),
    judge: str | None = arg(
        "ask this judge about answers that the rule leaves open, even if replies exist", "MODEL"
    ),
    trim: str | None = shared.TRIM,
    labels: str | None = shared.LABELS,
    models: str | None = shared.MODELS,
    cluster: str = shared.CLUSTER,
    out: str | None = arg("write the predictions as they were scored", "FILE"),
) -> Shown[Any]:
    """Score CRAG predictions, a run's or any system's, by either of the two rules in use."""

    def show(found: CragScoreResult) -> None:
        of = found.by_rule, found.normalized, found.trim, found.judge, found.people
        on_console("console.print_crag", *of)

    session = shell.session(models, cluster)
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
    from raypipe.api.cli.tables import print_check

    return Shown(raypipe.check_judge(labels, run, rule), print_check)


@command("judge pick", "/data/runs/local --random 100 --disagreements 50 --out labels.jsonl")
def judge_pick(
    run: str = arg("a finished eval's folder, or a file of predictions", "RUN", needed=True),
    *,
    disagreements: int = arg(
        "pick N answers on which judge and words disagree", "N", shared.whole(0), default=0
    ),
    random: int = arg(
        "pick N at random: only these show how often a judge errs", "N", shared.whole(0), default=0
    ),
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


@command("compare", "/data/runs/local /data/runs/tuned")
def compare(
    shell: Shell,
    runs: Sequence[str] = arg("runs, files of predictions, or releases: an id, or live", "RUN", needed=True),
    *,
    rule: str | None = arg("official, accuracy, words, or MODULE:NAME (its own)", "RULE", shared.read_rule),
    margin: float = shared.MARGIN,
    group: str | None = arg("count questions with the same value of this label as one", "LABEL"),
    measure: str | None = shared.MEASURE,
    rejudge: str | None = arg(
        "judge all runs with one model; without MODEL, the first run's judge", "MODEL", const=""
    ),
    unseen: bool = arg("leave out questions that a fit or an adapter of a recipe has seen"),
    trim: str | None = shared.TRIM,
    labels: str | None = shared.LABELS,
    models: str | None = shared.MODELS,
    cluster: str = shared.CLUSTER,
    place: shared.StoreFlags,
) -> Shown[Any]:
    from raypipe.api.cli.tables import print_comparisons

    session = shell.session(models, cluster)
    found = raypipe.compare(
        *runs,
        rule=rule,
        margin=margin,
        group=group,
        rejudge=rejudge,
        trim=trim,
        labels=labels,
        store=place.uri(session),
        session=session,
        measure=measure,
        unseen=unseen,
    )
    return Shown(found, print_comparisons)
