"""Replies are read or they are unreadable; nothing is guessed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypipe.text.replies import (
    LEVELS,
    ParsedReply,
    UnreadableReply,
    read_calls,
    read_confidence,
    read_json,
    read_label,
    read_plain,
)

IDK = ParsedReply("i don't know", "abstained")
SURE_IDK = ParsedReply("i don't know", "abstained", 1.0)


@pytest.mark.parametrize(
    "text, read",
    [
        (" Paris.\n", ParsedReply("Paris.", "answered")),
        ("I don't know", IDK),
        ("Well, I DON\u2019T KNOW who it was.", IDK),
        ("invalid question", ParsedReply("invalid question", "invalid")),
        ("Invalid question.", ParsedReply("Invalid question.", "invalid")),
        ("the ticket was invalid", ParsedReply("the ticket was invalid", "answered")),
    ],
)
def test_a_plain_answer_has_the_label_of_what_it_says(text, read):
    assert read_plain(text) == read


@pytest.mark.parametrize(
    "text, label",
    [
        ("movie", "movie"),
        (" Sports.", "sports"),
        ("I think: music or finance", "finance"),  # the first in the order of the names, as db3 looks
        ("other", "open"),
        ("", "open"),
        ("\U0001f600 asdf", "open"),
    ],
)
def test_a_domain_is_the_first_name_found_and_junk_is_open(text, label):
    assert read_label(text, ("finance", "music", "sports", "movie"), "open").label == label


def test_without_a_default_a_label_that_is_not_there_is_unreadable():
    with pytest.raises(UnreadableReply, match="expected one of yes, no"):
        read_label("perhaps", ("yes", "no"), None)


def said(confidence):
    stated = {"none": "", "odd": ', "confidence": "sure"', "number": ', "confidence": 3'}.get(
        confidence, f', "confidence": "{confidence}"'
    )
    return f'{{"answer": "1999"{stated}}}'


@pytest.mark.parametrize("wanted", LEVELS)
@pytest.mark.parametrize("stated", [*LEVELS, "none", "odd", "number"])
def test_an_answer_stands_where_its_level_is_at_least_the_wanted_one(stated, wanted):
    level = stated if stated in LEVELS else "low"
    read = read_confidence(said(stated), wanted)
    if LEVELS.index(level) >= LEVELS.index(wanted):
        assert (read.text, read.label) == ("1999", "answered")
    else:
        assert (read.text, read.label) == ("i don't know", "abstained")
    assert read.confidence == LEVELS.index(level) / 2


@pytest.mark.parametrize(
    "text, read",
    [
        (
            'Sure: {"answer": "I don\'t know", "confidence": "HIGH"} .',
            ParsedReply(*("i don't know", "abstained"), 1.0),
        ),
        ('{"answer": 12, "confidence": " High "}', ParsedReply("12", "answered", 1.0)),
        (
            '{"answer": "invalid question", "confidence": "high"}',
            ParsedReply("invalid question", "invalid", 1.0),
        ),
    ],
)
def test_a_stated_confidence_goes_with_any_kind_of_answer(text, read):
    assert read_confidence(text, None) == read


@pytest.mark.parametrize(
    "text",
    ["", "1999", '{"answer": }', '{"confidence": "high"}', '{"answer": ["a"]}', '{"answer": true}', "[1]"],
)
def test_what_is_no_such_object_is_unreadable(text):
    with pytest.raises(UnreadableReply, match="expected a JSON object"):
        read_confidence(text, "low")


def test_a_json_object_is_kept_without_the_words_around_it():
    assert read_json('Here: {"a": [1, "\u00e9"]} done').text == '{"a":[1,"\u00e9"]}'
    for bad in ("no", "{'a': 1}", "{" * 100_000 + "}" * 100_000, '{"a": 1'):
        with pytest.raises(UnreadableReply):
            read_json(bad)


@pytest.mark.parametrize(
    "text, label",
    [
        ('get_movie("velora")["year"]', "answered"),
        ('```\nALL get_person("x")\nsort(None,-year)\n```', "answered"),
        ("None", "abstained"),
        (" none ", "abstained"),
    ],
)
def test_a_program_of_calls_is_one_or_none(text, label):
    assert read_calls(text).label == label


def test_what_has_no_call_in_it_is_unreadable():
    with pytest.raises(UnreadableReply, match="get_X"):
        read_calls("I would look it up.")


@given(st.text())
def test_no_text_makes_a_reader_fail_in_another_way(text):
    readers = (
        read_plain,
        read_json,
        read_calls,
        lambda t: read_label(t, ("a",), None),
        lambda t: read_confidence(t, "high"),
    )
    for read in readers:
        try:
            assert read(text).label
        except UnreadableReply as e:
            assert "expected" in str(e)
