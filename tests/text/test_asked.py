import pytest

from raypipe.text.spans import decide, read


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
