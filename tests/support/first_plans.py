"""Every recipe's first plan against its run, on data that no run has seen: the table of docs/costs.md.

    python tests/support/first_plans.py [RECIPE...]     prints a row for each recipe; those named alone

An invented world, its knowledge graph behind a server on loopback, invented papers and an invented
collection. Models compute from words alone; the language model writes the world's own program where a grammar
asks for calls, and otherwise repeats the line of its chat that shares most words with the question.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import publicdata
from checkout import ROOT, SUPPORT
from reruns import WorkerKit

from raypipe.api.session import load_recipe
from raypipe.contrib.crag.api.graphs import serve_graph
from raypipe.contrib.world.collection import write_collection
from raypipe.contrib.world.write import write
from raypipe.core.conf import Conf
from raypipe.core.llm import Grammar
from raypipe.core.progress import Progress
from raypipe.core.textfile import json_lines
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.models.fake import Scripted, echo
from raypipe.readers.example_pool import ExampleRow, write_pool
from raypipe.recipes.step_contract import asked_models
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.runs.plan.planner import plan, read_questions
from raypipe.store import Store

CONF = Conf((ROOT / "conf",))
RECIPES = sorted(p.stem for p in (ROOT / "conf/recipes").glob("*.yaml"))
MORE = """
optional-llm: {kind: generator, loader: scripted, max_model_len: 8192}
minilm-tokens: {kind: tokenizer, loader: whitespace}
"""


@dataclass(frozen=True, slots=True)
class Row:
    """Calls of models and graphs of one recipe."""

    recipe: str
    expected: tuple[float, float] | None  # None: not known
    most: float
    made: int
    steps: Mapping[str, tuple[Any, float, int]]  # step -> expected, at most, made


@dataclass(frozen=True, slots=True)
class Data:
    """What the recipes are run on, in a folder."""

    folder: Path
    graphs: Mapping[str, str]
    programs: Mapping[str, str]  # question -> its program of calls

    def of(self, recipe: str) -> tuple[Path, str]:
        """The files of a recipe, and their format."""
        if recipe.startswith(("qasper", "papers")):
            return self.folder / "papers.json", "qasper"
        if recipe.startswith(("onewo", "collection")):
            return self.folder / "collection", "beir"
        return self.folder / "world", "synth"

    def said(self, chat: Any, sampling: Any, adapter: Any) -> str:
        if isinstance(sampling.constraint, Grammar):
            last = chat[-1].content
            return next((p for text, p in self.programs.items() if text in last), "None")
        return echo(chat, sampling, adapter)


def _paper(id: str) -> dict[str, Any]:
    said = [f"Sentence {n} of paper {id} says that corpus {n} has {17 * n} lines of text." for n in range(60)]
    sections = [
        {"section_name": f"Part {n}", "paragraphs": [" ".join(said[15 * n : 15 * n + 15])]} for n in range(4)
    ]
    answer = {"answer": {"extractive_spans": ["corpus 3"], "evidence": said[3:4]}}
    qas = [
        {"question": f"Which lines has corpus {n} of {id}?", "question_id": f"{id}-{n}", "answers": [answer]}
        for n in (3, 7)
    ]
    return {"title": f"Paper {id}", "abstract": f"On {id}.", "full_text": sections, "qas": qas}


@contextmanager
def data(folder: Path, questions: int = 8, pages: int = 8, page_chars: int = 4000) -> Iterator[Data]:
    """Writes all data, and serves the graph meanwhile."""
    write(folder / "world", questions, pages, seed=11, page_chars=page_chars)
    lines = list(json_lines((folder / "world/questions.jsonl").read_text()))
    write_collection(folder / "collection", 120, 6, seed=5)
    (folder / "papers.json").write_text(json.dumps({f"p{n}": _paper(f"p{n}") for n in range(4)}))
    pool = [ExampleRow(f"What is number {n}?", f"It is {n}", f"arxiv:{n}", "Since.") for n in range(12)]
    write_pool(folder / "pool.jsonl", pool)
    (folder / "public").mkdir()
    graphs = {
        **publicdata.tables(folder / "public"),
        **dict.fromkeys(("qasper-train", "qasper-train-explained"), str(folder / "pool.jsonl")),
        "world": str(folder / "world/kg"),
    }
    with serve_graph(folder / "world/kg", 0) as url:
        yield Data(folder, {**graphs, "crag-mock": url}, {x["query"]: x["kg_program"] for x in lines})


class _Kit(WorkerKit):
    def __init__(self, kit: Any, llm: Scripted) -> None:
        super().__init__(kit)
        self._llm = llm

    def generator(self, model: Any) -> Any:
        return self._llm.generate


@dataclass(frozen=True)
class _Worker(WorkerConfig):
    """A worker whose language model keeps to a script."""

    llm: Any = field(default=None, kw_only=True)

    def kit(self, index: Any) -> Any:
        return _Kit(WorkerConfig.kit(self, index), self.llm)


def first(recipe: str, where: Data, folder: Path) -> Row:
    """Plans a recipe on a new store, and runs it."""
    models = folder / "models.yaml"
    models.write_text((SUPPORT / "fake_models.yaml").read_text() + MORE)
    found = load_recipe(recipe, str(models), CONF, where.graphs)
    store = Store.create(str(folder / "store"))
    adapters = [name for m in found.models() for name, _ in m.adapters]
    llm = Scripted(where.said, adapters, max_model_len=8192)
    worker = _Worker(store.uri, "transformers", "cpu", 1, llm=llm)
    silent = Progress(io.StringIO(), silent=True)
    pipe = Pipeline(store, found, worker, TaskSizes(50, 4), inline, silent)
    files, format = where.of(recipe)
    planned = plan(pipe, *read_questions(store, [files], format))
    done = evaluate(pipe, [files], folder / "out", EvalOptions(format, check=False))
    made = {s.step: s.computed for s in done.record.steps}
    asks = {s.name for s in found.corpus if asked_models(s.step)} | {s.name for s in found.question}
    steps = [s for s in planned.steps if s.step in asks]
    known = [s.expected for s in steps]
    expected = None if None in known else (sum(n[0] for n in known), sum(n[1] for n in known))
    return Row(
        recipe,
        expected,
        sum(s.max_calls for s in steps),
        sum(made[s.step] for s in steps),
        {s.step: (s.expected, s.max_calls, made[s.step]) for s in steps if s.max_calls},
    )


def line(row: Row) -> str:
    low, high = row.expected or (None, None)
    said = "not known" if low is None else f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"| {row.recipe} | {said} | {row.most:,.0f} | {row.made:,} |"


def main(named: Sequence[str]) -> int:
    print("| recipe | calls expected | at most | made |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="raypipe-plans-") as made, data(Path(made)) as where:
        for recipe in named or RECIPES:
            folder = Path(made) / recipe
            folder.mkdir()
            row = first(recipe, where, folder)
            print(line(row), flush=True)
            if named:
                print(*(f"    {step}: {counts}" for step, counts in row.steps.items()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
