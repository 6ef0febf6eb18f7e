"""Oracle runs: golds (correct answers) replace stages' output, to show the most that better stages could
gain.

Oracle `passages` replaces the ranking by the passages that contain a gold; remaining errors arise after it. A
question without such passages keeps its ranking. Oracle `answer` replaces each reply made from passages: by
the gold if the passages contain it, else by "i don't know". Remaining errors arise before the reply.

The golds become fields of the recipe's stages, so the recipe's digest covers them. No other step can read
them. The record names the oracle, and such a run cannot be promoted to a release.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

from raypipe.core.arrow import with_id_texts
from raypipe.core.errors import ConfError
from raypipe.core.index import Index
from raypipe.core.protocols import Ask, Bound, Kit, Reach, Step
from raypipe.core.records import (
    ABSTAINED,
    ANSWERED,
    IDK,
    INVALID,
    Gold,
    Hit,
    Question,
    Reply,
    chunk_id,
    parse_chunk_id,
)
from raypipe.metrics.losses import GoldText
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import shown_of, shows_passages, step_class
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.recipe_tables import searched
from raypipe.steps.hits import grown
from raypipe.store.index import LanceIndex

Oracle: TypeAlias = Literal["passages", "answer"]
MOST = 20  # gold passages of one question, if the replaced step has no `top`: as in recipe `local`


@dataclass(frozen=True, slots=True, kw_only=True)
class OraclePassages:
    """A step that replaces the ranking by the passages with the gold, or keeps it if there are none."""

    order: Mapping[str, tuple[str, ...]]  # question id -> chunk ids

    version: ClassVar[int] = 1

    def reads(self) -> frozenset[str]:
        return frozenset({"hits", "order"})

    def writes(self) -> frozenset[str]:
        return frozenset({"hits", "order"})

    def bound(self, question: Question, reach: Reach) -> Bound:
        put = len(self.order.get(question.id, ()))
        # 0 calls; "never": it puts no fault on a question.
        return Bound(0, replace(grown(reach, put), order=max(reach.order, put)), "never")

    def open(self, kit: Kit) -> Ask:
        async def ask(questions: list[Question]) -> list[Question]:
            return [self._put(q) for q in questions]

        return ask

    def _put(self, question: Question) -> Question:
        order, known = self.order.get(question.id, ()), {h.chunk for h in question.hits}
        more = (Hit(c, *parse_chunk_id(c)) for c in order if c not in known)
        return replace(question, hits=(*question.hits, *more), order=order or question.order)


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleAnswer:
    """A step that replies with the gold if the passages of `step` contain it, else "i don't know"."""

    step: Step  # the replaced step
    golds: Mapping[str, tuple[str, ...]]  # question id -> truths

    version: ClassVar[int] = 1

    def reads(self) -> frozenset[str]:
        return self.step.reads()

    def writes(self) -> frozenset[str]:
        return self.step.writes()

    def bound(self, question: Question, reach: Reach) -> Bound:
        return Bound(0, reach, "never")  # 0 calls; "never": it puts no fault on a question

    def shown(self, kit: Kit) -> Callable[[Sequence[Question]], Awaitable[list[str]]]:
        return shown_of(self.step, kit)

    def open(self, kit: Kit) -> Ask:
        show, names = self.shown(kit), [w.removeprefix("replies.") for w in self.writes()]

        async def ask(questions: list[Question]) -> list[Question]:
            out = []
            for q, text in zip(questions, await show(questions), strict=True):
                said = dict.fromkeys(names, self._reply(q, text))
                out.append(replace(q, replies={**q.replies, **said}))
            return out

        return ask

    def _reply(self, question: Question, text: str) -> Reply:
        truths = self.golds.get(question.id, ())
        if not truths or not (gold := GoldText(truths)).held(text):
            return Reply(IDK, ABSTAINED)
        return Reply(truths[0], INVALID if gold.denies else ANSWERED)


def require_stage(recipe: Recipe, oracle: Oracle) -> None:
    """Raises ConfError if the oracle has no stage to replace, or `answer` would replace a plugin's step."""
    stages, does = _ranking(recipe), "ranks passages"
    if oracle == "answer":
        stages, does = _answering(recipe), "answers from passages"
    if not stages:
        raise ConfError(f"--oracle {oracle}: recipe {recipe.name} has no step that {does}")
    if oracle == "answer" and (outside := [s for s in stages if s.plugin is not None]):
        raise ConfError(
            f"--oracle answer: {outside[0].name} of recipe {recipe.name} is a step from outside, and a "
            "record cannot hold such a step inside an oracle. Use --oracle passages, or a recipe whose "
            "steps that answer from passages are raypipe's own"
        )


