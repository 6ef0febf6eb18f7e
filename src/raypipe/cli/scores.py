"""`raypipe score`: scores the predictions or rankings of any system, from files."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from raypipe.cli import options
from raypipe.cli.settings import Settings
from raypipe.metrics.files import score_crag_file, score_ranking_files
from raypipe.report.console import print_crag, print_ranking


def add(commands: options.Commands) -> None:
    """Declares `score crag` and `score ranking`."""
    top = commands.add_parser("score", help="score predictions or rankings of any system")
    kinds = top.add_subparsers(dest="kind", metavar="KIND", required=True)
    crag = options.command(
        kinds,
        "crag",
        "score a file of CRAG predictions by either of the two rules in use",
        "raypipe score crag predictions.jsonl.gz --rule accuracy",
        _crag,
    )
    crag.add_argument("file", metavar="FILE", type=Path, help=".jsonl[.gz] of query, answer, prediction, ...")
    crag.add_argument(
        "--rule",
        choices=("official", "accuracy"),
        default="official",
        help="official (default): the published evaluator's intent; accuracy: the earlier contest rule",
    )
    options.as_json(crag)
    ranking = options.command(
        kinds,
        "ranking",
        "score a TREC run against judgements",
        "raypipe score ranking --run R.trec --qrels Q.trec",
        _ranking,
    )
    ranking.add_argument("--run", dest="trec", metavar="R.trec", type=Path, required=True)
    ranking.add_argument("--qrels", metavar="Q.trec", type=Path, required=True)
    ranking.add_argument("--per-query", action="store_true", help="with --json: every query's measures too")
    options.as_json(ranking)


def _crag(args: argparse.Namespace, settings: Settings) -> int:
    found = score_crag_file(args.file, args.rule)
    if args.json:
        options.print_json(found)
    else:
        print_crag(Console(), found)
    return 0


def _ranking(args: argparse.Namespace, settings: Settings) -> int:
    found = score_ranking_files(args.trec, args.qrels, args.per_query)
    if args.json:
        options.print_json(found)
    else:
        print_ranking(Console(), found)
    return 0
