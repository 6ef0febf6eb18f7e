"""Splitting: LangChain's windows, nested windows, token windows, sentences; always spans into the text."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypipe.text import words as split
from raypipe.text.words import character_windows, nested_windows, sentence_windows, token_windows

TEXTS = st.lists(st.text("abü😀", min_size=1, max_size=12), max_size=60).map(" ".join)


@st.composite
def windows(draw, largest=40):
    size = draw(st.integers(1, largest))
    return size, draw(st.integers(0, size - 1))


def langchain(text, size, overlap):
    """What `CharacterTextSplitter(separator=" ")` does: join words, and keep the last ones that overlap."""
    chunks, words, total = [], [], 0
    for word in (w for w in text.split(" ") if w):
        if words and total + 1 + len(word) > size:
            chunks.append(" ".join(words))
            while words and (total > overlap or total + 1 + len(word) > size):
                words = words[1:]
                total = len(" ".join(words))
        words.append(word)
        total = len(" ".join(words))
    return chunks + ([" ".join(words)] if words else [])


@given(TEXTS, windows())
def test_character_windows_are_langchains(text, window):
    assert [text[a:b] for a, b in character_windows(text, *window)] == langchain(text, *window)


GOLDEN = [  # worked out by hand
    ("aa bb cc dd", 5, 0, ["aa bb", "cc dd"]),
    ("aa bb cc dd", 5, 2, ["aa bb", "bb cc", "cc dd"]),
    ("aa bb cc dd", 8, 5, ["aa bb cc", "bb cc dd"]),
    ("a bb ccc dddd", 6, 3, ["a bb", "bb ccc", "dddd"]),
    ("a toolongword b c", 5, 2, ["a", "toolongword", "b c"]),
    ("", 5, 2, []),
    ("one", 5, 2, ["one"]),
]


@pytest.mark.parametrize("text, size, overlap, chunks", GOLDEN)
def test_golden_windows(text, size, overlap, chunks):
    assert [text[a:b] for a, b in character_windows(text, size, overlap)] == chunks
    assert langchain(text, size, overlap) == chunks


@given(TEXTS, windows())
def test_a_window_is_longer_than_its_size_only_if_it_is_one_word(text, window):
    for a, b in character_windows(text, *window):
        assert b - a <= window[0] or " " not in text[a:b]
        assert (a == 0 or text[a - 1] == " ") and (b == len(text) or text[b] == " ")


@given(TEXTS, st.integers(1, 40))
def test_without_overlap_no_word_is_lost_or_doubled(text, size):
    assert " ".join(text[a:b] for a, b in character_windows(text, size, 0)) == text


@given(TEXTS, windows(60), windows(30))
def test_every_child_stands_inside_its_parent(text, parent, child):
    rows = nested_windows(text, *parent, *child)
    assert list(dict.fromkeys(p for _, p in rows)) == character_windows(text, *parent)
    for (a, b), (start, end) in rows:
        assert start <= a < b <= end


@given(TEXTS, windows(60), windows(30))
def test_children_are_what_langchain_makes_of_each_parent(text, parent, child):
    got = [(text[slice(*p)], text[slice(*c)]) for c, p in nested_windows(text, *parent, *child)]
    assert got == [(p, c) for p in langchain(text, *parent) for c in langchain(p, *child)]


def test_a_child_in_two_overlapping_parents_has_a_row_for_each():
    rows = nested_windows("aa bb cc dd", 8, 5, 2, 0)
    assert rows.count(((3, 5), (0, 8))) == rows.count(((3, 5), (3, 11))) == 1


def test_ten_megabytes_without_a_space_are_cut():
    spans = character_windows("w" * 10_000_000 + " end", 700, 150)
    assert max(b - a for a, b in spans) == split.LONGEST_WORD
    assert "".join(["w" * (b - a) for a, b in spans[:-1]]) == "w" * 10_000_000
    assert spans[-1] == (10_000_001, 10_000_004)


@given(st.integers(0, 200), st.integers(1, 50))
def test_token_windows_without_overlap_hold_every_token_once(n, size):
    tokens = [(3 * i, 3 * i + 2) for i in range(n)]
    spans = token_windows(tokens, size, 0)
    assert len(spans) == math.ceil(n / size)
    inside = [[t for t in tokens if a <= t[0] and t[1] <= b] for a, b in spans]
    assert [t for window in inside for t in window] == tokens
    assert all(len(window) <= size for window in inside)


@given(st.integers(1, 200), windows(50))
def test_token_windows_overlap_by_as_many_tokens_as_asked(n, window):
    size, overlap = window
    spans = token_windows([(i, i + 1) for i in range(n)], size, overlap)
    assert spans[0][0] == 0 and spans[-1][1] == n
    for (_, end), (start, _) in pairwise(spans):
        assert end - start == overlap
    assert all(b - a == size for a, b in spans[:-1])
    assert len(spans) == 1 or spans[-1][1] - spans[-1][0] > overlap


def test_a_token_window_is_the_text_itself_and_not_a_decoding():
    text = "Äpfel  und Birnen"
    assert [text[slice(*s)] for s in token_windows([(0, 5), (7, 10), (11, 17)], 2, 0)] == [
        "Äpfel  und",
        "Birnen",
    ]


def test_sentences_are_cut_where_they_are_too_long():
    text = "First one. " + "Word " * 300 + "end. Last 😀 one!"
    spans = sentence_windows(text, 1000)
    assert [text[slice(*s)] for s in (spans[0], spans[-1])] == ["First one.", "Last 😀 one!"]
    assert spans[1] == (11, 1011)
    assert sentence_windows("", 10) == sentence_windows(" ", 10) == []
