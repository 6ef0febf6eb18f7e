"""The fakes compute: equal numbers in every process, unit rows, and they can tell texts apart."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypipe.models import fake

TEXTS = ["", "?!", "A harbour at dusk.", "harbour harbour dusk", "naïve Ünïcode 数字 12"]


def test_hash_vectors_are_equal_in_every_process() -> None:
    script = (
        "from raypipe.models import fake; import sys;"
        f"sys.stdout.buffer.write(fake.HashEmbedder(64).embed({TEXTS!r}, 'query').tobytes())"
    )
    ours = fake.HashEmbedder(64).embed(TEXTS, "query").tobytes()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        assert (
            subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, check=True).stdout
            == ours
        )


@given(st.lists(st.text(), min_size=1, max_size=5), st.integers(1, 70))
def test_hash_vectors_are_unit_rows_for_any_text_and_any_dim(texts: list[str], dim: int) -> None:
    vectors = fake.HashEmbedder(dim).embed(texts, "passage")
    assert vectors.shape == (len(texts), dim) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    alone = np.concatenate([fake.HashEmbedder(dim).embed([t], "passage") for t in texts])
    np.testing.assert_array_equal(vectors, alone)


def test_texts_that_share_words_are_nearer_than_texts_that_do_not() -> None:
    a, b, c = fake.HashEmbedder(256).embed(
        ["a boat in the harbour", "the harbour boat", "rye bread"], "passage"
    )
    assert a @ b > 0.6 > 0.2 > a @ c


def test_overlap_is_the_share_of_common_words() -> None:
    scores = fake.OverlapReranker().score(
        [("red boat", "red boat"), ("red boat", "a red kite"), ("red boat", "rye"), ("red boat", "")]
    )
    assert scores.dtype == np.float32
    assert scores.tolist() == pytest.approx([1, 1 / 6**0.5, 0, 0])


def test_whitespace_tokens_are_spans_of_the_text() -> None:
    text = "  two\twords\n"
    assert [text[a:b] for a, b in fake.whitespace(text)] == ["two", "words"]
    assert fake.whitespace(" ") == []
