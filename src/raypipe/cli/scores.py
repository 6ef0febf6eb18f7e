"""The command `score`: predictions or rankings of any system, from files."""

from __future__ import annotations

from raypipe.cli import options
from raypipe.cli.command import Args, arg, called, command, console, on_console, printed


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