def with_oracle(
    pipeline: Pipeline, oracle: Oracle, questions: Iterable[Question], golds: Mapping[str, Gold]
) -> tuple[Recipe, int]:
    """Returns the recipe with an oracle, and the number of questions whose golds it contains. The recipe must
    have a stage to replace (`require_stage`). For oracle `passages`, the corpus tables must be complete."""
    recipe, truths = pipeline.recipe, {q: g.answers for q, g in golds.items() if g.answers}
    stages = list(recipe.question)
    if oracle == "answer":
        put = len(truths)
        for s in _answering(recipe):
            stages[stages.index(s)] = _stage(s.name, OracleAnswer(step=s.step, golds=truths), s)
    else:
        last = _ranking(recipe)[-1]
        order = _gold_passages(pipeline, questions, truths, getattr(last.step, "top", None) or MOST)
        put = len(order)
        stages.insert(stages.index(last) + 1, _stage("oracle", OraclePassages(order=order), last))
    name, file = (f"{known}+oracle-{oracle}" for known in (recipe.name, recipe.file))
    return replace(recipe, name=name, file=file, question=tuple(stages)), put


def _answering(recipe: Recipe) -> list[Stage[Step]]:
    """Returns the stages that reply from passages, without those whose model is absent."""
    found = [s for s in recipe.question if shows_passages(s.step)]
    return [s for s in found if not getattr(getattr(s.step, "model", None), "absent", False)]


def _ranking(recipe: Recipe) -> list[Stage[Step]]:
    return [s for s in recipe.question if "order" in s.step.writes()]


def _stage(name: str, step: Any, of: Stage[Step]) -> Stage[Step]:
    """Makes a stage with the gate of `of`. Recipes record the step as MODULE:NAME: it has no short name."""
    _, plugin = step_class(f"{__name__}:{type(step).__name__}")
    return Stage(name, step, of.when, plugin)


def _gold_passages(
    pipeline: Pipeline, questions: Iterable[Question], truths: Mapping[str, tuple[str, ...]], most: int
) -> dict[str, tuple[str, ...]]:
    """Maps question ids to at most `most` passages that contain the gold, in the order of the sources. Omits
    questions without such a passage, and questions whose gold is a judgement such as yes or no."""
    index = LanceIndex(searched(pipeline.store, pipeline.recipe))
    found, everything = {}, pipeline.recipe.searches_all()
    with asyncio.Runner() as loop:
        for q in questions:
            gold = GoldText(truths.get(q.id, ()))
            if gold.truths and not gold.judgement:
                chunks = loop.run(_holding(pipeline, index, None if everything else q.sources(), gold))
                found[q.id] = tuple(dict.fromkeys(chunks))[:most]
    return {id: chunks for id, chunks in found.items() if chunks}


async def _holding(
    pipeline: Pipeline, index: Index, sources: Sequence[str] | None, gold: GoldText
) -> list[str]:
    if sources is None:
        every = pipeline.store.batches(pipeline.recipe.texts_table, ["source", "text"])
        rows = (r for batch in every for r in batch.to_pylist())
        texts = {r["source"].hex(): r["text"] for r in rows if gold.held(r["text"] or "")}
    else:
        read = zip(sources, await index.source_texts(sources), strict=True)
        texts = {s: text for s, text in read if text is not None and gold.held(text)}
    columns = ["source", "start", "parent_start", "parent_end"]
    found = pipeline.store.rows(pipeline.recipe.passages_table, "source", list(texts), columns)
    spans = with_id_texts(found.to_pylist())
    place = {s: i for i, s in enumerate(texts)}
    spans.sort(key=lambda r: (place[r["source"]], r["parent_start"], r["start"]))
    return [
        chunk_id(r["source"], (r["parent_start"], r["parent_end"]))
        for r in spans
        if gold.held(texts[r["source"]][r["parent_start"] : r["parent_end"]])
    ]
