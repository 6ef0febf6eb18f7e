"""A plan over a dataset of CRAG's size: metadata alone.

Sources are a few characters long, so that only keys, digests and tables are measured. Each has one chunk, and
each question an answer.
"""

from __future__ import annotations

import io
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from bench_rows import BenchRow, Contest
from machine import Machine

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.progress import Progress
from raypipe.core.records import Citation, Question, Source, SourceKind, source_id
from raypipe.evaluation.golds import questions_of
from raypipe.runs.pipeline.answer_operators import answers_table
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.runs.plan.planner import plan
from raypipe.store import PASSAGES, Store, commit, put, vectors_schema, write_part
from raypipe.store.sources import write_sizes

ROOT = Path(__file__).parents[2]
QUESTIONS, PAGES = 2706, 50


def add(store: Store, table: str, rows: pa.Table) -> None:
    run = uuid.uuid4().hex
    write_part(store, table, run, "0", rows, {})
    commit(store, table, run, ["0"])


def fill_questions(store: Store, count: int) -> list[str]:
    """Questions, and a page, snippet and name for each citation, as invented as can be."""
    ids: dict[str, Source] = {}
    questions = []
    for i in range(count):
        cited = []
        for rank in range(PAGES):
            texts: dict[SourceKind, str] = {
                "page": f"<p>page {i} {rank}</p>",
                "snippet": f"snippet {i} {rank}",
                "name": f"name {rank}",
            }
            named = {kind: source_id(kind, text) for kind, text in texts.items()}
            ids |= {named[k]: Source(named[k], k, texts[k]) for k in texts}
            cited.append(Citation(f"q{i}", rank, f"https://e.org/{rank}", "", *named.values()))
        questions.append(Question(f"q{i}", f"what of {i}?", citations=tuple(cited)))
    put(store, "questions", arrow.question.table(questions))
    sources = arrow.source.table(ids.values())
    write_sizes(store, "bench", sources)  # as an ingest does
    add(store, "sources", sources)
    return [s.id for s in ids.values() if s.kind != "name"]


def fill_corpus(pipe: Pipeline, sources: list[str]) -> None:
    """One chunk a source in every table of the corpus half."""
    n = len(sources)
    names = arrow.id_column(sources)
    zeros, ones = pa.array(np.zeros(n, np.int32)), pa.array(np.full(n, 5, np.int32))
    spans = pa.Table.from_arrays([names, zeros, ones, zeros, ones], schema=PASSAGES)
    pipe.store.ensure(pipe.recipe.passages_table, PASSAGES)
    add(pipe.store, pipe.recipe.passages_table, spans)
    [model] = pipe.recipe.embedders()
    row = np.zeros(model.dim, np.float32)
    row[0] = 1
    table, schema = pipe.recipe.vectors_table(model), vectors_schema(model.dim)
    pipe.store.ensure(table, schema)
    for at in range(0, n, 50_000):
        some = spans.slice(at, 50_000)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.tile(row, some.num_rows)), model.dim)
        add(pipe.store, table, pa.table([*some.columns, vectors], schema=schema))
    texts = pa.schema([pa.field("source", arrow.DIGEST, nullable=False), ("text", pa.large_string())])
    pipe.store.ensure(pipe.recipe.texts_table, texts)
    add(
        pipe.store,
        pipe.recipe.texts_table,
        pa.table([names, pa.array(["words"] * n, pa.large_string())], schema=texts),
    )


def fill_answers(pipe: Pipeline) -> None:
    recipe, questions = pipe.recipe.digest(), questions_of(pipe, None, None)
    sources = pipe.answer_sources(questions)
    rows = [(sources.key(recipe, q), sources.row(q), q) for q in questions]
    add(pipe.store, "answers", answers_table(rows, recipe))


@contextmanager
def contest(quick: bool, machine: Machine) -> Iterator[Contest]:
    with tempfile.TemporaryDirectory(prefix="raypipe-bench-") as folder:
        store = Store.create(folder)
        recipe = load_recipe(str(ROOT / "tests" / "support" / "fakes.yaml"), None, Conf((ROOT / "conf",)))
        place, silent = (
            WorkerConfig(store.uri, "transformers", "cpu", 1),
            Progress(io.StringIO(), silent=True),
        )
        pipe = Pipeline(store, recipe, place, TaskSizes(100, 10), inline, silent)
        count = 20 if quick else QUESTIONS
        fill_corpus(pipe, fill_questions(store, count))
        fill_answers(pipe)

        def ours() -> float:
            found = plan(pipe, questions_of(pipe, None, None))
            return sum((float(step.max_calls) for step in found.steps), 0.0)

        if calls := ours():
            raise SystemExit(f"the plan of a store that has everything says {calls:g} calls; expected none")
        yield Contest(count, ours)


ROW = BenchRow(
    "the plan of 2,706 questions with 50 pages each, over a store that has everything",
    "questions",
    contest,
    by="wall",
    most_s=60,
    turns=3,
)
