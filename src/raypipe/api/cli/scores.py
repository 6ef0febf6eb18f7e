"""Commands that judge answers: score, judge, compare."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import raypipe
from raypipe.api.cli.command import Args, called, command, on_console, printed

if TYPE_CHECKING:
    from raypipe.api.scores import CragScoreResult, MeansResult, QaScoreResult


@command
def _score_crag(args: Args) -> int:
    """Score CRAG predictions, a run's or any system's, by either of the two rules in use.

    raypipe score crag predictions.jsonl.gz --rule accuracy
    predictions FILE: the folder of a run, its predictions.jsonl, or .jsonl[.gz] of query, answer, prediction,
      ...
    --rule RULE {rule}: official (default; of a run's folder its own): the published evaluator's intent;
      accuracy: the earlier contest rule; words: the words of a truth stand in the answer; MODULE:NAME: a rule
      of your own
    --judge MODEL: asks this judge what the rule leaves open, in place of the replies that are there: a
      generator of the models file, or MODULE:NAME
    judged models cluster
    --out FILE: write the predictions as they were scored
    json
    """

    def show(found: CragScoreResult) -> None:
        of = found.by_rule, found.normalized, found.trim, found.judge, found.people
        on_console("console.print_crag", *of)

    return printed(args, called(raypipe.score_crag, args), show)


@command
def _score_qa(args: Args) -> int:
    """Score answers to anyone's questions: exact match, token F1, containment.

    raypipe score qa predictions.jsonl
    predictions FILE: the folder of a run, or .jsonl[.gz] of query, answer, prediction, alternatives (a list),
      ...
    json
    """

    def show(found: QaScoreResult) -> None:
        on_console("console.print_measures", "kind qa", found.lead, found.measures)

    return printed(args, called(raypipe.score_qa, args), show)


@command
def _score_qasper(args: Args) -> int:
    """Score answers about papers and their evidence as QASPER's evaluator does.

    raypipe score qasper --gold qasper-test-v0.3.json --predictions predictions.jsonl
    --gold F {required}: QASPER's .json or .json.gz
    --predictions F {required}: .jsonl[.gz] of question_id, predicted_answer, predicted_evidence
    --text-evidence-only: take figures and tables out of the golds' evidence
    json
    """

    return printed(args, called(raypipe.score_qasper, args), _print_means)


def _print_means(found: MeansResult) -> None:
    on_console("console.print_means", found.means, found.about, len(found.unjudged), found.per_query)


@command
def _score_ranking(args: Args) -> int:
    """Score a TREC run against judgements.

    raypipe score ranking --run R.trec --qrels Q.trec
    --run R.trec {required}
    --qrels Q.trec {required}
    --per-query: with --json: every query's measures too
    json
    """
    return printed(args, called(raypipe.score_ranking, args), _print_means)


@command
def _judge_check(args: Args) -> int:
    """Measure a judge by people's labels: agreement, kappa, and the score with its errors taken out.

    raypipe judge check labels.jsonl --run /data/runs/local
    labels LABELS: lines of id, prediction, label: right, wrong, unclear
    --run RUN: the run, or file of predictions, that the labels are of (default: the folder of LABELS)
    --rule RULE {rule}: by which a file of predictions was judged (default: official; of a run, its own)
    json
    """
    from raypipe.api.cli.tables import print_check

    return printed(args, called(raypipe.check_judge, args), print_check)


@command
def _judge_pick(args: Args) -> int:
    """Write answers for people to label: some at random, and those of which two measures disagree.

    raypipe judge pick /data/runs/local --random 100 --disagreements 50 --out labels.jsonl
    run RUN: a finished eval's folder, or a file of predictions
    --disagreements N {0.. = 0}: answers of which the judge and the truth's words say the opposite
    --random N {0.. = 0 -> at_random}: answers drawn at random: only these say how often the judge errs
    --seed S {int = 0}: of the draw (default: 0)
    --labels FILE: answers that have a label there are left out
    --out FILE {required}: the file to write; it must not be there
    --rule RULE {rule}: by which a file of predictions was judged (default: official; of a run, its own)
    json
    """
    from raypipe.api.judged_runs import PickResult

    def show(found: PickResult) -> None:
        print(f"{found.random} answers at random, {found.chosen} disagreements: {found.file}")
        rule = "" if args.rule is None else f" --rule {args.rule}"
        print("set each label to right, wrong or unclear, then:")
        print(f"  raypipe judge check {shlex.quote(found.file)} --run {shlex.quote(args.run)}{rule}")

    return printed(args, called(raypipe.pick_to_label, args), show)


@command
def _compare(args: Args) -> int:
    """raypipe compare /data/runs/local /data/runs/tuned
    runs RUN+: the --out folder of a finished eval, a file of predictions, or a release: its id, or live
    --rule RULE {rule}: by which answers are scored: official, accuracy, words, or MODULE:NAME (default: of a
      folder its own, of a file of predictions official)
    --margin M {above_0 = 0.02}: runs whose 90 %% interval lies within M to either side are the same (default:
      0.02)
    --group LABEL: a label whose values are groups of questions that count as one each
    --measure NAME: what is compared, such as f1 or ndcg_cut_10 (default: the one that reports of such data
      begin with)
    --rejudge MODEL? {const ""}: have one judge decide about all runs; without MODEL the first run's
    --unseen: leave out the questions that a fit or an adapter of one of the recipes has seen
    judged models cluster store json
    """
    from raypipe.api.cli.tables import print_comparisons

    return printed(args, called(raypipe.compare, args, *args.runs), print_comparisons)
