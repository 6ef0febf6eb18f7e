"""Gates: who is let into a step, and what the others look like afterwards."""

import asyncio
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from raypipe.core.errors import LawBroken
from raypipe.core.records import ANSWERED, SKIPPED_REPLY, Fault, Question, Reply
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import QuestionExecutor
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.steps.decide import Decide


@dataclass(frozen=True, slots=True)
class Say:
    """Replies with a text that is looked up by question."""

    into: str
    says: tuple[tuple[str, str], ...]  # question id, label

    version: ClassVar[int] = 1

    def reads(self):
        return frozenset()

    def writes(self):
        return frozenset({f"replies.{self.into}"})

    def open(self, kit):
        async def ask(questions):
            labels = dict(self.says)
            return [
                replace(q, replies={**q.replies, self.into: Reply(f"{self.into} {q.id}", labels[q.id])})
                for q in questions
            ]

        return ask


@dataclass(frozen=True, slots=True)
class Rank:
    """Writes an order, and breaks on the questions it is told to."""

    breaks: tuple[str, ...] = ()

    version: ClassVar[int] = 1

    def reads(self):
        return frozenset()

    def writes(self):
        return frozenset({"order"})

    def open(self, kit):
        async def ask(questions):
            lost = Fault("rank", "broken", "as told", transient=False)
            return [
                replace(q, faults=(*q.faults, lost)) if q.id in self.breaks else replace(q, order=("s:0-1",))
                for q in questions
            ]

        return ask


KG = Say("kg", (("a", ANSWERED), ("b", "abstained"), ("c", "movie")))
WEB = Say("web", (("a", ANSWERED), ("b", ANSWERED), ("c", ANSWERED)))
NO_KG = {"kg": ("abstained", "movie")}


def recipe(*stages):
    return Recipe("made", "", (), (*stages, Stage("decide", Decide(prefer=("kg", "web")))))


def asked(made, questions):
    ask = QuestionExecutor(made, LocalKit(None))
    return asyncio.run(ask(questions)), ask.counts


ROWS = [Question(i, f"question {i}") for i in "abc"]


def test_a_gate_lets_in_the_rows_whose_replies_have_a_listed_label():
    out, counts = asked(recipe(Stage("kg", KG), Stage("web", WEB, NO_KG)), ROWS)
    assert [q.id for q in out] == ["a", "b", "c"]
    assert [q.replies["web"].label for q in out] == ["skipped", ANSWERED, ANSWERED]
    assert [q.answer for q in out] == ["kg a", "web b", "web c"]
    assert (counts["web"].rows, counts["web"].skipped) == (3, 1)


def test_a_skipped_row_looks_skipped_even_where_an_old_reply_is_stored():
    old = replace(ROWS[0], replies={"web": Reply("an old answer", ANSWERED)})
    [out], _ = asked(recipe(Stage("kg", KG), Stage("web", WEB, NO_KG)), [old])
    assert out.replies["web"] == SKIPPED_REPLY


def test_a_step_that_writes_no_reply_leaves_skipped_rows_as_they_are():
    before = replace(ROWS[0], order=("t:0-1",))
    [out], _ = asked(recipe(Stage("kg", KG), Stage("rank", Rank(), NO_KG)), [before])
    assert out.order == ("t:0-1",)


def test_every_reply_that_a_gate_names_must_match_and_a_missing_one_never_does():
    gate = {"kg": ("abstained", "movie"), "domain": ("movie",)}
    out, _ = asked(recipe(Stage("kg", KG), Stage("web", WEB, gate)), ROWS)
    assert {q.replies["web"].label for q in out} == {"skipped"}


def test_a_row_whose_ranking_broke_goes_no_further_and_has_the_outcome_fault():
    stages = (Stage("rank", Rank(breaks=("b",))), Stage("kg", KG), Stage("web", WEB))
    out, counts = asked(recipe(*stages), ROWS)
    assert [q.outcome for q in out] == ["answered", "fault", "answered"]
    assert out[1].answer == "" and out[1].faults[0].reason == "broken"
    assert (counts["rank"].faults, counts["kg"].skipped) == (1, 1)


def test_a_step_that_loses_a_question_is_a_defect():
    @dataclass(frozen=True, slots=True)
    class Loses(Rank):
        def open(self, kit):
            async def ask(questions):
                return questions[1:]

            return ask

    with pytest.raises(LawBroken, match="lose must return exactly the questions it was given"):
        asyncio.run(
            QuestionExecutor(
                recipe(Stage("lose", Loses()), Stage("kg", KG), Stage("web", WEB)), LocalKit(None)
            )(ROWS)
        )
