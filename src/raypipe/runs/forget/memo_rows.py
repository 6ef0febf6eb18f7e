"""Cached values that were computed from a text: vectors of its chunks, scores of its passages, replies to
prompts that show it.

Keys of the memo are digests of requests, so a value is found by making its request once more. An answered
question is followed through its recipe twice, with cached values in the place of models: as it was, and with
blanks in the place of the forgotten text. What only the first pass requests rests on the text; no words are
compared. Replies that no answer leads to are looked through for what the text alone says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from raypipe.core import arrow
from raypipe.core.errors import ConfError, RaypipeError
from raypipe.core.protocols import Step
from raypipe.core.records import TRACE, Question, Reply
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import StageError
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.serialize import description
from raypipe.runs.explain import as_answered, through
from raypipe.runs.forget.mentions import Mentions
from raypipe.runs.forget.target import Target
from raypipe.runs.manifest import Manifest, answer_keys
from raypipe.runs.pipeline.recipe_tables import searched, searched_at
from raypipe.store import Store, StoreError
from raypipe.store.index import IndexSpec, LanceIndex
from raypipe.store.memo.counts import CallCounts
from raypipe.store.memo.disk import StoreMemo, memo_tables, memo_versions
from raypipe.store.memo.keys import score_keys, vector_keys
from raypipe.store.memo.lookup import CacheOnlyKit, NotCached, RecordingMemo, lookup
from raypipe.store.memo.memo import MemoTable, cached

ROWS = 4096  # replies looked through at a time


@dataclass(slots=True)
class Followed:
    """What answered questions requested because of a text."""

    keys: dict[str, set[str]] = field(default_factory=dict)  # memo table -> keys
    resting: set[str] = field(default_factory=set)  # keys of answers that would be made in another way
    unfollowed: dict[str, set[str]] = field(default_factory=dict)  # why -> keys of answers

    def add(self, table: str, keys: Iterable[str]) -> None:
        self.keys.setdefault(table, set()).update(keys)


class _BlankTexts(LanceIndex):
    """An index in which the texts of some sources are blank; all else is found as before."""

    def __init__(self, spec: IndexSpec, sources: Collection[str]) -> None:
        super().__init__(spec)
        self._blank = frozenset(sources)

    async def _source_texts(self, sources: Sequence[str]) -> dict[str, str]:
        found = await super()._source_texts(sources)
        blank = {s: " " * len(found[s]) for s in self._blank & found.keys() if found[s]}
        return {**found, **blank}


class _Pass:
    """Takes questions through stages, with cached values alone, and notes what they request."""

    def __init__(self, index: LanceIndex, memo: StoreMemo) -> None:
        self._recorder = RecordingMemo(memo)
        self._kit = cached(CacheOnlyKit(LocalKit(index)), self._recorder, CallCounts())

    def stage(
        self, recipe: Recipe, stage: Stage[Step], question: Question
    ) -> tuple[set[tuple[str, str]], Question | None, str]:
        """Memo table and key of each request; the question behind the stage, or None and why."""
        self._recorder.requests.clear()
        after, why = None, ""
        try:
            after = asyncio.run(through(recipe, stage, self._kit, question))
        except StageError as e:
            gone = isinstance(e.__cause__, NotCached)
            why = f"step {stage.name}: {'a cached value is gone' if gone else e.__cause__}"
        except RaypipeError as e:
            why = f"step {stage.name}: {e}"
        return {(r.table.name, key) for r in self._recorder.requests for key in r.keys}, after, why


def follow(store: Store, target: Target, runs: Sequence[Manifest], answers: Collection[str]) -> Followed:
    """Follows stored answers of runs, by their keys."""
    found = Followed()
    done = set[tuple[str, str]]()  # recipe, answer: runs share answers
    for run in runs:
        own = {k.key for k in answer_keys(store, run.run).values()} & set(answers)
        left = sorted(key for key in own if (run.digest, key) not in done)
        done |= {(run.digest, key) for key in left}
        if left:
            _follow(store, target, run, left, found)
    return found


def _follow(store: Store, target: Target, run: Manifest, keys: Sequence[str], found: Followed) -> None:
    try:
        recipe = description(run.recipe)
    except ConfError as e:
        found.unfollowed.setdefault(str(e), set()).update(keys)
        return
    try:
        spec = searched_at(store.uri, recipe, run.tables)
        index = LanceIndex(spec)
    except (StoreError, KeyError):  # those versions are cleaned up
        spec = searched(store, recipe)
        index = LanceIndex(spec)
    memo = StoreMemo(store.uri, memo_versions(store))
    passes = _Pass(index, memo), _Pass(_BlankTexts(spec, target.sources), memo)
    table = store.rows("answers", "key", keys)
    for key, answered in zip(table["key"].to_pylist(), arrow.question.records(table), strict=True):
        if (why := _through(recipe, target, passes, key, answered, found)) is not None:
            found.unfollowed.setdefault(why, set()).add(key)


def _through(
    recipe: Recipe, target: Target, passes: tuple[_Pass, _Pass], key: str, answered: Question, found: Followed
) -> str | None:
    """Takes a question through its recipe in both ways; why that ended before the last stage, or None."""
    question = Question(answered.id, answered.text, answered.body, answered.asked_at, answered.citations)
    without = replace(question, text="", body="") if question.id in target.questions else question
    for stage in recipe.question:
        if stage.plugin is not None:  # its code is not imported
            known = as_answered(recipe, stage, question, answered)
            if known is None:
                return f"step {stage.name} is code from outside"
            question, without = known, replace(without, replies={**known.replies, **without.replies})
            continue
        requests, after, why = passes[0].stage(recipe, stage, question)
        others, instead, _ = passes[1].stage(recipe, stage, without)
        for table, request in requests - others:
            found.add(table, [request])
        if after is None:
            if requests - others:
                found.resting.add(key)
            return why
        replies = _instead(after, without, instead)
        if requests - others or any(r != replies[n] for n, r in after.replies.items() if r.label != TRACE):
            found.resting.add(key)
        question, without = after, replace(after, text=without.text, body=without.body, replies=replies)
    return None


def _instead(after: Question, without: Question, instead: Question | None) -> Mapping[str, Reply]:
    """The replies behind a stage without the text: those that it made then, and empty ones where that is not
    known."""
    known = instead.replies if instead is not None else without.replies
    return {n: known.get(n, replace(r, text="", quotes=())) for n, r in after.replies.items()}


def memo_rows(
    store: Store, passages: Collection[str], questions: Collection[str], followed: Followed, told: Mentions
) -> dict[str, set[str]]:
    """Memo table -> keys of the cached values that go. `passages`: its chunks and passages; `questions`: what
    was asked about them; `told`: what it alone says."""
    found = Followed({table: set(keys) for table, keys in followed.keys.items()})
    texts = sorted({*passages, *(p.lower() for p in passages)})
    pairs = [(q, p) for q in questions for p in texts]
    for table in memo_tables(store):
        kind, _, identity = table.partition("-")
        if kind == "embeddings":
            found.add(table, vector_keys(identity, "passage", texts))
        elif kind == "scores":
            found.add(table, score_keys(identity, pairs))
        else:
            for batch in store.batches(table, ["key", "text"], ROWS):
                replies = zip(batch["key"].to_pylist(), batch["text"].to_pylist(), strict=True)
                found.add(table, [key for key, text in replies if told(text)])
    there = {t: lookup(store, MemoTable(t), sorted(k)) for t, k in found.keys.items() if k}
    return {t: k for t, k in there.items() if k}
