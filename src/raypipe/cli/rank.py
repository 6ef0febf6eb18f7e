"""The command `rank`: documents ranked for queries, as a TREC run."""

from __future__ import annotations

from pathlib import Path

from raypipe.cli.command import Args, arg, at_least, called, command


@command(
    "rank",
    "raypipe rank local --corpus corpus.jsonl.gz --queries queries.jsonl.gz --out run.trec --by fuse",
    "recipe sets store",
    arg("--corpus F", "BEIR corpus.jsonl[.gz]"),
    arg("--queries F", "BEIR queries.jsonl[.gz]"),
    arg("--out R.trec", type=Path, required=True),
    arg("--by BY", "a score's name, such as bm25, dense, fuse; or final (final)", default="final"),
    arg("--top N", "documents a query (20)", at_least(1), 20),
    "cluster",
)
def _rank(args: Args) -> int:
    from raypipe.api.paths import require_writable
    from raypipe.api.questions import rank

    require_writable(args.out.parent, "--out")
    found = called(rank, args)
    found.write_trec(args.out)
    print(f"{args.out}: {found.title}")
    return 0
