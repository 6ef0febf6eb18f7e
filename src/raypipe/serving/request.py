"""One question over documents of its own: parsed, split and embedded in memory, for this request only.

Where a recipe shortlists pages by their snippets, the pages it drops are never parsed: the stages up to there
run over snippets alone. Knows how a recipe is run and searched; knows no store and no HTTP.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.digests import model_identity
from raypipe.core.protocols import Index, Kit
from raypipe.core.records import Fault, Question, Source
from raypipe.recipes.deadlines import DegradePolicy
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor, StageCounters, Told, fine
from raypipe.recipes.recipe import Recipe
from raypipe.store.index import MemoryIndex

T = TypeVar("T")


class SharedKit(Kit, Protocol):
    """A kit whose models serve many requests, each with an index of its own, and a sink that is told each
    piece of a reply while it is written."""

    def with_index(self, index: Index) -> SharedKit: ...
    async def away(self) -> list[str]: ...
    def with_sink(self, sink: Callable[[str], None]) -> SharedKit: ...


@dataclass(frozen=True, slots=True)
class DocumentsResult:
    """A question answered over its own documents."""

    question: Question
    index: MemoryIndex  # of the documents that were parsed
    counts: Mapping[str, StageCounters]  # by stage, both halves
    faults: tuple[Fault, ...]  # of documents that could not be read, the first of each


async def answer_over(
    recipe: Recipe,
    kit: SharedKit,
    question: Question,
    sources: Sequence[Source],
    parser: CorpusExecutor | None = None,
    rules: DegradePolicy | None = None,
    told: Told = lambda stage, seconds: None,
) -> DocumentsResult:
    """The question answered from these sources, which its citations name. The same answer as over a store.

    `parser` is the corpus half opened before, for many requests: it keeps the process that parses, which
    takes half a second to start, and counts for all of them. `rules` and `told` are those of
    `QuestionExecutor`.
    """

    async def ask(index: MemoryIndex, question: Question, stages: slice) -> Question:
        half = replace(recipe, question=recipe.question[stages])
        ask = QuestionExecutor(half, kit.with_index(index), rules=rules, told=told)
        [question] = await ask([question])
        counts.update(ask.counts)
        return question

    corpora = CorpusExecutor(recipe, kit)
    counts: dict[str, StageCounters] = dict(corpora.counts)
    faults: dict[str, Fault] = {}

    async def index_of(some: list[Source]) -> MemoryIndex:
        texts, chunks = await _beside(lambda: _split(parser or corpora, some))
        vectors = {m: await corpora.vectors(chunks, m) for m in recipe.embedders()}
        for table in (chunks, *vectors.values()):
            faults.update(_faults(table) | faults)
        return MemoryIndex(
            fine(texts), fine(chunks), {model_identity(m): fine(table) for m, table in vectors.items()}
        )

    narrowing = [i for i, s in enumerate(recipe.question) if "citations" in s.step.writes()]
    first = narrowing[-1] + 1 if narrowing else 0
    if first:
        index = await index_of([s for s in sources if s.kind != "page"])
        question = await ask(index, question, slice(0, first))
    named = set(question.sources() or ())
    index = await index_of([s for s in sources if s.id in named])
    question = await ask(index, question, slice(first, None))
    return DocumentsResult(question, index, counts, tuple(faults.values()))


async def _split(corpora: CorpusExecutor, sources: Sequence[Source]) -> tuple[pa.Table, pa.Table]:
    texts = await corpora.texts(arrow.corpus_table(sources))
    return texts, await corpora.passages(texts)


async def _beside(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Work that computes and awaits little, on a thread with a loop of its own: splitting fifty pages takes a
    second, and other requests continue meanwhile. Cancelling the caller ends the work, too."""
    doing: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []
    unwanted = threading.Event()

    async def there() -> T:
        task = asyncio.ensure_future(work())
        doing.append((asyncio.get_running_loop(), task))
        if unwanted.is_set():
            task.cancel()
        return await task

    try:
        return await asyncio.to_thread(lambda: asyncio.run(there()))
    except asyncio.CancelledError:
        unwanted.set()
        for loop, task in doing:
            with suppress(RuntimeError):  # it ended meanwhile, and its loop with it
                loop.call_soon_threadsafe(task.cancel)
        raise


def _faults(table: pa.Table) -> dict[str, Fault]:
    """The faults in a corpus table, by source."""
    rows = table.filter(pc.is_valid(table["fault"])).select(["source", "fault"]).to_pylist()
    return {r["source"]: Fault(**r["fault"]) for r in rows}
