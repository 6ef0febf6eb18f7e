"""Estimate against actual, over twenty changes of a recipe on one store.

    python bench/figures/estimates.py                            invents 12 questions x 8 pages
    python bench/figures/estimates.py --questions 40 --folder DIR  keeps its store: a stopped one continues

Each change is one `--set` of the recipe of tests/support/fakes.yaml, whose models compute from words alone.
Before each run its plan is kept; the table sets it against what the run did. No run may make more calls than
its plan's bound; what lies outside the expected range is counted.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from raypipe.api.session import load_recipe
from raypipe.contrib.world.write import write
from raypipe.core.conf import Conf
from raypipe.core.llm import Prices
from raypipe.core.progress import Progress
from raypipe.core.textfile import json_lines
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.report.formatting import hours, ranged, seconds
from raypipe.runs.pipeline.counters import Caps
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.store import Store

ROOT = Path(__file__).parents[2]
CONF = Conf((ROOT / "conf",))
MODELS = """
other-embedder: {kind: embedder, loader: hash, dim: 128}
other-reranker: {kind: reranker, loader: overlap, dtype: bfloat16}
"""
CHANGES = (
    (),
    ("rerank.top=8",),
    ("rerank.top=3",),
    ("rerank.candidates=15",),
    ("rerank.candidates=30", "fuse.top=30"),
    ("fuse.top=15",),
    ("dense.top=20",),
    ("dense.top=40",),
    ("bm25.top=20",),
    ("bm25.variant=lucene",),
    ("fuse.weights.bm25=2.0",),
    ("fuse.weights.dense=3.0",),
    ("shortlist.pages=3",),
    ("shortlist.pages=8",),
    ("split.parent_chars=900",),
    ("split.child_chars=150",),
    ("split.child_overlap=80",),
    ("extract.threshold=0.2",),
    ("rerank.model=other-reranker",),
    ("embed.model=other-embedder", "dense.model=other-embedder"),
    ("parse.kinds=[page]",),
)


def measured(home: Path, questions: int, pages: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each change, and what its run was expected to cost and did (`CostReport`). A change whose row the
    folder has is not run again."""
    kept, world = home / "rows.jsonl", home / "world"
    if not world.exists():
        write(world, questions, pages=pages, seed=9, page_chars=1500)
    (home / "models.yaml").write_text(MODELS)
    rows: dict[str, Any] = dict(json_lines(kept.read_text())) if kept.exists() else {}
    store, silent = Store.create(str(home / "store")), Progress(io.StringIO(), silent=True)
    place = WorkerConfig(store.uri, "transformers", "cpu", 1)
    for sets in CHANGES:
        change = ", ".join(f"`{s}`" for s in sets) or "the recipe as it is, on a new store"
        if change not in rows:
            recipe = load_recipe(
                str(ROOT / "tests" / "support" / "fakes.yaml"), str(home / "models.yaml"), CONF, sets=sets
            )
            steps = [s.name for s in recipe.corpus] + [s.name for s in recipe.question]
            pipe = Pipeline(store, recipe, place, TaskSizes(50, 4), inline, silent)
            caps = Caps(prices=Prices(actors=dict.fromkeys(steps, 1)))
            capped, how = replace(pipe, caps=caps), EvalOptions("crag", rule="official")
            done = evaluate(capped, [world], home / "out", how)
            assert done.record.cost is not None
            rows[change] = asdict(done.record.cost)
            with kept.open("a") as file:
                file.write(json.dumps([change, rows[change]]) + "\n")
        yield change, rows[change]


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--pages", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="keeps all; without it nothing is kept")
    args = parser.parse_args()
    if args.folder is not None:
        args.folder.mkdir(parents=True, exist_ok=True)
        return report(args.folder, args.questions, args.pages)
    with tempfile.TemporaryDirectory(prefix="raypipe-estimates-") as folder:
        return report(Path(folder), args.questions, args.pages)


def report(home: Path, questions: int, pages: int) -> int:
    """Prints the table, and how many runs kept to it; the exit code."""
    over = outside = known = 0
    print("| change | calls expected | at most | made | time expected | took |\n|---|---|---|---|---|---|")
    for change, cost in measured(home, questions, pages):
        e, a = cost["estimate"], cost["actual"]
        most = "not known" if e["max_calls"] is None else f"{e['max_calls']:,}"
        calls = f"{ranged(e['calls'])} | {most} | {a['calls']:,}"
        print(f"| {change} | {calls} | {hours(e['hours'])} | {seconds(3600 * a['hours'])} |", flush=True)
        over += e["max_calls"] is not None and a["calls"] > e["max_calls"]
        if e["calls"] is not None:
            known += 1
            outside += not e["calls"][0] <= a["calls"] <= e["calls"][1]
    print(f"{over} of {len(CHANGES)} runs made more calls than their bound, {outside} of {known} lay outside")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
