import math

import numpy as np
import pytest

from raypipe.text import evidence
from raypipe.text.candidates import Sentence
from raypipe.text.evidence import FEATURES, Fitted, FittedOn
from raypipe.text.typed_answers import TypedSpan, read

ON = FittedOn("a file and its digest", "even rows", "log loss")


def sentence(text, **fields):
    return Sentence("s", (0, len(text)), text, **fields)


def named(question, found, spans, cosine):
    """The features of each candidate, by name."""
    words = evidence.words_of(question, found)
    made = evidence.features(read(question), found, words, spans, np.array(cosine))
    return [dict(zip(FEATURES, row, strict=True)) for row in made]


def test_the_words_of_title_and_heading_count_apart_from_those_of_the_sentence():
    found = [sentence("Jane Austen wrote it.", around="Emma"), sentence("Emma sold well.")]
    words = evidence.words_of("who wrote emma", found)
    assert words.around[0] == pytest.approx(1.0) and 1 > words.overlap[0] > 0
    assert words.around[1] == words.overlap[1]
    assert [found[0].text[m:] for m in words.marks[0]] == ["wrote it."]


def test_every_feature_of_a_candidate_has_its_column_and_a_fact_has_its_own():
    found = [
        sentence("Emma, written by: Jane Austen", label="Emma, written by", value=(18, 29), rank=1),
        sentence("Emma 2", kind="title"),
    ]
    spans = [TypedSpan((18, 29), True), TypedSpan((0, 4), True)]
    fact, title = named("who wrote Emma", found, spans, [0.7, 0.2])
    assert (fact["typed"], fact["lacks"], fact["fact"], fact["rank"]) == (1.0, 0.0, 1.0, 0.5)
    assert (fact["fact_cosine"], fact["cosine"], fact["around"]) == (0.7, 0.0, 0.0) and fact["row"] > 0
    assert title["cosine"] == 0.2 and title["ahead"] == pytest.approx(-0.5) and title["fact_cosine"] == 0.0
    assert (title["title"], title["titled"], title["typed"], title["lacks"]) == (1.0, 0.0, 0.0, 1.0)
    fact, title = named("which version of Emma is this", found, [None, TypedSpan((5, 6), True)], [0.7, 0.2])
    assert (title["titled"], title["typed"], fact["lacks"]) == (1.0, 1.0, 1.0), "a title has the version"


def test_a_fact_that_says_what_the_question_says_is_no_answer_but_to_yes_or_no():
    name, price = (
        Sentence("s", (0, 20), text, "row", "BC-12 139 EUR", label=text.partition(":")[0], value=(0, 5))
        for text in ("Model: BC-12", "BC-12, Price: 139 EUR")
    )
    assert evidence.likely("How much is the BC-12?", [name, price], 9) == [price]
    assert evidence.likely("Is there a BC-12?", [name, price], 9) == [name, price]
    assert evidence.likely("BC-12?", [name], 9) == [name], "the closest, where there is no other"


def test_a_candidate_without_a_name_or_number_of_the_question_lacks_it():
    found = [sentence("It weighs 3 kg.", around="Brio 20"), sentence("It weighs 4 kg.", around="Brio 30")]
    lacks = [row["absent"] for row in named("how heavy is the Brio 30?", found, [None] * 2, [0.5, 0.5])]
    assert lacks == [1.0, 0.0]
    assert [row["absent"] for row in named("how heavy is it?", found, [None] * 2, [0.5, 0.5])] == [0.0, 0.0]


def test_the_probability_is_the_logistic_of_the_weighted_sum_and_never_overflows():
    rows = np.zeros((1, len(FEATURES)))
    rows[0, list(FEATURES).index("cosine")] = 0.5
    assert Fitted("", -1.0, {"cosine": 4.0}, 0.5, ON).probability(rows) == pytest.approx(
        1 / (1 + math.exp(-1))
    )
    assert Fitted("", -5000.0, {}, 0.5, ON).probability(rows) == pytest.approx(0.0)
    assert Fitted("", 5000.0, {}, 0.5, ON).probability(rows) == pytest.approx(1.0)


def test_a_weight_for_an_unknown_feature_and_a_share_beyond_one_are_refused():
    with pytest.raises(ValueError, match="weights: unknown feature 'luck'; known: cosine"):
        Fitted("", 0.0, {"luck": 1.0}, 0.5, ON)
    with pytest.raises(ValueError, match="compared: expected a probability"):
        Fitted("", 0.0, {}, 1.5, ON)
