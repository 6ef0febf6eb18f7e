"""A model's reply becomes a question with exact spans, or is rejected with a reason."""

import json

import pytest

from raypipe.text.made_questions import REASONS, Rejected, doubles, place, read, words

TARN = "The lighthouse of Tarn was built in 1871 by Ann Bell. Its keepers were Ole, Per and Kai."
HALDEN = "The lighthouse of Halden was built in 1902."
FACT = {
    "question": "Who built the lighthouse of Tarn?",
    "answer": "Ann Bell",
    "quotes": ["in 1871 by Ann Bell"],
}
LIST = {
    "question": "Who kept the lighthouse of Tarn?",
    "answer": ["Ole", "Per", "Kai"],
    "quotes": ["Its keepers were Ole, Per and Kai."],
}
BOTH = {
    "question": "Is the lighthouse of Tarn or that of Halden older?",
    "answer": "Tarn",
    "quotes": ["Tarn was built in 1871", "Halden was built in 1902"],
}


def test_a_fact_has_the_span_of_its_quote():
    made = read(f"Here it is: {json.dumps(FACT)}", "fact", [TARN])
    [(passage, (start, end))] = made.quotes
    assert passage == 0 and TARN[start:end] == "in 1871 by Ann Bell" and made.answers == ("Ann Bell",)


def test_a_list_is_one_gold_whose_things_must_all_be_named():
    made = read(json.dumps(LIST), "list", [TARN])
    assert made.answers == ("Ole, Per, Kai",) and made.items == ("Ole", "Per", "Kai")


def test_a_comparison_quotes_both_passages():
    made = read(json.dumps(BOTH), "comparison", [TARN, HALDEN])
    assert [n for n, _ in made.quotes] == [0, 1] and made.answers == ("Tarn",)


def test_a_question_that_nothing_answers_has_the_abstention_as_its_gold():
    assert read('{"question": "Who painted the lighthouse?"}', "unanswerable", [TARN]).answers == (
        "i don't know",
    )


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("fact", {"question": ""}, "declined"),
        ("fact", {"question": "Who?"}, "form"),
        ("fact", {"question": "Tell me who built it"}, "form"),
        ("fact", {"question": "Who built it according to the passage?"}, "refers"),
        ("fact", {"question": "What does this document say about Tarn?"}, "refers"),
        ("fact", {"answer": ""}, "answer_form"),
        ("fact", {"answer": ["a", "b"]}, "answer_form"),
        ("fact", {"answer": {"name": "x"}}, "answer_form"),
        ("fact", {"answer": "Bob"}, "answer_not_found"),
        ("fact", {"answer": "Tarn"}, "answer_told"),
        ("fact", {"quotes": ["built by Ann Bell"]}, "quote_not_found"),
        ("fact", {"quotes": []}, "quote_not_found"),
        ("fact", {"quotes": "in 1871"}, "quote_not_found"),
        ("list", {"answer": ["Ole"]}, "answer_form"),
        ("comparison", {"answer": "Oslo"}, "no_choice"),
        ("comparison", {"quotes": ["Tarn was built in 1871"]}, "quote_not_found"),
    ],
)
def test_what_breaks_a_rule_is_rejected_with_its_reason(kind, change, reason):
    whole = {"fact": FACT, "list": LIST, "comparison": BOTH}[kind] | change
    with pytest.raises(Rejected) as e:
        read(json.dumps(whole), kind, [TARN, HALDEN] if kind == "comparison" else [TARN])
    assert e.value.reason == reason and reason in REASONS


@pytest.mark.parametrize("reply", ["no", "[1]", '{"question"', "{" * 5000])
def test_a_reply_that_is_no_object_is_rejected(reply):
    with pytest.raises(Rejected, match="not the JSON object"):
        read(reply, "fact", [TARN])


def test_a_quote_is_found_whatever_its_case_white_space_and_quotation_marks():
    assert place("He said \u201cNo\u201d twice.", 'he  said\n"no"') == (0, 12)
    assert place("abc", "") is None and place("abc", "d") is None


def test_questions_of_nearly_the_same_words_are_doubles():
    seen = [words("Who built the lighthouse of Tarn?")]
    assert doubles("who built the lighthouse of tarn", seen)
    assert not doubles("Who built the lighthouse of Halden?", [words("When was Halden founded?")])
