"""Search of one question's own documents: parsed, split and embedded in memory, for this request only.

If a recipe shortlists pages by their snippets, its stages up to the shortlist run over snippets and names
only, and dropped pages are never parsed. The module reads no store and depends on no HTTP.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.digests import model_identity
from raypipe.core.records import Fault, Question, Source
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor, StageCounters, fine
from raypipe.recipes.recipe import Recipe
from raypipe.serving.serve_kit import SharedKit
from raypipe.store.index import MemoryIndex

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DocumentsResult:
    question: Question
    index: MemoryIndex  # the searchable documents
    counts: Mapping[str, StageCounters]  # by stage, of both halves; a shared parser's work is missing
    faults: tuple[Fault, ...]  # the first fault of each source that failed in the corpus half


async def answer_over_documents(
    recipe: Recipe,
    kit: SharedKit,
    question: Question,
    sources: Sequence[Source],
    parser: CorpusExecutor | None = None,
    degrades: bool = False,
    on_stage: Callable[[str, float | None], None] = lambda stage, seconds: None,
) -> DocumentsResult:
    """Runs the recipe on a question, searching only those of `sources` that the question cites.

    `sources` are the request's documents. `parser` is an executor that parses and splits for many requests,
    since its parsing process takes half a second to start. Its counters add up over all requests, so the
    result lacks them. `degrades` and `on_stage` are passed to `QuestionExecutor`."""

    async def run_stages(index: MemoryIndex, question: Question, stages: slice) -> Question:
        half = replace(recipe, question=recipe.question[stages])
        execute = QuestionExecutor(half, kit.with_index(index), degrades=degrades, on_stage=on_stage)
        [question] = await execute([question])
        counts.update(execute.counts)
        return question

    corpora = CorpusExecutor(recipe, kit)
    counts: dict[str, StageCounters] = dict(corpora.counts)
    faults: dict[str, Fault] = {}

    async def index_of(some: list[Source]) -> MemoryIndex:
        async def split() -> tuple[pa.Table, pa.Table]:
            texts = await (parser or corpora).texts(arrow.corpus_table(some))
            return texts, await (parser or corpora).passages(texts)

        texts, chunks = await _on_thread(split)
        vectors = {m: await corpora.vectors(chunks, m) for m in recipe.embedders()}
        for table in (chunks, *vectors.values()):
            for row in table.filter(pc.is_valid(table["fault"])).select(["source", "fault"]).to_pylist():
                faults.setdefault(row["source"], Fault(**row["fault"]))
        return MemoryIndex(
            fine(texts), fine(chunks), {model_identity(m): fine(table) for m, table in vectors.items()}
        )

    narrowing = [i for i, s in enumerate(recipe.question) if "citations" in s.step.writes()]
    first = narrowing[-1] + 1 if narrowing else 0
    if first:
        index = await index_of([s for s in sources if s.kind != "page"])
        question = await run_stages(index, question, slice(0, first))
    named = set(question.sources() or ())
    index = await index_of([s for s in sources if s.id in named])
    question = await run_stages(index, question, slice(first, None))
    return DocumentsResult(question, index, counts, tuple(faults.values()))


async def _on_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs CPU-bound async `work` on a thread with its own event loop, so that other requests continue:
    splitting fifty pages takes a second. Cancelling the caller also cancels `work`."""
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []
    cancelled = threading.Event()

    async def run() -> T:
        task = asyncio.ensure_future(work())
        running.append((asyncio.get_running_loop(), task))
        if cancelled.is_set():
            task.cancel()
        return await task

    try:
        return await asyncio.to_thread(lambda: asyncio.run(run()))
    except asyncio.CancelledError:
        cancelled.set()
        for loop, task in running:
            with suppress(RuntimeError):  # the work ended meanwhile, and its loop is closed
                loop.call_soon_threadsafe(task.cancel)
        raise
