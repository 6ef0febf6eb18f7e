"""Questions in two splits are found by id, by text, and by nearly the same words."""

import pytest

from raypipe.contrib.finetune.leaks import groups, leaks

EVALUATED = {
    "e1": "Who painted The Orchard at Noon?",
    "e2": "what was the closing price of velora on march 3, 2024?",
    "e3": "Which film did Mira Tolland direct after Small Harbour?",
    "e4": "what was the closing price of orvik on march 3, 2024?",
    "e5": "how many albums has tessa blume released?",
}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("who painted the orchard at noon", "text"),
        ("The orchard at noon: who painted it?", "near"),
        ("Which films did Mira Tolland direct after Small Harbour?", "near"),
        ("what was the closing price of velora on march 4, 2024?", None),  # another day
        ("what was the closing price of celm on march 3, 2024?", None),  # another name
        ("Which film did Mira Tolland direct after Small Harbour 2?", None),  # another film by a number alone
        ("Who painted The Harbour at Dawn?", None),
        ("how many albums has ivo karr released?", None),
    ],
)
def test_a_reworded_question_is_found_and_one_about_something_else_is_not(text, kind):
    found = leaks({"t": text}, EVALUATED)
    assert [x.kind for x in found] == ([kind] if kind else [])


def test_the_same_id_is_a_leak_whatever_it_asks():
    (found,) = leaks({"e1": "How tall is it?"}, EVALUATED)
    assert found.kind == "id" and found.other == "e1"


def test_near_duplicates_are_one_group():
    made = groups(
        {
            "b": "Who painted The Orchard at Noon?",
            "a": "The orchard at noon: who painted it?",
            "c": "How many albums has Tessa Blume released?",
            "d": "who painted the orchard at noon",
        }
    )
    assert made["a"] == made["b"] == made["d"] != made["c"]
