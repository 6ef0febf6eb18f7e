import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypipe.text.typed_answers import Kind, decide, read, typed_span


def said(question: str, sentence: str) -> str | None:
    asked = set(re.findall(r"\w+", question.lower()))
    marks = [m.start() for m in re.finditer(r"\w+", sentence) if m.group().lower() in asked]
    typed = typed_span(question.lower(), read(question).kind, sentence, marks)
    return None if typed is None else sentence[slice(*typed.span)]


@pytest.mark.parametrize(
    ("question", "sentence", "span"),
    [
        ("who wrote the mill", "The Mill was written by George Eliot in 1860.", "George Eliot"),
        ("who painted it", "It was painted by Vincent van Gogh.", "Vincent van Gogh"),
        ("who led france", "France was led by Napoleon.", "Napoleon"),
        ("who is it", "In March the rain came.", None),
        ("when did it end", "It ended on 4 July 1999 in Rome.", "4 July 1999"),
        ("when did it end", "It ended on July 4, 1999.", "July 4, 1999"),
        ("when was the 2014 cup", "The 2014 cup was held in Brazil.", None),
        ("how many seasons are there", "By 2017 it had run for five full seasons and 90 episodes.", "five"),
        ("how many people live there", "In 2010 some 1,234,567 people lived there.", "1,234,567"),
        ("how many people live there", "It was about 3.5 million in 2010.", "3.5 million"),
        ("how much did it cost", "In 1990 it cost $3.5 million.", "$3.5 million"),
        ("how much does it weigh", "It weighs 40 tonnes.", "40 tonnes"),
        ("how loud is it", "Its noise is 48 dB.", "48"),
        ("which day of the week was it", "It was a Thursday in May.", "Thursday"),
        ("what is the population of Brask", "In 2010 Brask had a population of 615,526.", "615,526"),
        ("what is the average rating of the films", "On average the 10 films are rated 6.1.", "6.1"),
        ("why is it there", "It is in Rome, since 1900.", None),
    ],
)
def test_a_span_is_of_the_kind_that_is_asked_for(question, sentence, span):
    assert said(question, sentence) == span


def test_a_time_of_day_answers_when_and_is_part_of_a_date_where_there_is_one():
    for question, sentence, span in (
        ("when does the last boat leave belmunt", "Belmunt, Last boat: 22:55", "22:55"),
        ("what time does the pool open", "Pool, Opens: 9 am", "9 am"),
        ("when was it opened", "It was opened on 3 May 1950 at 10:30.", "3 May 1950"),
    ):
        found = typed_span(question, read(question).kind, sentence, [])
        assert found.only and sentence[slice(*found.span)] == span


def test_of_several_spans_the_nearest_to_the_questions_words_is_taken():
    sentence = (
        "Built in 1901 by the city, it was sold, renamed, moved across the river and finally closed in 1950."
    )
    marks = [sentence.index("closed")]
    typed = typed_span("when was it closed", "when", sentence, marks)
    assert sentence[slice(*typed.span)] == "1950" and not typed.only


@given(
    st.text(max_size=80),
    st.text(max_size=120),
    st.sampled_from(get_args(Kind)),
    st.lists(st.integers(0, 100), max_size=3),
)
def test_any_text_gives_a_span_inside_it_or_none(question, sentence, kind, marks):
    typed = typed_span(question, kind, sentence, marks)
    assert typed is None or (0 <= typed.span[0] < typed.span[1] <= len(sentence))


def test_a_choice_needs_two_sides_and_a_word_that_compares():
    assert read("which is longer, the Ohio or the Elbe?").direction == "more"
    assert read("between A and B, which is older?").direction == "earlier"
    assert read("who or what won the oscar in 1999?").direction is None
    assert read("did it rise or fall?").direction is None
    assert read("is the Ohio longer than the Elbe?").yes_no


@pytest.mark.parametrize(
    ("question", "sentence", "said"),
    [
        ("which is longer, the ohio or the elbe?", "The Ohio is longer than the Elbe.", "The Ohio"),
        ("which is longer, the ohio or the elbe?", "The Ohio is larger than the Elbe.", None),
        ("which is shorter, the ohio or the elbe?", "The Elbe is shorter than the Ohio.", "The Elbe"),
        ("who won more oscars, Ada Ho or Bo Li?", "Bo Li has won more Oscars than Ada Ho.", "Bo Li"),
        ("which has fewer members, Ada or Bowen?", "Bowen has more members than Ada.", "Ada"),
        ("did Brask or Tarn come out first?", "Tarn came out earlier than Brask.", "Tarn"),
        ("was Brask born before Tarn?", "Brask is older than Tarn.", None),
        ("which is larger, Brask or Tarn?", "Brask is not larger than Tarn.", None),
        ("which is larger, Brask or Tarn?", "Brask is a town near Tarn.", None),
        ("which is larger, Brask or Tarn?", "Brask is larger.", None),
        ("which is larger, Brask or Tarn?", "Is Brask larger than Tarn?", None),
        ("which closed higher on May 2, Brask or Tarn?", "On May 3 Brask closed higher than Tarn.", None),
    ],
)
def test_a_comparison_is_decided_by_a_sentence_that_names_both_sides(question, sentence, said):
    found = decide(read(question), ["It rained.", sentence])
    assert (found and found[0]) == said


def test_a_question_that_compares_nothing_is_not_decided():
    assert decide(read("who wrote emma?"), ["Emma is older than Lady Susan."]) is None
