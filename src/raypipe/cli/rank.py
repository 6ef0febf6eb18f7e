"""The command `rank`: documents ranked for queries, as a TREC run."""

from __future__ import annotations

import argparse
from pathlib import Path

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `rank`."""
    made = options.command(
        commands,
        "rank",
        "raypipe rank local --corpus corpus.jsonl.gz --queries queries.jsonl.gz --out run.trec --by fuse",
        _rank,
    )
    options.recipe(made)
    options.sets(made)
    options.store(made)
    made.add_argument("--corpus", metavar="F", help="BEIR corpus.jsonl[.gz]")
    made.add_argument("--queries", metavar="F", help="BEIR queries.jsonl[.gz]")
    made.add_argument("--out", metavar="R.trec", type=Path, required=True)
    made.add_argument(
        "--by", default="final", help="a score's name, such as bm25, dense, fuse; or final (final)"
    )
    made.add_argument(
        "--top", metavar="N", type=options.at_least(1), default=20, help="documents a query (20)"
    )
    options.cluster(made)


def _rank(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.paths import require_file
    from raypipe.api.questions import rank

    require_file(args.out, "--out")
    session = options.session(args, settings, progress=True)
    found = rank(args.recipe, args.corpus, args.queries, args.store, args.by, args.top, session)
    found.write_trec(args.out)
    print(f"{args.out}: {found.title}")
    return 0
