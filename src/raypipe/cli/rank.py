"""`raypipe rank`: documents ranked for queries, as a TREC run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from raypipe.cli import options
from raypipe.cli.opened import pipeline_of, recipe_of
from raypipe.cli.settings import Settings
from raypipe.core import arrow
from raypipe.core.errors import ConfError
from raypipe.core.records import Question
from raypipe.evaluation.evaluate import questions_of
from raypipe.metrics.ranking import write_run
from raypipe.pipeline.ingest import fingerprint, ingest
from raypipe.recipes.recipe import Recipe, ranking_of
from raypipe.store import Store

FINAL = "final"  # the order that the recipe ends with


def add(commands: options.Commands) -> None:
    """Declares `rank`."""
    made = options.command(
        commands,
        "rank",
        "rank documents for queries and write a TREC run; a document's score is its best passage's",
        "raypipe rank local --corpus corpus.jsonl.gz --queries queries.jsonl.gz --out run.trec --by fuse",
        _rank,
    )
    options.recipe(made)
    options.store(made)
    made.add_argument("--corpus", metavar="F", type=Path, help="BEIR corpus.jsonl[.gz]")
    made.add_argument("--queries", metavar="F", type=Path, help="BEIR queries.jsonl[.gz]")
    made.add_argument("--out", metavar="R.trec", type=Path, required=True)
    made.add_argument(
        "--by", default=FINAL, help="a score's name, such as bm25, dense, fuse; or final (final)"
    )
    made.add_argument(
        "--top", metavar="N", type=options.at_least(1), default=20, help="documents a query (20)"
    )
    options.cluster(made)


def _rank(args: argparse.Namespace, settings: Settings) -> int:
    if (args.corpus is None) != (args.queries is None):
        raise ConfError("--corpus and --queries belong together: give both, or neither and a --store")
    files = [p for p in (args.corpus, args.queries) if p]
    if files and args.store:
        raise ConfError(
            "--store and --corpus: expected one of them. Files are ranked alone, in a store of their own"
        )
    recipe = ranking_of(recipe_of(args, settings))
    known = scores_of(recipe)
    if args.by not in known:
        names = ", ".join(known)
        raise ConfError(f"--by {args.by}: no step of {recipe.name!r} gives such a score; known: {names}")
    if files:  # named by their bytes: the second run finds its vectors there
        store = Store.create(str(settings.stores / f"rank-{fingerprint(files, 'beir')[:12]}"))
    else:
        store = Store.open(settings.store_to_use(args.store))
    options.writable(args.out.parent, "--out")
    with pipeline_of(args, settings, store, silent=False, part=ranking_of) as pipeline:
        read = ingest(store, files, "beir", pipeline.progress, pipeline.connect) if files else None
        questions = questions_of(pipeline, read.questions if read else None, None)
        pipeline.index(questions)
        pipeline.answer(questions)
        answered = list(pipeline.answers(questions))
    documents = arrow.document.records(store.dataset("documents").to_table())
    listed: dict[str, list[str]] = {}
    for d in documents:
        listed.setdefault(d.source, []).append(d.id)
    run = {q.id: ranked_documents(q, args.by, listed, args.top) for q in answered}
    write_run(args.out, run, f"raypipe-{pipeline.recipe.name}-{args.by}")
    print(f"{args.out}: {len(run)} queries, by {args.by}")
    return 0


def scores_of(recipe: Recipe) -> list[str]:
    """What passages can be ranked by: the scores that steps of the recipe give, and `final`."""
    written = {w for s in recipe.question for w in s.step.writes() if w.startswith("hits.")}
    return [*sorted(w.removeprefix("hits.") for w in written), FINAL]


def ranked_documents(question: Question, by: str, listed: dict[str, list[str]], top: int) -> dict[str, float]:
    """Document -> score, the best `top`; a document's score is its best passage's.

    `final` is the order that the recipe ended with, as falling numbers; any other name is that score.
    """
    scores = _scores(question, by)
    best: dict[str, float] = {}
    for source, score in scores:
        for id in listed.get(source, ()):
            best[id] = max(score, best.get(id, score))
    return dict(sorted(best.items(), key=lambda item: (-item[1], item[0]))[:top])


def _scores(question: Question, by: str) -> Sequence[tuple[str, float]]:
    source = {h.chunk: h.source for h in question.hits}
    if by == FINAL:
        return [(source[c], float(len(question.order) - i)) for i, c in enumerate(question.order)]
    return [(h.source, h.scores[by]) for h in question.hits if by in h.scores]
