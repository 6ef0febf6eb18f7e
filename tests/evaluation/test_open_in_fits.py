"""Open questions of a fit: they are in no score, and a verdict holds only if they cannot turn it."""

from __future__ import annotations

import numpy as np
import pytest

from raypipe.core.digests import FittedOn
from raypipe.core.records import Hit, Question, chunk_id
from raypipe.evaluation.fit_decide import DecidedAnswer, PolicyScore, policies_of, policy_scores
from raypipe.evaluation.fit_fuse import JudgedRanking, WeighedFusion, WeightScore
from raypipe.metrics.kinds import open_kind
from raypipe.steps.decide import AnswerProbability
from raypipe.steps.fuse import Fuse

CRAG, RANKING = open_kind("crag"), open_kind("ranking")
SURE = AnswerProbability(0.5, 0.0, {"confidence": 1.0}, {"confidence": 0.0}, FittedOn("d", "s", "m"))


def answer(id: str, value: float | None, sure: float) -> DecidedAnswer:
    return DecidedAnswer(id, id, value, 0.0, value == 1, None, {"confidence": sure})


def every_answer(*open_: DecidedAnswer) -> PolicyScore:
    """Compares the fit with giving every answer. The fit withholds exactly the twenty wrong ones of forty."""
    scored = [answer(f"q{i}", *((1.0, 3.0) if i < 20 else (-1.0, -3.0))) for i in range(40)]
    fitted, every, *_ = policy_scores(scored, open_, policies_of(scored, SURE), CRAG.measures[0], None)
    assert (fitted.score, fitted.gain, fitted.open, every.score) == (0.5, None, 0, 0.0)
    return every


def withheld(n: int) -> list[DecidedAnswer]:
    return [answer(f"open{i}", None, -3.0) for i in range(n)]


def test_a_fit_of_decide_is_not_better_if_withheld_answers_without_a_verdict_could_be_right() -> None:
    found = every_answer(*withheld(30))
    assert (found.verdict, found.open) == ("cannot tell", 30)
    assert found.gain is not None and found.gain.n == 40 and found.gain.difference == 0.5


@pytest.mark.parametrize(
    "open_", [[], withheld(2), [answer(f"open{i}", None, 3.0) for i in range(99)]], ids=str
)
def test_a_fit_of_decide_is_better_if_open_answers_are_few_or_given_by_both(
    open_: list[DecidedAnswer],
) -> None:
    found = every_answer(*open_)
    assert (found.verdict, found.open) == ("better", 0)


def ranking(n: int, is_open: bool) -> JudgedRanking:
    """Two passages, of documents a and b; `dense` puts b first, `bm25` puts a first. The relevant one is
    b, or a if the question is open: a passage then has no `bm25`."""
    sources = [f"{n:03d}{x}" * 16 for x in "ab"]
    scores = [{"dense": 1.0, "bm25": 2.0}, {"dense": 2.0} if is_open else {"dense": 2.0, "bm25": 1.0}]
    hits = [Hit(chunk_id(s, (0, 1)), s, (0, 1), x) for s, x in zip(sources, scores, strict=True)]
    question, grades = Question(f"q{n}", "?", hits=tuple(hits)), {"a" if is_open else "b": 1}
    return JudgedRanking(question, question.id, grades, np.zeros((2, 2)), (("a",), ("b",)), is_open)


def dense_against_both(open_: int) -> WeightScore:
    """Compares weights that rank every question with weights that cannot rank an open one."""
    fuse = Fuse(weights={"dense": 1.0, "bm25": 1.0}, top=2)
    step = WeighedFusion(fuse, RANKING, RANKING.measures[0])
    parts = [ranking(n, n >= 30) for n in range(30 + open_)]
    ways = {"fitted": {"dense": 1.0, "bm25": 0.0}, "both": {"dense": 1.0, "bm25": 1.0}}
    _, both = step.scored(parts[:30], parts[30:], ways, None)
    assert both.gain is not None and both.gain.n == 30
    return both


@pytest.mark.parametrize(("open_", "verdict"), [(0, "better"), (3, "better"), (60, "cannot tell")])
def test_a_fit_of_fuse_is_not_better_if_questions_that_other_weights_cannot_rank_could_turn_it(
    open_: int, verdict: str
) -> None:
    found = dense_against_both(open_)
    assert (found.verdict, found.open) == (verdict, open_ if verdict == "cannot tell" else 0)
