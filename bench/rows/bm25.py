"""BM25 of one question over its passages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from bench_data import chunks, queries
from bench_rows import BenchRow, Contest
from machine import Machine
from rank_bm25 import BM25Okapi

from raypipe.text.bm25 import DEFAULTS, Bm25Corpus, scores
from raypipe.text.words import word_hash

PASSAGES, QUESTIONS = 5000, 4
CLOSE = 1e-9


def words_of(text: str) -> list[int]:
    return [word_hash(word) for word in re.findall(r"[a-z0-9]+", text.lower())]


@contextmanager
def contest(quick: bool, machine: Machine) -> Iterator[Contest]:
    held = [words_of(chunk) for chunk in chunks(quick, PASSAGES, chars=200)]
    asked = [np.array(words_of(query), np.uint64) for query in queries(quick)[:QUESTIONS]]
    size, words = len(held), np.array([word for some in held for word in some], np.uint64)
    offsets = np.concatenate([[0], np.cumsum([len(some) for some in held])])
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

    yield Contest(len(asked), ours, peer, unequal)


ROW = BenchRow(
    "BM25 (Okapi) of a question over some 4,000 passages of 200 characters",
    "questions",
    contest,
    "rank_bm25, built for each question",
    least=25,
    needs=("rank_bm25",),
    short="A question takes .6 to .9 ms of CPU, 3.6 if a word is in more than half of the passages, where "
    "Okapi's floor needs the document frequency of all words.",
)
