"""Deadlines of questions. A stage is omitted if it is late or, at an endpoint, its service is unavailable.

Each stage before the decision (the step that chooses the answer) gets a share of the time until a question's
deadline (`Question.due`). A stage that exceeds the share is omitted, and the question continues without its
output. The field `degraded` of the question then names the stage, the stage's replies are faults, and a
transient fault gives the reason. A job does not store such a row, so the next run answers it again. If no
reply is left to answer from, the answer is "i don't know".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from raypipe.core.errors import Unavailable
from raypipe.core.protocols import Ask, Step
from raypipe.core.records import FAULT, IDK, Fault, Question, Reply
from raypipe.recipes.recipe import Stage
from raypipe.recipes.step_contract import named

SHARE = 0.75
"""Share of the remaining time that a stage may take if other stages follow before the decision. Our choice:
with a slow generator, a quarter of CRAG's 30 s is more than our slowest ranking or extract takes."""

RESERVE_S = 0.05
"""Time that the last stage before the decision leaves for the decision and for writing the response. Both
take some milliseconds."""

Clock: TypeAlias = Callable[[], float]


def limited(stage: Stage[Step], ask: Ask, last: bool, degrades: bool, clock: Clock = time.time) -> Ask:
    """Wraps a stage, so that it gets only a share of the time of each question with a deadline.

    `last` is true if only the decision follows the stage. `degrades` is true at an endpoint. There the stage
    is omitted for a question if the stage's service is unavailable, or if it puts a transient fault on the
    question. In a job `degrades` is false: Unavailable is raised, and another worker or run tries again."""

    async def whole(questions: list[Question]) -> list[Question]:
        try:
            return await ask(questions)
        except Unavailable as e:
            if not degrades:
                raise
            return [omitted(stage, q, "unavailable", str(e)) for q in questions]

    async def ask_in_time(questions: list[Question]) -> list[Question]:
        if all(q.due is None for q in questions):
            out = await whole(questions) if questions else []
        else:
            # A row with a deadline is a batch of its own: a slow row must not delay the others.
            parts = [whole([q]) if q.due is None else one(q, q.due) for q in questions]
            out = [q for part in await asyncio.gather(*parts) for q in part]
        if not degrades or len(out) != len(questions):  # the executor raises an error for a lost row
            return out
        for i, (before, after) in enumerate(zip(questions, out, strict=True)):
            # If the stage itself put a transient fault on the row, it counts as omitted.
            fresh = after.faults[len(before.faults) :]
            if after.degraded == before.degraded and any(f.transient for f in fresh):
                own = tuple(replace(f, step=stage.name) if f.transient else f for f in fresh)
                degraded = (*after.degraded, stage.name)
                out[i] = replace(after, degraded=degraded, faults=(*before.faults, *own))
        return out

    async def one(question: Question, due: float) -> list[Question]:
        left = due - clock()
        share = left - RESERVE_S if last else left * SHARE
        if share <= 0:
            return [omitted(stage, question, "late", "the question's deadline passed before it began")]
        try:
            async with asyncio.timeout(share) as limit:
                return await whole([question])
        except TimeoutError:
            if not limit.expired():
                raise
            return [omitted(stage, question, "late", f"it had {share:.3f} s of {left:.3f} s and took longer")]

    return ask_in_time


def omitted(stage: Stage[Step], question: Question, reason: str, detail: str) -> Question:
    """Marks a stage as omitted from a question, and sets the stage's replies to faults."""
    fault = Fault(stage.name, reason, detail, transient=True)
    owed = dict.fromkeys(named(stage.step.writes(), "replies"), Reply("", FAULT, fault=fault))
    return replace(
        question,
        replies={**question.replies, **owed},
        degraded=(*question.degraded, stage.name),
        faults=(*question.faults, fault),
    )


def goes_on(question: Question) -> bool:
    """Returns whether stages before the decision still run for a question. Any fault stops it, except
    transient faults of omitted stages."""
    return all(f.transient and f.step in question.degraded for f in question.faults)


def decided(ask: Ask) -> Ask:
    """Wraps the decision. If a degraded question gets no answer, the answer becomes "i don't know"."""

    async def ask_and_settle(questions: list[Question]) -> list[Question]:
        return [
            replace(q, answer=IDK, outcome="abstained", origin="")
            if q.degraded and q.outcome in ("fault", "abstained")
            else q
            for q in await ask(questions)
        ]

    return ask_and_settle
