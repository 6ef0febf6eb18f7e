"""The command `score`: predictions or rankings of any system, from files."""

from __future__ import annotations

import argparse

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `score crag` and `score ranking`."""
    kinds = options.parent(commands, "score", "kind")
    crag = options.command(
        kinds,
        "crag",
        "raypipe score crag predictions.jsonl.gz --rule accuracy",
        _crag,
        "Score a file of CRAG predictions by either of the two rules in use.",
    )
    crag.add_argument(
        "file",
        metavar="FILE",
        help="predictions.jsonl of a run, or .jsonl[.gz] of query, answer, prediction, ...",
    )
    crag.add_argument(
        "--rule",
        type=options.one_of("official", "accuracy"),
        default="official",
        help="official (default): the published evaluator's intent; accuracy: the earlier contest rule; "
        "MODULE:NAME: a rule of your own",
    )
    options.as_json(crag)
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

    found = score_crag(args.file, args.rule).to_json()
    if args.json:
        options.print_json(found)
        return 0
    from raypipe.report.console import print_crag

    print_crag(options.console(), found)
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
