"""P(right): its features, and what `decide` does with it."""

import math

import pytest
from shelf import Shelf, asked, holds_laws, question

from raypipe.core.digests import FittedOn, half_of, seen_rows
from raypipe.core.records import IDK, Hit, Reply
from raypipe.models.kit import LocalKit
from raypipe.recipes.laws import QUESTION_LAWS, Trial
from raypipe.steps.decide import AnswerProbability, Decide, features_of

ON = FittedOn("made up", "all rows", "none")
KG = Reply("Anna Lindqvist", "answered", 0.9)
WEB = Reply("Velora was directed by Anna Lindqvist, not by her son.", "answered", logprob=-3.0)
HITS = (
    Hit("a:0-9", "a", (0, 9), {"dense": 0.75, "bm25": 4.0}),
    Hit("b:0-9", "b", (0, 9), {"dense": 0.5}),
)
ROW = question(
    "who directed velora?",
    replies={"domain": Reply("movie", "movie"), "kg": KG, "web": WEB},
    hits=HITS,
)


def fitted(threshold=0.5, bias=0.0, **weights):
    named = {name.replace("__", ".").replace("_IS_", "="): w for name, w in weights.items()}
    return AnswerProbability(threshold, bias, named, dict.fromkeys(named, 0.0), ON)


def test_a_row_knows_what_replies_state_how_ranks_part_and_whether_graph_and_web_agree():
    found = features_of(ROW, "kg", ("kg", "web"))
    assert found["confidence"] == pytest.approx(math.log(9)) and found["stated"] == 1
    assert found["agrees"] == 1 and found["alone"] == 0
    assert (found["best.dense"], found["margin.dense"]) == (0.75, 0.25)
    assert (found["best.bm25"], found["margin.bm25"]) == (4.0, 0.0)
    assert found["label.domain=movie"] == 1 and found["asked.who"] == 1 and found["asked.timely"] == 0
    assert (found["from.kg"], found["from.web"], found["denies"]) == (1, 0, 0)
    assert "logprob" not in found and not any(n.startswith("label.web") for n in found)
    web = features_of(ROW, "web", ("kg", "web"))
    assert (web["logprob"], web["logprob_word"], web["denies"], web["stated"]) == (-3.0, -0.3, 1, 0)
    assert web["share"] == pytest.approx(2 / 3) and "confidence" not in web
    alone = features_of(ROW, "kg", ("kg",))
    assert (alone["agrees"], alone["alone"]) == (0, 1)


def test_features_by_name_are_those_of_all_features():
    every = features_of(ROW, "kg", ("kg", "web"))
    for name, value in every.items():
        assert features_of(ROW, "kg", ("kg", "web"), [name]) == {name: value}
    lacking = ["best.rerank", "logprob", "label.domain=music", "asked.when"]
    assert features_of(ROW, "kg", ("kg", "web"), lacking) == {}


def test_a_number_that_a_row_lacks_counts_as_its_mean_and_a_class_as_0():
    other = AnswerProbability(0.5, 1.0, {"asked.when": 2.0}, {"asked.when": 0.5}, ON)
    assert other.of(ROW, "kg", ("kg",)) == pytest.approx(0.5)
    one = AnswerProbability(0.5, 1.0, {"logprob": 2.0}, {"logprob": -4.0}, ON)
    assert one.of(ROW, "kg", ("kg",)) == pytest.approx(1 / (1 + math.exp(-1)))
    assert one.of(ROW, "web", ("web",)) == pytest.approx(1 / (1 + math.exp(-3)))


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [(0.5, ("Anna Lindqvist", "answered", "kg", 0.9)), (0.95, (IDK, "abstained", "", 0.9))],
)
def test_decide_abstains_below_the_threshold_and_says_the_probability(threshold, expected):
    step = Decide(prefer=("kg", "web"), fitted=fitted(threshold, confidence=1.0))
    (q,) = asked(step, Shelf({}), ROW)
    assert (q.answer, q.outcome, q.origin) == expected[:3]
    assert q.replies["kg"].confidence == pytest.approx(expected[3]) and q.replies["web"] == WEB


def test_decide_with_numbers_keeps_every_law_and_says_what_it_reads():
    step = Decide(
        prefer=("kg", "web"),
        fitted=fitted(0.6, margin__dense=1.0, label__domain_IS_movie=1.0, asked__who=0.5, agrees=1.0),
    )
    assert step.reads() == {"replies.kg", "replies.web", "replies.domain", "hits", "hits.dense", "text"}
    assert {"replies.kg", "replies.web"} <= step.writes()
    other = question(
        "when?",
        replies={"domain": Reply("open", "open"), "kg": Reply(IDK, "abstained"), "web": WEB},
        hits=HITS,
        name="r",
    )
    out = holds_laws(step, Shelf({}), [ROW, other])
    for law in QUESTION_LAWS.values():
        law(Trial(step, LocalKit(None), [ROW, other], out))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"threshold": 1.5}, "threshold: expected a probability from 0 to 1, found 1.5"),
        ({"weights": {"luck": 1.0}, "means": {"luck": 0.0}}, "'luck' is no feature"),
        ({"weights": {"words": 1.0}}, "expected the same features, found 'words'"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(wrong, said):
    fields = {"threshold": 0.5, "bias": 0.0, "weights": {}, "means": {}, "fitted_on": ON, **wrong}
    with pytest.raises(ValueError, match=said):
        AnswerProbability(**fields)


def test_halves_are_about_even_and_what_was_seen_is_known_by_its_text():
    halves = [half_of(f"question {i}") for i in range(1000)]
    assert 450 < sum(halves) < 550
    on = FittedOn("d", "s", "m", seen=seen_rows(f"text {i}" for i in range(1000)))
    assert on.has_seen("text 7") and not any(on.has_seen(f"other {i}") for i in range(1000))
