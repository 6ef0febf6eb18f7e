import pytest

from raypipe.text.compare import decide
from raypipe.text.spans import read


@pytest.mark.parametrize(
    "question",
    [
        "which films did she direct?",
        "Name the members of the band.",
        "who are the members of Velora?",
        "in which years did she win?",
        "list the towns.",
        "what are the twin towns of Brask?",
    ],
)
def test_several_things_are_asked_for(question):
    assert read(question).plural


@pytest.mark.parametrize("question", ["who directed Velora?", "what is the bass?", "which film was first?"])
def test_one_thing_is_asked_for(question):
    assert not read(question).plural


def test_questions_about_today_are_told_from_others():
    assert read("what is the latest film of Velora?").timely
    assert read("Who is currently mayor of Brask?").timely
    assert not read("who was mayor of Brask in 1999?").timely


def test_a_choice_needs_two_sides_and_a_word_that_compares():
    assert read("which is longer, the Ohio or the Elbe?").choice
    assert read("between A and B, which is older?").choice
    assert not read("who or what won the oscar in 1999?").choice
    assert not read("did it rise or fall?").choice
    assert read("Ohio or Elbe: is the first one older?").yes_no


@pytest.mark.parametrize(
    ("question", "sentence", "said"),
    [
        ("which is longer, the ohio or the elbe?", "The Ohio is longer than the Elbe.", "The Ohio"),
        ("which is shorter, the ohio or the elbe?", "The Elbe is shorter than the Ohio.", "The Elbe"),
        ("which is longer, the ohio or the elbe?", "The Ohio is larger than the Elbe.", None),
        ("who won more oscars, Ada Ho or Bo Li?", "Bo Li has won more Oscars than Ada Ho.", "Bo Li"),
        ("which has fewer members, Ada or Bowen?", "Bowen has more members than Ada.", "Ada"),
        ("which club is older, Brask or Tarn?", "Brask was founded in 1912, Tarn in 2002.", "Brask"),
        ("which came out later, Brask or Tarn?", "Brask came out in 1912, Tarn in 2002.", "Tarn"),
        ("did Brask or Tarn come out first?", "Tarn came out earlier than Brask.", "Tarn"),
        ("was Brask born before Tarn?", "Brask is older than Tarn.", "yes"),
        ("is Brask older than Tarn?", "Tarn is older than Brask.", "no"),
        ("which is larger, Brask or Tarn?", "Brask is not larger than Tarn.", None),
        ("which is larger, Brask or Tarn?", "Brask is a town near Tarn.", None),
        ("which is larger, Brask or Tarn?", "Brask is larger.", None),
        ("which is larger, Brask or Tarn?", "Is Brask larger than Tarn?", None),
        ("which closed higher on May 2, Brask or Tarn?", "On May 3 Brask closed higher than Tarn.", None),
    ],
)
def test_a_comparison_is_decided_by_a_sentence_that_names_both_sides(question, sentence, said):
    found = decide(read(question), ["It rained.", sentence])
    assert (None if found is None else found.text) == said


def test_a_comparison_is_decided_by_a_value_for_each_side_where_both_are_worded_alike():
    asked = read("which is longer, the Ohio or the Elbe?")
    both = ["The Ohio is 1,579 km long.", "The Elbe is 1,112 km long."]
    found = decide(asked, both)
    assert found is not None and (found.text, sorted(found.sentences)) == ("The Ohio", [0, 1])
    assert decide(asked, [both[0], "The Elbe is 695 miles long."]) is None
    assert decide(asked, [both[0], "In 1999 the Elbe was 1,112 km long."]) is None
    assert decide(asked, both[:1]) is None


def test_a_question_that_compares_nothing_is_not_decided():
    assert decide(read("who wrote emma?"), ["Emma is older than Lady Susan."]) is None
