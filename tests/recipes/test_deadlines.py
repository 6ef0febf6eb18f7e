"""Deadlines and unavailable services: which stages are omitted, and that other rows are not touched."""

import asyncio
import time
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from raypipe.core import arrow
from raypipe.core.errors import Unavailable
from raypipe.core.records import ANSWERED, FAULT, IDK, Fault, Question, Reply
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import QuestionExecutor
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.steps.decide import Decide


@dataclass(frozen=True, slots=True)
class Slow:
    """Replies after a while, or not at all: `seconds` by question, None for a service that is down."""

    into: str
    seconds: tuple[tuple[str, float | None], ...] = ()
    ranks: bool = False  # writes an order in place of a reply

    version: ClassVar[int] = 1

    def reads(self):
        return frozenset()

    def writes(self):
        return frozenset({"order"} if self.ranks else {f"replies.{self.into}"})

    def open(self, kit):
        async def ask(questions):
            waits = [dict(self.seconds).get(q.id, 0.0) for q in questions]
            if None in waits:
                raise Unavailable(f"{self.into} is down")
            await asyncio.sleep(sum(waits))
            if self.ranks:
                return [replace(q, order=(f"{self.into}:0-1",)) for q in questions]
            said = Reply(self.into, ANSWERED)
            return [replace(q, replies={**q.replies, self.into: said}) for q in questions]

        return ask


def recipe(*steps, prefer=("web",)):
    stages = [Stage(s.into, s) for s in steps]
    return Recipe("made", "", (), (*stages, Stage("decide", Decide(prefer=prefer))))


def run(made, questions, degrades=False):
    return asyncio.run(QuestionExecutor(made, LocalKit(None), degrades=degrades)(questions))


def due(seconds):
    return time.time() + seconds


def test_a_slow_stage_means_i_dont_know_in_time_and_the_others_of_the_batch_are_not_touched():
    made = recipe(Slow("web", (("slow", 30.0),)))
    start = time.perf_counter()
    slow, quick, free = run(
        made,
        [Question("slow", "?", due=due(0.5)), Question("quick", "?", due=due(0.5)), Question("free", "?")],
    )
    assert time.perf_counter() - start < 1.0
    assert (slow.answer, slow.outcome, slow.degraded) == (IDK, "abstained", ("web",))
    [fault] = slow.faults
    assert (fault.step, fault.reason, fault.transient) == ("web", "late", True)
    for q in (quick, free):
        assert (q.answer, q.outcome, q.degraded, q.faults) == ("web", "answered", (), ())


@pytest.mark.slow
def test_a_stage_leaves_a_share_of_the_time_to_those_after_it():
    made = recipe(Slow("rank", (("q", 30.0),), ranks=True), Slow("web", (("q", 0.02),)))
    [q] = run(made, [Question("q", "?", due=due(1.0))])
    assert (q.answer, q.outcome, q.degraded, q.order) == ("web", "answered", ("rank",), ())


def test_with_the_time_over_nothing_is_begun_and_the_answer_is_still_one():
    made = recipe(Slow("rank", ranks=True), Slow("web"))
    [q] = run(made, [Question("q", "?", due=due(-1.0))])
    assert (q.answer, q.outcome, q.degraded) == (IDK, "abstained", ("rank", "web"))


def test_a_service_that_is_away_is_left_out_whether_or_not_there_is_a_deadline():
    made = recipe(Slow("rank", (("q", None),), ranks=True), Slow("web"))
    for at in (None, due(5.0)):
        [q] = run(made, [Question("q", "?", due=at)], True)
        assert (q.answer, q.outcome, q.degraded) == ("web", "answered", ("rank",))
        assert [(f.reason, f.transient) for f in q.faults] == [("unavailable", True)]
        with pytest.raises(Unavailable, match="rank is down"):  # a job has another worker, and another run
            run(made, [Question("q", "?", due=at)])


def test_a_gate_sends_a_question_round_a_reply_that_was_left_out():
    web = Slow("web", (("q", None),))
    instead = Stage("other", Slow("other"), {"web": (FAULT,)})
    made = replace(recipe(web, prefer=("web", "other")))
    made = replace(made, question=(made.question[0], instead, made.question[1]))
    [q] = run(made, [Question("q", "?")], True)
    assert (q.answer, q.origin, q.degraded) == ("other", "other", ("web",))


@dataclass(frozen=True, slots=True)
class Lost:
    """A generator whose engine died: the row has a transient fault of its own."""

    into: str = "web"

    version: ClassVar[int] = 1

    def reads(self):
        return frozenset()

    def writes(self):
        return frozenset({f"replies.{self.into}"})

    def open(self, kit):
        async def ask(questions):
            fault = Fault("generate:web", "engine_lost", "it died", transient=True)
            reply = {self.into: Reply("", FAULT, fault=fault)}
            return [replace(q, replies={**q.replies, **reply}, faults=(*q.faults, fault)) for q in questions]

        return ask


def test_a_lost_engine_is_asked_again_by_a_job_and_left_out_by_an_endpoint():
    made = recipe(Lost())
    [job] = run(made, [Question("q", "?")])
    assert (job.outcome, job.degraded) == ("fault", ())
    [online] = run(made, [Question("q", "?")], True)
    assert (online.answer, online.outcome, online.degraded) == (IDK, "abstained", ("web",))
    assert all(f.transient for f in (*job.faults, *online.faults))  # neither is stored


@pytest.mark.slow
def test_a_deadline_of_the_cluster_file_leaves_a_slow_row_to_do_and_stores_the_others(bench):
    pipe = bench.pipeline()
    questions = arrow.question.records(pipe.store.dataset("questions").to_table())
    slow, *others = questions
    late = Stage("slow", Slow("slow", ((slow.id, 30.0),)))
    made = replace(pipe.recipe, question=(*pipe.recipe.question[:-1], late, pipe.recipe.question[-1]))
    pipe = replace(pipe, recipe=made, worker=replace(pipe.worker, question_timeout_s=2.0))
    start = time.perf_counter()
    pipe.answer(questions)
    assert time.perf_counter() - start < 20
    done = {q.id: q for q in pipe.answers(questions)}
    assert done[slow.id].outcome == "", "what was said in haste is not kept: the row stays to do"
    assert all(done[q.id].degraded == () and done[q.id].outcome != "fault" for q in others)
    faults = pipe.store.dataset("faults").to_table().to_pylist()
    [fault] = [f for f in faults if f["step"] == "slow"]
    assert (fault["id"], fault["reason"], fault["transient"]) == (slow.id, "late", True)
