"""The command `score`: predictions or rankings of any system, from files."""

from __future__ import annotations

import argparse

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `score crag`, `score qa`, `score qasper` and `score ranking`."""
    kinds = options.parent(commands, "score", "kind")
    crag = options.command(
        kinds,
        "crag",
        "raypipe score crag predictions.jsonl.gz --rule accuracy",
        _crag,
        "Score CRAG predictions, a run's or any system's, by either of the two rules in use.",
    )
    crag.add_argument(
        "file",
        metavar="FILE",
        help="the folder of a run, its predictions.jsonl, or .jsonl[.gz] of query, answer, prediction, ...",
    )
    crag.add_argument(
        "--rule",
        type=options.one_of("official", "accuracy"),
        help="official (default; of a run's folder its own): the published evaluator's intent; accuracy: the "
        "earlier contest rule; MODULE:NAME: a rule of your own",
    )
    crag.add_argument(
        "--judge",
        metavar="MODEL",
        help="asks this judge what the rule leaves open, in place of the replies that are there: a generator "
        "of the models file, or MODULE:NAME",
    )
    options.judged(crag)
    options.models(crag)
    options.cluster(crag)
    crag.add_argument("--out", metavar="FILE", help="write the predictions as they were scored")
    options.as_json(crag)
    qa = options.command(
        kinds,
        "qa",
        "raypipe score qa predictions.jsonl",
        _qa,
        "Score answers to anyone's questions: exact match, token F1, containment.",
    )
    qa.add_argument(
        "file",
        metavar="FILE",
        help="the folder of a run, or .jsonl[.gz] of query, answer, prediction, alternatives (a list), ...",
    )
    options.as_json(qa)
    qasper = options.command(
        kinds,
        "qasper",
        "raypipe score qasper --gold qasper-test-v0.3.json --predictions predictions.jsonl",
        _qasper,
        "Score answers about papers and their evidence as QASPER's evaluator does.",
    )
    qasper.add_argument("--gold", metavar="F", required=True, help="QASPER's .json or .json.gz")
    qasper.add_argument(
        "--predictions",
        metavar="F",
        required=True,
        help=".jsonl[.gz] of question_id, predicted_answer, predicted_evidence",
    )
    qasper.add_argument(
        "--text-evidence-only",
        action="store_true",
        help="take figures and tables out of the golds' evidence",
    )
    options.as_json(qasper)
    ranking = options.command(
        kinds,
        "ranking",
        "raypipe score ranking --run R.trec --qrels Q.trec",
        _ranking,
        "Score a TREC run against judgements.",
    )
    ranking.add_argument("--run", dest="trec", metavar="R.trec", required=True)
    ranking.add_argument("--qrels", metavar="Q.trec", required=True)
    ranking.add_argument("--per-query", action="store_true", help="with --json: every query's measures too")
    options.as_json(ranking)


def _crag(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.scores import score_crag

    found = score_crag(
        args.file, args.rule, args.judge, args.trim, args.labels, args.out, options.session(args, settings)
    ).to_json()
    if args.json:
        options.print_json(found)
        return 0
    from raypipe.report.console import print_crag

    print_crag(options.console(), found)
    return 0


def _qa(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.scores import score_qa

    found = score_qa(args.file).to_json()
    if args.json:
        options.print_json(found)
        return 0
    from raypipe.report.console import print_measures

    print_measures(options.console(), {**found, "kind": "qa", "rule": ""})
    return 0


def _qasper(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.scores import score_qasper

    found = score_qasper(args.gold, args.predictions, args.text_evidence_only)
    if args.json:
        options.print_json(found.to_json())
        return 0
    from raypipe.report.console import print_means

    print_means(options.console(), {row["measure"]: row["mean"] for row in found.rows()}, found.title)
    return 0


def _ranking(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.scores import score_ranking

    found = score_ranking(args.trec, args.qrels, args.per_query).to_json()
    if args.json:
        options.print_json(found)
        return 0
    from raypipe.report.console import print_ranking

    print_ranking(options.console(), found)
    return 0
