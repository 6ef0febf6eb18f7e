"""The task of the question half: questions to rows of the table `answers`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import pyarrow as pa

from raypipe.core import arrow
from raypipe.core.records import Fault, Question
from raypipe.memo.disk import StoreMemo
from raypipe.models.kit import LocalKit
from raypipe.models.products import product_on
from raypipe.pipeline.answer_sources import AnswerSources
from raypipe.pipeline.dead_letters import FailedRows
from raypipe.pipeline.recipe_task import Opened, RecipeTask, in_order
from raypipe.recipes.executor import QuestionExecutor
from raypipe.store import ANSWERS, Store
from raypipe.store.index import IndexSpec, LanceIndex


@dataclass(frozen=True, slots=True)
class AnswersTask(RecipeTask):
    """Questions through the question half."""

    sources: AnswerSources  # what the questions are answered from
    index: IndexSpec
    memo: Mapping[str, int]  # memo table -> pinned version
    fresh: bool = False  # True: language models are asked again, whatever the memo has of them

    def opened(self, store: Store, kit: LocalKit) -> Opened[pa.Table]:
        memo = StoreMemo(self.worker.store, self.memo, self.fresh)
        kit = kit.with_index(LanceIndex(self.index, product_on(self.worker.device)))
        ask = QuestionExecutor(self.recipe, kit, memo, loading_s=kit.loading_s)
        recipe = self.recipe.digest()

        keys: dict[str, str] = {}  # question id -> key of its answer

        def questions_of(ids: tuple[str, ...]) -> list[Question]:
            rows = in_order(store.rows("questions", "id", ids), "id", ids)
            questions = arrow.question.records(rows)
            keys.update({q.id: self.sources.key(recipe, q) for q in questions})
            return questions

        async def compute(ids: tuple[str, ...]) -> tuple[pa.Table, FailedRows]:
            questions = questions_of(ids)
            answered = await ask(due_within(questions, self.worker.question_timeout_s))
            # With a transient fault or an omitted stage no answer is stored: the row stays pending.
            complete = [_is_complete(q) for q in answered]
            of = [self.sources.row(q) for q in questions]  # steps may narrow the citations
            kept = [(keys[q.id], r, q) for r, q, c in zip(of, answered, complete, strict=True) if c]
            failed = [q for q, c in zip(answered, complete, strict=True) if not c]
            return answers_table(kept, recipe), [(q.id, asdict(f)) for q in failed for f in _faults(q)[:1]]

        def key_of(id: str, step: str) -> str:
            if id not in keys:
                questions_of((id,))
            return keys[id]

        return Opened(ask.counts, compute, key_of, kit)


def _is_complete(question: Question) -> bool:
    """Whether its answer may be stored."""
    broken = question.outcome == "fault" or any(f.transient for f in question.faults)
    return not broken and not question.degraded


def _faults(question: Question) -> tuple[Fault, ...]:
    """The faults of an incomplete question; those of an omitted stage are its reply's."""
    known = [r.fault for r in question.replies.values() if r.fault is not None and r.fault.transient]
    omitted = [Fault(s, "omitted", "a service was unavailable", True) for s in question.degraded]
    return question.faults or tuple(known) or tuple(omitted)


def due_within(questions: list[Question], seconds: float | None) -> list[Question]:
    """The questions with a deadline that many seconds from now."""
    if seconds is None:
        return questions
    due = time.time() + seconds
    return [replace(q, due=due) for q in questions]


def answers_table(rows: list[tuple[str, str, Question]], recipe: str) -> pa.Table:
    """(key, row key, answered question) -> rows of the table `answers`."""
    table = arrow.question.table(q for _, _, q in rows)
    columns = {
        "key": pa.array([k for k, _, _ in rows], pa.string()),
        "recipe": pa.array([recipe] * len(rows), pa.string()),
        "row": pa.array([r for _, r, _ in rows], pa.string()),
        **{name: table[name] for name in table.schema.names},
    }
    return pa.table(columns, schema=ANSWERS)
