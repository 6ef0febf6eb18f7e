"""One question over documents of its own: parsed, split and embedded in memory, for this request only.

Where a recipe shortlists pages by their snippets, the pages it drops are never parsed: the stages up to there
run over snippets alone. Knows how a recipe is run and searched; knows no store and no HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from raypipe import arrow
from raypipe.identity import model_identity
from raypipe.index import MemoryIndex
from raypipe.kit import LocalKit
from raypipe.recipe import Recipe
from raypipe.records import Question, Source
from raypipe.run import Corpora, Questions, StageCount, fine


@dataclass(frozen=True, slots=True)
class Answered:
    """A question answered over its own documents."""

    question: Question
    index: MemoryIndex  # of the documents that were parsed
    counts: Mapping[str, StageCount]  # by stage, both halves


async def answer_over(
    recipe: Recipe, kit: LocalKit, question: Question, sources: Sequence[Source]
) -> Answered:
    """The question answered from these sources, which its citations name. The same answer as over a store."""
    corpora = Corpora(recipe, kit)
    counts: dict[str, StageCount] = dict(corpora.counts)
    narrowing = [i for i, s in enumerate(recipe.question) if "citations" in s.step.writes()]
    first = narrowing[-1] + 1 if narrowing else 0
    if first:
        light = [s for s in sources if s.kind != "page"]
        index = await _index(recipe, corpora, light)
        question = await _ask(recipe, kit, index, question, slice(0, first), counts)
    named = set(question.sources() or ())
    index = await _index(recipe, corpora, [s for s in sources if s.id in named])
    question = await _ask(recipe, kit, index, question, slice(first, None), counts)
    return Answered(question, index, counts)


async def _index(recipe: Recipe, corpora: Corpora, sources: Sequence[Source]) -> MemoryIndex:
    texts = await corpora.texts(arrow.corpus_table(sources))
    chunks = await corpora.passages(texts)
    vectors = {model_identity(m): fine(await corpora.vectors(chunks, m)) for m in recipe.embedders()}
    return MemoryIndex(fine(texts), fine(chunks), vectors)


async def _ask(
    recipe: Recipe, kit: LocalKit, index: MemoryIndex, question: Question, stages: slice,
    counts: dict[str, StageCount],
) -> Question:  # fmt: skip
    ask = Questions(replace(recipe, question=recipe.question[stages]), kit.with_index(index))
    [question] = await ask([question])
    counts.update(ask.counts)
    return question
