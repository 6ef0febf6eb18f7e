"""How `weknow` merges its M passages of BM25 with its N reranked ones, next to two other ways.

    python bench/figures/merge.py --questions 60 --pages 20 --seed 7

The paper does not say how. Counted over one invented world, with models that compute from words, among the
first ten passages (what 6,000 tokens have room for): questions of which one of these holds a gold answer,
and how many of the M = 5 are among them. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raypipe import readers
from raypipe.api.session import load_recipe
from raypipe.contrib.world.write import write
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.digests import model_identity
from raypipe.core.records import Question
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor
from raypipe.recipes.recipe import Recipe, ranking_of
from raypipe.store.index import MemoryIndex

ROOT = Path(__file__).parents[2]
CONF = Conf((ROOT / "conf",))
FAKES = str(ROOT / "tests" / "support" / "fake_models.yaml")
SHOWN = 10
M = 5


def ranked_by(question: Question, score: str) -> list[str]:
    """The passages that have a score, best first."""
    having = [h for h in question.hits if score in h.scores]
    return [h.chunk for h in sorted(having, key=lambda h: (-h.scores[score], h.chunk))]


def best_of_bm25(question: Question) -> list[str]:
    """The M."""
    return ranked_by(question, "bm25")[:M]


MERGES: Mapping[str, Callable[[Question], Sequence[str]]] = {
    "reciprocal_ranks": lambda q: q.order,  # the recipe's own
    "reranked_then_bm25": lambda q: list(dict.fromkeys(ranked_by(q, "rerank") + best_of_bm25(q))),
    "bm25_then_reranked": lambda q: list(dict.fromkeys(best_of_bm25(q) + ranked_by(q, "rerank"))),
}


async def ranked(recipe: Recipe, rows: Sequence[Any]) -> tuple[list[Question], Mapping[str, str]]:
    """The questions with their rankings, and the text of every passage."""
    kit, seen = LocalKit(None, "transformers"), set[str]()
    sources = [s for r in rows for s in readers.unseen(r.sources, seen)]
    corpus = await CorpusExecutor(recipe, kit)(arrow.corpus_table(sources))
    vectors = {model_identity(m): corpus.vectors[m.name] for m in recipe.embedders()}
    index = MemoryIndex(corpus.texts, corpus.passages, vectors)
    out = await QuestionExecutor(recipe, kit.with_index(index))([r.question for r in rows])
    named = list(dict.fromkeys(h.chunk for q in out for h in q.hits))
    texts = dict(zip(named, await index.texts(named), strict=True))
    await kit.close()
    return out, texts


def measured(folder: Path, questions: int, pages: int, seed: int) -> dict[str, Any]:
    """Counts of one invented world."""
    write(folder, questions, pages=pages, seed=seed, page_chars=8000)
    rows = [r for r in readers.open([folder], "synth", readers.ReadCounts()) if r.question is not None]
    recipe = ranking_of(load_recipe("weknow", FAKES, CONF))
    out, texts = asyncio.run(ranked(recipe, rows))
    golds = [[] if r.gold is None else [a.lower() for a in r.gold.answers] for r in rows]
    found: dict[str, Any] = {}
    for name, merge in MERGES.items():
        shown = [list(merge(q))[:SHOWN] for q in out]
        holding = sum(
            any(g in texts[c].lower() for c in some for g in gold)
            for some, gold in zip(shown, golds, strict=True)
        )
        own = sum(len(set(some) & set(best_of_bm25(q))) for some, q in zip(shown, out, strict=True))
        found[name] = {"questions_with_gold": holding, "of_m_shown": round(own / len(out), 2)}
    return {"questions": len(out), "pages": pages, "seed": seed, "shown": SHOWN, **found}


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--questions", type=int, default=60, metavar="N")
    args.add_argument("--pages", type=int, default=20, metavar="N")
    args.add_argument("--seed", type=int, default=7)
    given = args.parse_args()
    with tempfile.TemporaryDirectory(prefix="raypipe-merge-") as folder:
        print(json.dumps(measured(Path(folder), given.questions, given.pages, given.seed)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
