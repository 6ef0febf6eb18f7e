"""One question through a recipe, step by step, over pages of its own: to see what each step does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raypipe.api.questions import local_kit
from raypipe.api.results import Result, outside_loop
from raypipe.api.session import Named, Session, require_graphs
from raypipe.core.arrow import corpus_table
from raypipe.core.digests import model_identity
from raypipe.core.records import Citation, Question, Source, source_id
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor
from raypipe.recipes.recipe import Recipe
from raypipe.store.index import MemoryIndex

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class WalkResult(Result):
    """What each step of the question half made of one question; a row for each."""

    SCHEMA = "step hits:int64 ranked:int64 answer outcome"
    texts: pa.Table  # one row per page: its text, the spans that a browser would not show, hashed words
    passages: pa.Table  # one row per chunk: source, start, end, and its text
    vectors: Mapping[str, pa.Table]  # model -> one row per chunk: vector, FixedSizeList of float32
    after: Mapping[str, Question]  # step -> the question after it

    @property
    def title(self) -> str:
        return next(iter(self.after.values())).text

    def rows(self) -> Iterator[Mapping[str, Any]]:
        for step, q in self.after.items():
            counts = {"hits": len(q.hits), "ranked": len(q.order)}
            yield {"step": step, **counts, "answer": q.answer, "outcome": q.outcome}

    def to_json(self) -> dict[str, Any]:
        return {"question": self.title, "steps": list(self.rows())}

    def text(self, source: str, span: tuple[int, int]) -> str:
        """A span of a page's text: what a hit or a quote stands for."""
        texts = dict(zip(self.texts["source"].to_pylist(), self.texts["text"].to_pylist(), strict=True))
        return str(texts[source][slice(*span)])


@outside_loop
def walk(
    recipe: Named, question: str, pages: Mapping[str, str], asked_at: str = "", session: Session | None = None
) -> WalkResult:
    """Takes one question through a recipe, step by step, in this process.

    `pages` is url -> HTML, in the order of the search results. Nothing is stored. Raises ConfError and
    ModelMissing.
    """
    session = session or Session()
    found = require_graphs(session.recipe(recipe))
    sources = [Source(source_id("page", html), "page", html) for html in pages.values()]
    cited = zip(pages, sources, strict=True)
    citations = tuple(Citation("q", n, url, "", s.id, None, None) for n, (url, s) in enumerate(cited))
    asked = Question("q", question, asked_at=asked_at, citations=citations)
    return asyncio.run(_walk(session, found, list(dict.fromkeys(sources)), asked))


async def _walk(session: Session, recipe: Recipe, sources: list[Source], question: Question) -> WalkResult:
    corpora = CorpusExecutor(recipe, local_kit(session, recipe))
    texts = await corpora.texts(corpus_table(sources))
    passages = await corpora.passages(texts)
    models = recipe.embedders()
    vectors = {m.name: await corpora.vectors(passages, m) for m in models}
    index = MemoryIndex(texts, passages, {model_identity(m): vectors[m.name] for m in models})
    async with local_kit(session, recipe, index) as kit:
        steps = QuestionExecutor(recipe, kit).steps([question])
        after = {name: rows[0] async for name, rows in steps}
    return WalkResult(texts, passages, vectors, after)
