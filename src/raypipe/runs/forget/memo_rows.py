"""Cached values that were computed from a text: vectors of its chunks, scores of its passages, replies to
prompts that show it.

Keys of the memo are digests of requests, so a value is found by making its request once more: answered
questions are followed through their recipe with cached values in the place of models, and no model is
called. Replies are looked through as well, since one whose request cannot be made again may quote the text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from raypipe.core import arrow
from raypipe.core.errors import RaypipeError
from raypipe.core.kits import ForwardingKit
from raypipe.core.llm import Chat, Generated, Generator, Sampling
from raypipe.core.protocols import Embed, Kit, Model, Role, Score
from raypipe.core.records import Fault, Question
from raypipe.memo.disk import StoreMemo, memo_tables, memo_versions
from raypipe.memo.keys import reply_keys, score_keys, score_keys_of, vector_keys, vector_keys_of
from raypipe.memo.lookup import CacheOnlyKit, NotCached, lookup
from raypipe.memo.memo import CallCounts, MemoTable, cached, replies_of, scores_of, vectors_of
from raypipe.models.kit import LocalKit
from raypipe.pipeline.recipe_tables import searched, searched_at
from raypipe.recipes.executor import StageError
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.serialize import description
from raypipe.runs.explain import as_answered, through
from raypipe.runs.manifest import Manifest, answer_keys
from raypipe.store import Store, StoreError
from raypipe.store.index import LanceIndex

Holds = Callable[[str], bool]
"""Whether a text shows what is forgotten."""

ROWS = 4096  # replies looked through at a time


@dataclass(slots=True)
class MemoRows:
    """Keys of cached values, by table, and what could not be followed."""

    keys: dict[str, set[str]] = field(default_factory=dict)
    unfollowed: dict[str, int] = field(default_factory=dict)  # why -> answers

    def add(self, table: str, keys: Iterable[str]) -> None:
        """Adds keys of a table."""
        self.keys.setdefault(table, set()).update(keys)


class WatchedKit(ForwardingKit[Kit]):
    """A kit that notes the memo key of each request that shows a text."""

    def __init__(self, kit: Kit, holds: Holds, found: MemoRows) -> None:
        super().__init__(kit)
        self._holds, self._found = holds, found

    def embedder(self, model: Model) -> Embed:
        embed = self._kit.embedder(model)

        async def noted(texts: Sequence[str], role: Role) -> np.ndarray:
            shown = [t for t in texts if self._holds(t)]
            self._found.add(vectors_of(model).name, vector_keys(model, role, shown))
            return await embed(texts, role)

        return noted

    def reranker(self, model: Model) -> Score:
        score = self._kit.reranker(model)

        async def noted(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
            shown = [(q, p) for q, p in pairs if self._holds(p) or self._holds(q)]
            self._found.add(scores_of(model).name, score_keys(model, shown))
            return await score(pairs)

        return noted

    def generator(self, model: Model) -> Generator:
        generate = self._kit.generator(model)

        async def noted(
            chats: Sequence[Chat], sampling: Sampling, adapter: str | None = None
        ) -> list[Generated | Fault]:
            shown = [c for c in chats if any(self._holds(turn.content) for turn in c)]
            self._found.add(replies_of(model).name, reply_keys(model, shown, sampling, adapter))
            return await generate(chats, sampling, adapter)

        return noted


def memo_rows(
    store: Store, passages: Collection[str], questions: Collection[str], runs: Sequence[Manifest],
    answers: Collection[str], holds: Holds,
) -> MemoRows:  # fmt: skip
    """The cached values that show a text. `passages`: its chunks and passages; `questions`: what was asked
    about them; `answers`: keys of stored answers that rest on it; `holds` tells the text."""
    found = MemoRows()
    texts = sorted({*passages, *(p.lower() for p in passages)})
    pairs = [(q, p) for q in questions for p in texts]
    for table in memo_tables(store):
        kind, _, identity = table.partition("-")
        if kind == "embeddings":
            found.add(table, vector_keys_of(identity, "passage", texts))
        elif kind == "scores":
            found.add(table, score_keys_of(identity, pairs))
        else:
            found.add(table, _replies(store, table, holds))
    done = set[tuple[str, str]]()  # recipe, answer: runs share answers
    for run in runs:
        own = {k.key for k in answer_keys(store, run.run).values()} & set(answers)
        left = sorted(key for key in own if (run.digest, key) not in done)
        done |= {(run.digest, key) for key in left}
        if left:
            _follow(store, run, left, holds, found)
    there = {t: lookup(store, MemoTable(t), sorted(k)) for t, k in found.keys.items() if k}
    return MemoRows({t: k for t, k in there.items() if k}, found.unfollowed)


def _replies(store: Store, table: str, holds: Holds) -> Iterator[str]:
    for batch in store.batches(table, ["key", "text"], ROWS):
        for key, text in zip(batch["key"].to_pylist(), batch["text"].to_pylist(), strict=True):
            if holds(text):
                yield key


def _follow(store: Store, run: Manifest, keys: Sequence[str], holds: Holds, found: MemoRows) -> None:
    """Follows stored answers of one run through its recipe."""
    recipe = description(run.recipe)
    try:
        index = LanceIndex(searched_at(store.uri, recipe, run.tables))
    except (StoreError, KeyError):  # those versions are cleaned up
        index = LanceIndex(searched(store, recipe))
    kit = cached(CacheOnlyKit(LocalKit(index)), StoreMemo(store.uri, memo_versions(store)), CallCounts())
    watched = WatchedKit(kit, holds, found)
    for answered in arrow.question.records(store.rows("answers", "key", keys)):
        if (why := _through(recipe, answered, watched)) is not None:
            found.unfollowed[why] = found.unfollowed.get(why, 0) + 1


def _through(recipe: Recipe, answered: Question, kit: Kit) -> str | None:
    """Takes a question through its recipe once more; why that ended before the last stage, or None."""
    question: Question | None = Question(
        answered.id, answered.text, answered.body, answered.asked_at, answered.citations
    )
    for stage in recipe.question:
        assert question is not None
        if stage.plugin is not None:  # its code is not imported
            question = as_answered(recipe, stage, question, answered)
            if question is None:
                return f"step {stage.name} is code from outside"
            continue
        try:
            question = asyncio.run(through(recipe, stage, kit, question))
        except StageError as e:
            if isinstance(e.__cause__, NotCached):
                return f"step {stage.name}: a cached value is gone"
            return f"step {stage.name}: {e.__cause__}"
        except RaypipeError as e:
            return f"step {stage.name}: {e}"
    return None
