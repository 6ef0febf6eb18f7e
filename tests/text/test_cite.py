"""An answer quotes the sentence that has its words, then everything that the model was shown."""

import numpy as np
import pytest

from raypipe.core.records import Quote
from raypipe.text.context import cite
from raypipe.text.evidence import overlaps

PAGE = "Velora is a film of 1994. Anna Lindqvist directed it. Olo Bran wrote the music."
OTHER = "The film festival gave Lindqvist a prize."


def stretch(source, text, start=0):
    return source, (start, start + len(text)), text


def test_the_sentence_with_most_of_the_answers_words_comes_first():
    shown = [stretch("b", OTHER, 100), stretch("a", PAGE, 10)]
    first, *rest = cite("Anna Lindqvist", shown)
    start, end = first.span
    assert (first.source, PAGE[start - 10 : end - 10]) == ("a", "Anna Lindqvist directed it.")
    assert rest == [Quote(source, span) for source, span, _ in shown]


def test_an_answer_that_stands_nowhere_quotes_what_was_shown_alone():
    assert cite("Berlin, in 2003", [stretch("a", PAGE)]) == (Quote("a", (0, len(PAGE))),)
    assert cite("the of", [stretch("a", PAGE)]) == (Quote("a", (0, len(PAGE))),)
    assert cite("Anna Lindqvist", []) == ()


def test_a_rare_word_weighs_more_than_a_common_one():
    film = "The film won. The film lost. The film ran. The heron flew."
    (first, _) = cite("film heron", [stretch("a", film)])
    assert film[slice(*first.span)] == "The heron flew."


def test_a_passage_that_is_the_sentence_is_quoted_once():
    assert cite("Lindqvist prize", [stretch("a", OTHER)]) == (Quote("a", (0, len(OTHER))),)


def test_overlap_weighs_a_rare_word_more_and_is_a_share_of_the_questions_words():
    rare, common, other = 1, 2, 3
    sentences = [np.array(w, np.uint64) for w in ([common], [rare], [common, other], [common, rare])]
    (share,) = overlaps(np.array([rare, common, common], np.uint64), sentences)
    assert share[3] == pytest.approx(1.0) and share[1] > share[0] == share[2] > 0


def test_overlap_of_a_question_without_words_or_of_no_sentences_is_zero():
    none = np.array([], np.uint64)
    assert overlaps(none, [np.array([1], np.uint64)])[0].tolist() == [0.0]
    assert overlaps(np.array([1], np.uint64), [])[0].tolist() == []
