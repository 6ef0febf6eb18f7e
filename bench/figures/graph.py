"""Accuracy of the recipe `local-kg` from a knowledge graph alone, by how questions are worded.

    python bench/figures/graph.py --questions 600 --seed 31              # the graph as a folder of tables
    python bench/figures/graph.py --questions 600 --seed 31 --server     # the same behind the mock API

Of every template of the world one wording is held out: no example of the bank was made from it. Counts the
questions that the graph can answer, and among them those whose premise is false, worded as an example and
held out: right, wrong, and left alone (abstained, or no calls). Prints one JSON object; reads no page and
calls no language model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from raypipe import readers
from raypipe.api.session import load_recipe
from raypipe.contrib.crag.references import GraphRef
from raypipe.contrib.crag.server import serve
from raypipe.contrib.crag.steps.kg_query import KgQuery
from raypipe.contrib.crag.steps.match_calls import MatchCalls
from raypipe.contrib.crag.tables import load
from raypipe.contrib.world.write import write
from raypipe.core.conf import Conf
from raypipe.core.records import Question
from raypipe.core.textfile import json_lines
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import QuestionExecutor
from raypipe.recipes.recipe import Recipe
from raypipe.steps.decide import Decide
from raypipe.store.memo.memo import MemoryMemo

CONF = Conf((Path(__file__).parents[2] / "conf",))
HELD = "/3"  # ends the name of a template's held-out wording


def graph_alone(recipe: Recipe, server: str | None) -> Recipe:
    """The recipe without its web path; with an address, on the server there."""
    kept = [s for s in recipe.question if isinstance(s.step, MatchCalls | KgQuery)]
    if server is not None:
        graph = replace(recipe.named(GraphRef)[0], kind="server", where=server)
        kept = [replace(s, step=replace(cast(Any, s.step), graph=graph)) for s in kept]
    last = recipe.question[-1]
    assert isinstance(last.step, Decide)
    return replace(recipe, question=(*kept, replace(last, step=replace(last.step, prefer=("kg",)))))


def verdict(line: Mapping[str, Any], question: Question) -> str:
    """Of one question, by its gold answers to the letter."""
    golds = {g.lower() for g in (line["answer"], *line["alt_ans"])}
    if question.outcome == "false_premise":
        return "right" if "invalid question" in golds else "wrong"
    if question.outcome == "answered":
        return "right" if question.answer in golds else "wrong"
    return "left" if question.outcome == "abstained" else "fault"


async def answered(recipe: Recipe, questions: list[Question]) -> tuple[list[Question], int]:
    """The questions with their answers, and the requests that were made of a server."""
    kit = LocalKit(None, "transformers")
    ask = QuestionExecutor(recipe, kit, MemoryMemo())
    out = await ask(questions)
    await kit.close()
    return out, sum(c.calls.replies.computed for c in ask.counts.values())


def measured(folder: Path, questions: int, seed: int, behind: bool) -> dict[str, Any]:
    """Outcomes of the questions of one invented world."""
    write(folder, questions, pages=1, seed=seed, page_chars=1000)
    lines = json_lines((folder / "questions.jsonl").read_text("utf-8"))
    rows = [
        r.question for r in readers.open([folder], "synth", readers.ReadCounts()) if r.question is not None
    ]
    recipe = load_recipe("local-kg", None, CONF, {"": str(folder)})
    start = time.perf_counter()
    with serve(load(folder)) if behind else nullcontext() as url:
        out, requests = asyncio.run(answered(graph_alone(recipe, url), rows))
    took = time.perf_counter() - start
    counts: dict[str, Counter[str]] = {}
    for line, question in zip(lines, out, strict=True):
        worded = "held_out" if line["template"].endswith(HELD) else "as_an_example"
        for what in ("kg_answerable", "premise_false"):
            if line[what]:
                counts.setdefault(f"{what} {worded}", Counter())[verdict(line, question)] += 1
        counts.setdefault("all", Counter())[verdict(line, question)] += 1
    shares = {
        name: {"questions": c.total(), **{v: round(n / c.total(), 3) for v, n in sorted(c.items())}}
        for name, c in sorted(counts.items())
    }
    return {"seed": seed, "server": behind, **shares, "requests": requests, "seconds": round(took, 1)}


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--questions", type=int, default=600, metavar="N")
    args.add_argument("--seed", type=int, default=31)
    args.add_argument("--server", action="store_true", help="the graph behind the mock API")
    given = args.parse_args()
    with tempfile.TemporaryDirectory(prefix="raypipe-graph-") as folder:
        print(json.dumps(measured(Path(folder), given.questions, given.seed, given.server)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
