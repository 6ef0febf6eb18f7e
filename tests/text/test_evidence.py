import math

import numpy as np
import pytest

from raypipe.text import evidence
from raypipe.text.evidence import Fitted, FittedOn
from raypipe.text.spans import TypedSpan

TEXT = "Emma is a novel. Jane Austen wrote it in 1815. It was read widely. Few books were read more."
ON = FittedOn("a file and its digest", "even rows", "log loss")


def passage(start: int, end: int, source: str = "s"):
    return source, (start, end), TEXT[start:end]


def test_sentences_keep_their_place_in_the_source():
    found = evidence.candidates([passage(17, len(TEXT))])
    assert [s.text for s in found] == [
        "Jane Austen wrote it in 1815.",
        "It was read widely.",
        "Few books were read more.",
    ]
    assert all(TEXT[slice(*s.span)] == s.text and s.source == "s" for s in found)


def test_a_sentence_cut_by_the_end_of_one_passage_is_whole_where_the_next_overlaps():
    whole = evidence.candidates([passage(0, len(TEXT))])
    for cut in range(18, 60):
        parts = [passage(cut - 5, len(TEXT)), passage(0, cut)]
        assert evidence.candidates(parts) == whole


def test_passages_apart_from_each_other_stay_apart_and_one_inside_another_adds_nothing():
    apart = evidence.candidates([passage(0, 16), passage(47, 66)])
    assert [s.text for s in apart] == ["Emma is a novel.", "It was read widely."]
    assert evidence.candidates([passage(0, len(TEXT)), passage(20, 40)]) == evidence.candidates(
        [passage(0, len(TEXT))]
    )


def test_equal_sentences_of_two_sources_count_once_where_they_are_met_first():
    found = evidence.candidates([passage(0, 16, "b"), passage(0, 16, "a")])
    assert [s.source for s in found] == ["b"]


def test_a_sentence_without_an_end_is_cut():
    endless = "word " * 1000
    found = evidence.candidates([("s", (0, len(endless)), endless)])
    assert found and all(len(s.text) <= evidence.MAX_CHARS for s in found)


def test_no_passages_and_blank_passages_have_no_sentences():
    assert evidence.candidates([]) == []
    assert evidence.candidates([("s", (0, 3), " \n ")]) == []


def test_overlap_weighs_a_rare_word_more_and_is_a_share_of_the_questions_words():
    rare, common, other = 1, 2, 3
    sentences = [np.array(w, np.uint64) for w in ([common], [rare], [common, other], [common, rare])]
    share = evidence.overlaps(np.array([rare, common, common], np.uint64), sentences)
    assert share[3] == pytest.approx(1.0) and share[1] > share[0] == share[2] > 0


def test_overlap_of_a_question_without_words_or_of_no_sentences_is_zero():
    none = np.array([], np.uint64)
    assert evidence.overlaps(none, [np.array([1], np.uint64)]).tolist() == [0.0]
    assert evidence.overlaps(np.array([1], np.uint64), []).tolist() == []


def test_features_say_how_far_the_best_is_ahead_and_what_was_found():
    parts = {"cosine": 0.5, "maxsim": 0.6, "overlap": 0.7}
    f = evidence.features(np.array([0.1, 0.9, 0.4]), 1, parts, 9, "when", TypedSpan((0, 4), 2, False))
    assert f.keys() == set(evidence.FEATURES)
    assert f["margin"] == pytest.approx(0.5) and f["choices"] == pytest.approx(math.log(2))
    assert (f["typed"], f["when"], f["who"]) == (1.0, 1.0, 0.0)
    alone = evidence.features(np.array([0.3]), 0, parts, 9, "other", None)
    assert alone["margin"] == pytest.approx(0.3) and alone["typed"] == 0.0


def test_the_probability_is_the_logistic_of_the_weighted_sum_and_never_overflows():
    f = dict.fromkeys(evidence.FEATURES, 0.0) | {"cosine": 0.5}
    assert Fitted(-1.0, {"cosine": 4.0}, ON).probability(f) == pytest.approx(1 / (1 + math.exp(-1)))
    assert Fitted(-5000.0, {}, ON).probability(f) == 0.0 and Fitted(5000.0, {}, ON).probability(f) == 1.0


def test_a_weight_for_an_unknown_feature_is_refused():
    with pytest.raises(ValueError, match="unknown feature 'luck'; known: cosine"):
        Fitted(0.0, {"luck": 1.0}, ON)
