"""Words: what the two analyzers make of a text, and that their hashes never move."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypipe.text.words import STOP_WORDS, _lower, analyse, word_hash


def test_the_hash_of_a_word_is_pinned():
    assert word_hash("film") == 0x5B2CBEDED4014340
    assert word_hash("é") != word_hash("e")


def test_stems_drop_stop_words_and_endings():
    hashes, starts = analyse("The Films of 2012, and the films' makers", "stems")
    assert hashes.tolist() == [word_hash(w) for w in ("film", "2012", "film", "maker")]
    assert starts.tolist() == [4, 13, 27, 34]
    assert (hashes.dtype, starts.dtype) == (np.uint64, np.int32)


def test_plain_words_are_what_users_of_rank_bm25_split():
    text = "The Films\u00a0of  2012, x."
    hashes, starts = analyse(text, "plain")
    assert hashes.tolist() == [word_hash(w) for w in text.lower().split()]
    assert [text[s] for s in starts] == ["T", "F", "o", "2", "x"]


@given(st.text())
def test_plain_equals_lower_and_split_on_any_text(text):
    words = analyse(text, "plain")[0].tolist()
    assert words == [word_hash(w) for w in text.replace("\u0130", "i").lower().split()]


def test_lower_case_keeps_every_offset():
    everything = "".join(map(chr, (c for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000)))
    assert len(_lower(everything)) == len(everything)
    assert analyse("\u0130stanbul film", "stems")[1].tolist() == [0, 9]


@pytest.mark.parametrize("analyzer", ["plain", "stems"])
def test_a_text_without_words_has_none(analyzer):
    hashes, starts = analyse(" \n ", analyzer)
    assert len(hashes) == len(starts) == 0
    assert (hashes.dtype, starts.dtype) == (np.uint64, np.int32)


def test_an_unknown_analyzer_is_named():
    with pytest.raises(ValueError, match="'stem'; known: plain, stems"):
        analyse("a", "stem")


def test_there_are_33_stop_words():
    assert len(STOP_WORDS) == 33
