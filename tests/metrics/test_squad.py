"""SQuAD's measures against their definition, and against values of an official evaluator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypipe.metrics.overlap import contains, exact_match, normalized, token_f1

words = st.lists(st.sampled_from(["a", "the", "An", "ann", "Bob.", "u.s.", "31", "31,000", "-"])).map(
    " ".join
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  F1-score, a (U.S.)!", "f1score us"),
        ("theatre an antler", "theatre antler"),  # articles are whole words
        ("31,000 km", "31000 km"),
        ("«Été»", "«été»"),  # only ASCII punctuation goes
        ("", ""),
    ],
)
def test_a_text_is_compared_without_case_punctuation_and_articles(text: str, expected: str) -> None:
    assert normalized(text) == expected


def test_the_best_of_several_truths_counts() -> None:
    assert exact_match("Paris", ["Lyon", "paris."]) == 1.0
    assert token_f1("the city of Paris", ["Lyon", "Paris"]) == 0.5
    assert contains("It is in Paris, France.", ["Lyon", "Paris France"]) == 1.0
    assert (exact_match("x", []), token_f1("x", []), contains("x", [])) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        ("flies for 31 minutes on one battery", "31 minutes", 1.0),
        ("31 long minutes", "31 minutes", 0.0),  # not one after the other
        ("131 minutes", "31 minutes", 0.0),  # words, not characters
        ("anything", "the", 0.0),  # nothing is left of the truth
        ("an", "the", 1.0),  # nor of both
    ],
)
def test_a_truth_is_contained_word_for_word(answer: str, truth: str, expected: float) -> None:
    assert contains(answer, [truth]) == expected


def test_token_f1_equals_the_official_values(data: Path) -> None:
    pairs = json.loads((data / "qasper/official_token_f1_pairs.json").read_text())
    assert len(pairs) == 10
    for p in pairs:
        assert token_f1(p["prediction"], [p["gold"]]) == pytest.approx(p["token_f1"]), p


@given(words, words)
def test_an_exact_match_is_contained_and_shares_all_words(answer: str, truth: str) -> None:
    exact, f1, held = (m(answer, [truth]) for m in (exact_match, token_f1, contains))
    assert exact <= held
    assert f1 == token_f1(truth, [answer])
    assert f1 == 1.0 if exact and normalized(truth) else f1 < 1 or sorted(answer.split()) != [truth]
