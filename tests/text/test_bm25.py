import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from raypipe.text import bm25

WORDS = st.integers(0, 12)
PASSAGES = st.lists(st.lists(WORDS, max_size=15), min_size=1, max_size=12)


def pool(passages):
    lengths = [len(p) for p in passages]
    flat = np.array([w for p in passages for w in p], np.uint64)
    return bm25.Bm25Corpus(np.cumsum([0, *lengths]).astype(np.int64), flat)


def dense(passages, query, variant="okapi", k1=1.5, b=0.75):
    """A score for every passage, 0 where the passage is no hit."""
    at, scores = bm25.scores(pool(passages), np.array(query, np.uint64), variant, k1, b)
    out = np.zeros(len(passages))
    out[at] = scores
    return out


@given(PASSAGES, st.lists(st.integers(0, 15), max_size=8))
@settings(max_examples=300, deadline=None)
def test_okapi_gives_the_scores_of_rank_bm25_for_any_passages_and_query(passages, query):
    """Words that repeat in the query, that no passage has, that most have, and empty passages among them."""
    if not any(passages):
        assert not dense(passages, query).any()
        return
    expected = BM25Okapi(passages).get_scores(query)
    assert np.allclose(dense(passages, query), expected, rtol=0, atol=1e-9)


@given(PASSAGES)
@settings(max_examples=100, deadline=None)
def test_counts_give_the_idf_that_rank_bm25_counts_in_the_passages(passages):
    if any(passages):
        expected = BM25Okapi(passages)
        found = pool(passages).frequencies
        idf = bm25.okapi_idf(len(passages), found, found)
        assert np.allclose(np.sort(idf), sorted(expected.idf.values()), rtol=0, atol=1e-12)
        assert (expected.k1, expected.b) == bm25.DEFAULTS["okapi"] == (1.5, 0.75)


def test_words_that_share_every_first_bit_have_numbers_of_their_own():
    """Two thousand words of one slot of the table, and one that comes in each of four places."""
    words = np.array([*range(2000), 7, 2**63, 7, 2**63 + 1, 7], np.uint64)
    numbers, above = bm25.numbered(words)
    assert len(set(numbers.tolist())) == 2002 and numbers[[2000, 2002, 2004]].tolist() == [numbers[7]] * 3
    assert numbers.min() >= 0 and numbers.max() < above
    assert np.sort(pool([words.tolist(), [7, 7]]).frequencies).tolist() == [*[1] * 2001, 2]


@pytest.mark.slow
@given(PASSAGES, st.lists(st.integers(0, 15), max_size=8), st.sampled_from(["okapi", "lucene"]))
@settings(max_examples=100, deadline=None)
def test_hits_are_exactly_the_passages_that_hold_a_word_of_the_query(passages, query, variant):
    at, _ = bm25.scores(pool(passages), np.array(query, np.uint64), variant, 1.2, 0.75)
    assert at.tolist() == [i for i, p in enumerate(passages) if set(p) & set(query)]


def test_lucene_equals_a_computation_by_hand_on_three_documents():
    # "the cat sat on the mat", "the dog sat", "a cat and a dog and a cat": lengths 6, 3, 8, mean 17/3
    the, cat, sat, on, mat, dog, a, and_ = range(8)
    passages = [[the, cat, sat, on, the, mat], [the, dog, sat], [a, cat, and_, a, dog, and_, a, cat]]
    mean = 17 / 3
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))  # cat stands in two of three

    def part(count, length):
        return idf * count * 2.2 / (count + 1.2 * (1 - 0.75 + 0.75 * length / mean))

    expected = [part(1, 6), 0, part(2, 8)]
    assert np.allclose(dense(passages, [cat], "lucene", 1.2), expected, atol=1e-12)


def test_okapi_equals_the_formula_by_hand_where_no_idf_is_negative():
    passages = [[0, 1, 2], [3, 4], [5, 6, 7, 0, 8], [9]]  # mean length 11/4
    idf = {0: math.log(2.5 / 2.5), 3: math.log(3.5 / 1.5)}
    norm = 1.5 * (0.25 + 0.75 * 2 / 2.75)
    assert np.allclose(dense(passages, [0, 3]), [idf[0], idf[3] * 2.5 / (1 + norm), idf[0], 0], atol=1e-12)


@pytest.mark.parametrize("variant", ["okapi", "lucene"])
def test_a_pool_without_passages_or_words_has_no_hits(variant):
    for empty in (pool([]), pool([[], []])):
        at, scores = bm25.scores(empty, np.array([1, 2], np.uint64), variant, 1.2, 0.75)
        assert len(at) == len(scores) == 0


def test_scores_of_flat_arrays_are_rank_bm25s_also_of_frequent_words():
    rng = np.random.default_rng(0)
    words = np.minimum(rng.zipf(1.3, 50_000), 20_000).astype(np.uint64)
    offsets = np.arange(501) * 100
    passages = [words[a : a + 100].tolist() for a in offsets[:-1]]
    for query in ([40, 90, 700], [1, 2, 2, 40]):  # nearly every passage has 1 and 2
        at, scores = bm25.scores(
            bm25.Bm25Corpus(offsets, words), np.array(query, np.uint64), "okapi", 1.5, 0.75
        )
        expected = BM25Okapi(passages).get_scores(query)
        assert np.allclose(scores, expected[at], atol=1e-9)
