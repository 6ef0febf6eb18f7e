"""Commands that judge answers: score, judge, compare."""

from __future__ import annotations

import shlex

from raypipe.cli import options
from raypipe.cli.command import Args, arg, at_least, called, command, console, on_console, printed


@command(
    "score crag",
    "raypipe score crag predictions.jsonl.gz --rule accuracy",
    arg(
        "predictions FILE",
        "the folder of a run, its predictions.jsonl, or .jsonl[.gz] of query, answer, prediction, ...",
    ),
    arg(
        "--rule RULE",
        "official (default; of a run's folder its own): the published evaluator's intent; accuracy: the "
        "earlier contest rule; MODULE:NAME: a rule of your own",
        options.RULES,
    ),
    arg(
        "--judge MODEL",
        "asks this judge what the rule leaves open, in place of the replies that are there: a generator "
        "of the models file, or MODULE:NAME",
    ),
    "judged models cluster",
    arg("--out FILE", "write the predictions as they were scored"),
    "json",
    about="Score CRAG predictions, a run's or any system's, by either of the two rules in use.",
)
def _crag(args: Args) -> int:
    from raypipe.api.scores import score_crag
    from raypipe.report.console import print_crag

    return printed(args, called(score_crag, args), on_console(print_crag))


@command(
    "score qa",
    "raypipe score qa predictions.jsonl",
    arg(
        "predictions FILE",
        "the folder of a run, or .jsonl[.gz] of query, answer, prediction, alternatives (a list), ...",
    ),
    "json",
    about="Score answers to anyone's questions: exact match, token F1, containment.",
)
def _qa(args: Args) -> int:
    from raypipe.api.scores import QaScoreResult, score_qa
    from raypipe.report.console import print_measures

    def show(found: QaScoreResult) -> None:
        print_measures(console(), {**found.to_json(), "kind": "qa", "rule": ""})

    return printed(args, called(score_qa, args), show)


@command(
    "score qasper",
    "raypipe score qasper --gold qasper-test-v0.3.json --predictions predictions.jsonl",
    arg("--gold F", "QASPER's .json or .json.gz", required=True),
    arg("--predictions F", ".jsonl[.gz] of question_id, predicted_answer, predicted_evidence", required=True),
    arg("--text-evidence-only", "take figures and tables out of the golds' evidence"),
    "json",
    about="Score answers about papers and their evidence as QASPER's evaluator does.",
)
def _qasper(args: Args) -> int:
    from raypipe.api.scores import QasperScoreResult, score_qasper
    from raypipe.report.console import print_means

    def show(found: QasperScoreResult) -> None:
        print_means(console(), {row["measure"]: row["mean"] for row in found.rows()}, found.title)

    return printed(args, called(score_qasper, args), show)


@command(
    "score ranking",
    "raypipe score ranking --run R.trec --qrels Q.trec",
    arg("--run R.trec", required=True),
    arg("--qrels Q.trec", required=True),
    arg("--per-query", "with --json: every query's measures too"),
    "json",
    about="Score a TREC run against judgements.",
)
def _ranking(args: Args) -> int:
    from raypipe.api.scores import score_ranking
    from raypipe.report.console import print_ranking

    return printed(args, called(score_ranking, args), on_console(print_ranking))


_ABOUT = "by which a file of predictions was judged (default: official; of a run, its own)"
RULE = arg("--rule RULE", _ABOUT, options.RULES)


@command(
    "judge check",
    "raypipe judge check labels.jsonl --run /data/runs/local",
    arg("labels LABELS", "lines of id, prediction, label: right, wrong, unclear"),
    arg(
        "--run RUN", "the run, or file of predictions, that the labels are of (default: the folder of LABELS)"
    ),
    RULE,
    "json",
    about="Measure a judge by people's labels: agreement, kappa, and the score with its errors taken out.",
)
def _check(args: Args) -> int:
    from raypipe.api.judge_check import JudgeCheckResult, check_judge

    def show(found: JudgeCheckResult) -> None:
        from raypipe.cli.tables import print_check

        print_check(console(), found.found)

    return printed(args, called(check_judge, args), show)


@command(
    "judge pick",
    "raypipe judge pick /data/runs/local --random 100 --disagreements 50 --out labels.jsonl",
    arg("run RUN", "a finished eval's folder, or a file of predictions"),
    arg(
        "--disagreements N",
        "answers of which the judge and the truth's words, or two judges, say the opposite",
        at_least(0),
        0,
    ),
    arg(
        "--random N",
        "answers drawn at random: only these say how often the judge errs",
        at_least(0),
        0,
        dest="at_random",
    ),
    arg("--seed S", "of the draw (default: 0)", int, 0),
    arg("--other RUN", "the same answers, judged by another judge"),
    arg("--labels FILE", "answers that have a label there are left out"),
    arg("--out FILE", "the file to write; it must not be there", required=True),
    RULE,
    "json",
    about="Write answers for people to label: some at random, and those of which two measures disagree.",
)
def _pick(args: Args) -> int:
    from raypipe.api.judge_check import PickResult, pick_to_label

    def show(found: PickResult) -> None:
        said = found.to_json()
        print(f"{said['random']} answers at random, {said['chosen']} disagreements: {found.file}")
        rule = "" if args.rule is None else f" --rule {args.rule}"
        print("set each label to right, wrong or unclear, then:")
        print(f"  raypipe judge check {shlex.quote(found.file)} --run {shlex.quote(args.run)}{rule}")

    return printed(args, called(pick_to_label, args), show)


@command(
    "compare",
    "raypipe compare /data/runs/local /data/runs/tuned",
    arg(
        "runs RUN+",
        "the --out folder of a finished eval, a file of predictions, or a release: its id, or live; "
        "live shadow and live canary compare what both sides of a trial answered",
    ),
    arg(
        "--rule RULE",
        "by which answers are scored: official, accuracy, or MODULE:NAME (default: of a folder its own, of "
        "a file of predictions official)",
        options.RULES,
    ),
    options.margin("runs"),
    options.group("count as one each"),
    options.measure("what is compared"),
    arg("--rejudge MODEL?", "have one judge decide about all runs; without MODEL the first run's", const=""),
    arg("--unseen", "leave out the questions that a fit of one of the recipes has seen"),
    "judged models cluster store json",
)
def _compare(args: Args) -> int:
    from raypipe.api.compare import CompareResult, compare

    def show(found: CompareResult) -> None:
        from raypipe.cli.tables import print_comparison

        out = console()
        for c in found.comparisons:
            print_comparison(out, c)

    return printed(args, called(compare, args, *args.runs), show)
