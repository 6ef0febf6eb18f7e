"""BM25 of one question over its passages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
from rank_bm25 import BM25Okapi

from raypipe.api.bench import BenchRow, Contest
from raypipe.models.machine_limits import Machine
from raypipe.text.bm25 import DEFAULTS, Bm25Corpus, scores

PASSAGES, WORDS, VOCABULARY = 5000, 110, 30_000
QUESTIONS = 4
CLOSE = 1e-9


@contextmanager
def contest(quick: bool, machine: Machine) -> Iterator[Contest]:
    rng = np.random.default_rng(1)
    size = 200 if quick else PASSAGES
    lengths = rng.integers(WORDS // 2, WORDS * 3 // 2, size)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    words = (VOCABULARY ** rng.random(offsets[-1])).astype(np.uint64)  # Zipf's law
    asked = [(VOCABULARY ** rng.random(8)).astype(np.uint64) for _ in range(QUESTIONS)]
    held = [words[a:b].tolist() for a, b in pairwise(offsets)]
    k1, b = DEFAULTS["okapi"]

    def ours() -> list[np.ndarray]:
        found = []
        for query in asked:
            passages, came = scores(Bm25Corpus(offsets, words), query, "okapi", k1, b)
            every = np.zeros(size)
            every[passages] = came
            found.append(every)
        return found

    def peer() -> list[np.ndarray]:
        return [BM25Okapi(held).get_scores(query.tolist()) for query in asked]

    def unequal(a: list[np.ndarray], b: list[np.ndarray]) -> str:
        far = float(np.abs(np.array(a) - np.array(b)).max())
        return "" if far < CLOSE else f"scores differ by up to {far:.1e}"

    yield Contest(QUESTIONS, ours, peer, unequal)


ROW = BenchRow(
    "BM25 (Okapi) of a question over 5,000 passages of its own",
    "questions",
    contest,
    "rank_bm25, built for each question",
    least=40,
    needs=("rank_bm25",),
)
