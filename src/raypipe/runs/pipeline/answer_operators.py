"""Operators that answer questions. Each runs a slice: neighbouring stages of a recipe's question steps.

    after        rows
    the start    one per question: `id`
    a slice      one per question: its whole state, in the columns of the table `answers`

A slice usually ends before a stage that calls another kind of model (`cut_by_kind`, `cut_for_gpus`). So one
block is reranked while language models write the replies of another block. A step is never cut: `iterate`
calls all its models in one slice. `QuestionExecutor` runs the stages of a slice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Literal
from weakref import WeakKeyDictionary

import pyarrow as pa

from raypipe.core import arrow
from raypipe.core.call_context import about
from raypipe.core.protocols import Step
from raypipe.core.records import Fault, Question
from raypipe.models.device import product_on
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import QuestionExecutor, StageCounters
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import asked_models, decides, named, of_turns
from raypipe.runs.pipeline import operators
from raypipe.runs.pipeline.dead_letters import FailedRows
from raypipe.runs.pipeline.operators import BlockWork, Operate, Operator, PartRows, Sink, ordered
from raypipe.runs.pipeline.recipe_tables import AnswerSources
from raypipe.runs.pipeline.tasks import RunTask, WorkerConfig
from raypipe.store import ANSWERS
from raypipe.store.index import IndexSpec, LanceIndex
from raypipe.store.memo.disk import StoreMemo

MEMOS: WeakKeyDictionary[LocalKit, tuple[str, StoreMemo]] = WeakKeyDictionary()
"""Kit of a process -> (name of the current run, the process's memo (cache) for this run)."""


@dataclass(frozen=True, slots=True)
class AnswersTask:
    """Work that answers questions with the question steps of a recipe."""

    worker: WorkerConfig
    recipe: Recipe
    run: str
    sources: AnswerSources  # what each answer depends on besides the recipe; makes the keys of answers
    index: IndexSpec
    memo: Mapping[str, int]  # memo table -> pinned version
    fresh: bool = False  # True: language models are called again even if the memo has their replies
    twice: frozenset[str] = frozenset()  # ids of questions whose chats are sent to engines again, one by one

    key: ClassVar[Literal["id"]] = "id"

    @property
    def records(self) -> tuple[str, str]:
        """Table and run of the completion records. A part (the rows of one task) with a record is done."""
        return "answers", self.run

    def operators(self) -> Sequence[Operator]:
        # No two pools can hold the same GPUs.
        cuts = cut_for_gpus if self.worker.device.startswith("cuda") else cut_by_kind
        return [StageSlice(self, *cut) for cut in cuts(self.recipe.question)]

    def memo_of(self, kit: LocalKit) -> StoreMemo:
        """Returns this process's memo (cache of calls) for this run. All slices in the process share it."""
        if MEMOS.get(kit, ("",))[0] != self.run:
            MEMOS[kit] = self.run, StoreMemo(self.worker.store, self.memo, self.fresh)
        return MEMOS[kit][1]

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        return await operators.in_turn(self, kit, [StageSlice(self, "answer", 0, len(self.recipe.question))])

    async def open_sink(self, process: str) -> Sink:
        """Opens the sink, the last function of the work. It stores answers and faults."""

        def made(rows: pa.Table) -> list[tuple[str, pa.Table]]:
            return [("answers", rows.select(ANSWERS.names).cast(ANSWERS))]

        return await operators.sink_function(self.worker, self.run, "answer", process, made)


QUEUED = 2
"""Questions in flight for each chat that a model takes at a time. Half of the questions may wait for the
longest reply of their block while the other half keeps the model busy."""

TWICE = "asked twice"
"""Name of the counters of chats that are sent twice. No stage can have this name."""

NAMES = {"generator": "generate", "reranker": "rerank", "embedder": "rank"}

Cut = tuple[str, int, int]
"""(name of a slice, index of its first stage, index after its last stage)."""

States = dict[str, tuple[Question, str, str]]
"""Question id -> state of the question, key of its answer, row key of its answer."""


def cut_by_kind(stages: Sequence[Stage[Step]]) -> list[Cut]:
    """Cuts stages into slices of neighbours that call the same kind of model.

    A stage that calls no model, or that decides the answer, joins the slice before it, if there is one.
    Stages at the beginning that only rewrite questions of a conversation join the slice of the next stage."""
    cuts, last = list[Cut](), ""
    for i, stage in enumerate(stages):
        kind = _kind(stage) or last
        if cuts and (kind == last or decides(stage.step)):
            name, first, _ = cuts.pop()
            cuts.append((name, first, i + 1))
            continue
        if cuts and all(of_turns(s.step) for s in stages[:i]):
            cuts.clear()  # the one slice of these stages
        first = cuts[-1][2] if cuts else 0
        cuts.append((NAMES.get(kind, "rank"), first, i + 1))
        last = kind
    return cuts


def cut_for_gpus(stages: Sequence[Stage[Step]]) -> list[Cut]:
    """Cuts stages into at most two slices. The first ends after the last stage with an embedder or reranker,
    since these hold a GPU. The second calls language models; if it would call none, it joins the first."""
    own = [i for i, stage in enumerate(stages) if _kinds(stage) & {"embedder", "reranker"}]
    end = own[-1] + 1 if own else 0
    if not any("generator" in _kinds(stage) for stage in stages[end:]):
        return [("rank", 0, len(stages))]
    behind = ("generate", end, len(stages))
    return [("rank", 0, end), behind] if end else [behind]


def _kinds(stage: Stage[Step]) -> set[str]:
    return {m.kind for m in asked_models(stage.step)}


def _kind(stage: Stage[Step]) -> str:
    """Returns the kind of model that decides a stage's slice: the first of generator, reranker and embedder
    that the stage calls. Returns "" if it calls no model, or only for conversations (`of_turns`)."""
    kinds = set[str]() if of_turns(stage.step) else _kinds(stage)
    return next((k for k in ("generator", "reranker", "embedder") if k in kinds), "")


@dataclass(frozen=True, slots=True)
class StageSlice:
    """Operator of some neighbouring stages of the recipe's question steps."""

    work: AnswersTask
    name: str
    first: int  # index of the first stage
    end: int  # index after the last stage

    pool: ClassVar[Literal["answer"]] = "answer"

    @property
    def in_hand(self) -> int:
        """Number of questions in flight that keeps the engines or an endpoint busy. 0: each process has one
        block at a time. With GPUs, it is 0 unless the slice is named generate. On CPUs, it is 0 unless each
        stage of the slice calls only language models, decides the answer, or is `of_turns`."""
        worker, stages = self.work.worker, self.work.recipe.question[self.first : self.end]
        if worker.device.startswith("cuda"):
            light = self.name == "generate"
        else:
            light = all(_kinds(s) == {"generator"} or decides(s.step) or of_turns(s.step) for s in stages)
        if not light:
            return 0
        most = max((worker.at_once(m) for s in stages for m in asked_models(s.step)), default=0)
        return most if most == 1 else QUEUED * most

    async def open(self, kit: LocalKit) -> Operate:
        work, recipe = self.work, self.work.recipe.digest()
        store = await work.worker.open_store()
        memo = await work.worker.tried(lambda: work.memo_of(kit))
        kit = kit.with_index(LanceIndex(work.index, product_on(work.worker.device)))
        stages = slice(self.first, self.end)
        spent = kit.spent
        ask = QuestionExecutor(work.recipe, kit, memo, loading_s=kit.loading_s, stages=stages, clock=spent)
        steps = [s.step for s in work.recipe.question[stages]]
        on_engines = [s for s in steps if any(m.loader == "vllm" for m in asked_models(s))]
        replies = [name for s in on_engines for name in named(s.writes(), "replies")]  # names of replies

        def read(ids: Sequence[str], held: States) -> None:
            """Reads questions from the store into `held`."""
            limit_s = work.worker.question_timeout_s
            due = limit_s and time.time() + limit_s
            rows = ordered(store.rows("questions", "id", ids), "id", tuple(ids))
            for q in arrow.question.records(rows):  # keys need all citations, before steps narrow them
                held[q.id] = replace(q, due=due), work.sources.key(recipe, q), work.sources.row(q)

        def begin(block: PartRows) -> BlockWork:
            held: States = {}
            if self.first:
                names = (arrow.id_texts(block.rows[name]) for name in ("key", "row"))
                states = arrow.question.records(block.rows)
                held.update({q.id: (q, k, r) for q, k, r in zip(states, *names, strict=True)})

            def key_of(id: str, stage: str) -> str:
                if id not in held:
                    read((id,), held)
                return held[id][1]

            return BlockWork(lambda ids: compute(ids, held), key_of)

        async def compute(ids: tuple[str, ...], held: States) -> tuple[pa.Table, FailedRows]:
            if not self.first:
                read(ids, held)
            before = _replied(ask)
            with about(run=work.run if work.fresh else ""):
                answered = await ask([held[i][0] for i in ids])
            if replies and _replied(ask) > before:
                start, count = spent(), ask.counts.setdefault(TWICE, StageCounters())
                again = QuestionExecutor(work.recipe, kit, stages=stages)  # without the memo
                twice = [(held[q.id][0], q) for q in answered if q.id in work.twice]
                await _count_differing(again, twice, replies, count)
                count.seconds += spent() - start
            lost: FailedRows = []
            if self.end == len(work.recipe.question):
                # Not stored: failed answers, and pending ones, with a transient fault or an omitted stage.
                lost = [(q.id, asdict(f)) for q in answered if not _complete(q) for f in _faults(q)[:1]]
                answered = [q for q in answered if _complete(q)]
            return answers_table([(*held[q.id][1:], q) for q in answered], recipe), lost

        return operators.block_function(self.pool, work.worker, work.recipe, kit, ask.counts, begin)


async def _count_differing(
    again: QuestionExecutor,
    twice: Sequence[tuple[Question, Question]],
    replies: Sequence[str],
    count: StageCounters,
) -> None:
    """Asks questions again, one by one and without the memo. Adds to `count` how many of the replies named in
    `replies` differ. `twice` has each question as it was before and after the first pass."""
    for before, first in twice:
        [second] = await again([before])
        texts = [(first.replies[name].text, second.replies[name].text) for name in replies]
        count.rows += sum(bool(a) for a, _ in texts)
        count.differ += sum(a != b for a, b in texts if a)
    for one in again.counts.values():
        count.calls.add(one.calls)


def _replied(ask: QuestionExecutor) -> int:
    """Returns the number of chats that models answered so far, without cached replies."""
    return sum(count.calls.replies.computed for count in ask.counts.values())


def _complete(question: Question) -> bool:
    transient = any(f.transient for f in question.faults)
    return question.outcome != "fault" and not question.degraded and not transient


def _faults(question: Question) -> tuple[Fault, ...]:
    """Returns a question's own faults, else its replies' transient faults, else one per omitted stage."""
    transient = [r.fault for r in question.replies.values() if r.fault is not None and r.fault.transient]
    omitted = [Fault(s, "omitted", "a service was unavailable", True) for s in question.degraded]
    return question.faults or tuple(transient) or tuple(omitted)


def answers_table(rows: list[tuple[str, str, Question]], recipe: str) -> pa.Table:
    """Makes rows of the table `answers` from (key, row key, answered question). `recipe` is a digest."""
    table = arrow.question.table(q for _, _, q in rows)
    ids = {"key": [k for k, _, _ in rows], "recipe": [recipe] * len(rows), "row": [r for _, r, _ in rows]}
    columns = {name: arrow.id_column(of) for name, of in ids.items()}
    return pa.table({**columns, **{n: table[n] for n in table.schema.names}}, schema=ANSWERS)
