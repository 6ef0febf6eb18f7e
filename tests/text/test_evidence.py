import math

import numpy as np
import pytest

from raypipe.text import evidence
from raypipe.text.candidates import Sentence
from raypipe.text.evidence import ANSWER, RANKING, SPAN, Fitted, FittedOn, Logistic
from raypipe.text.spans import TypedSpan, read

ON = FittedOn("a file and its digest", "even rows", "log loss")
NONE = Logistic(0.0, {})


def sentence(text, **fields):
    return Sentence("s", (0, len(text)), text, **fields)


def test_overlap_weighs_a_rare_word_more_and_is_a_share_of_the_questions_words():
    rare, common, other = 1, 2, 3
    sentences = [np.array(w, np.uint64) for w in ([common], [rare], [common, other], [common, rare])]
    share = evidence.overlaps(np.array([rare, common, common], np.uint64), sentences)
    assert share[3] == pytest.approx(1.0) and share[1] > share[0] == share[2] > 0


def test_overlap_of_a_question_without_words_or_of_no_sentences_is_zero():
    none = np.array([], np.uint64)
    assert evidence.overlaps(none, [np.array([1], np.uint64)]).tolist() == [0.0]
    assert evidence.overlaps(np.array([1], np.uint64), []).tolist() == []


def test_the_words_of_title_and_heading_count_apart_from_those_of_the_sentence():
    found = [sentence("Jane Austen wrote it.", around="Emma"), sentence("Emma sold well.")]
    words = evidence.words_of("who wrote emma", found)
    assert words.around[0] == pytest.approx(1.0) and 1 > words.overlap[0] > 0
    assert words.around[1] == words.overlap[1] and words.counts == (3, 3) and words.rest == (2, 2)
    assert [found[0].text[m:] for m in words.marks[0]] == ["wrote it."]


def test_every_feature_of_a_sentence_has_its_column():
    found = [sentence("Jane Austen wrote it.", kind="item", rank=1), sentence("Who?")]
    words = evidence.words_of("who wrote emma", found)
    spans = [TypedSpan((0, 11), 1, False), None]
    made = evidence.ranking_features(read("who wrote emma"), found, words, spans, np.ones(2), np.zeros(2))
    first, second = (dict(zip(RANKING, row, strict=True)) for row in made)
    assert (first["typed"], first["item"], first["asks"], first["rank"]) == (1.0, 1.0, 0.0, 0.5)
    assert (second["typed"], second["short"], second["asks"], second["rank"]) == (0.0, 1.0, 1.0, 1.0)


def test_features_say_how_far_the_best_is_ahead_and_what_is_asked():
    raw = np.zeros((3, len(RANKING)))
    made = evidence.answer_features(read("when was it"), raw, np.array([0.1, 0.9, 0.4]), 1)
    assert made.keys() == set(ANSWER)
    assert made["margin"] == pytest.approx(0.5) and (made["when"], made["who"]) == (1.0, 0.0)
    assert evidence.answer_features(read("why"), raw[:1], np.array([0.3]), 0)["margin"] == 1.0


def test_features_of_a_span_say_how_many_there_were_and_how_near_it_stands():
    found = [sentence("Emma came out in 1815.")]
    asked, words = read("when did emma come out"), evidence.words_of("when did emma come out", found)
    made = evidence.span_features(asked, words, 0, TypedSpan((17, 21), 2, False), 0.5)
    assert made.keys() == set(SPAN)
    assert made["choices"] == pytest.approx(math.log(2)) and made["sentence"] == pytest.approx(0.0)


def test_the_probability_is_the_logistic_of_the_weighted_sum_and_never_overflows():
    made = {"cosine": 0.5}
    assert Logistic(-1.0, {"cosine": 4.0}).probability(made) == pytest.approx(1 / (1 + math.exp(-1)))
    assert Logistic(-5000.0, {}).probability(made) == 0.0 and Logistic(5000.0, {}).probability(made) == 1.0


def test_a_weight_for_an_unknown_feature_and_a_share_beyond_one_are_refused():
    with pytest.raises(ValueError, match="rank: unknown feature 'luck'; known: cosine"):
        Fitted("", {"luck": 1.0}, NONE, NONE, 0.5, ON)
    with pytest.raises(ValueError, match="span: unknown feature 'luck'"):
        Fitted("", {}, NONE, Logistic(0.0, {"luck": 1.0}), 0.5, ON)
    with pytest.raises(ValueError, match="compared: expected a probability"):
        Fitted("", {}, NONE, NONE, 1.5, ON)
