"""Sentences to vectors, one thread."""

from __future__ import annotations

from contextlib import AbstractContextManager

from bench_data import real_sentences
from bench_rows import BenchRow, Contest
from embedding import against_sentence_transformers
from machine import Machine


def contest(quick: bool, machine: Machine) -> AbstractContextManager[Contest]:
    return against_sentence_transformers(real_sentences(quick, 8 if quick else 120), machine)


ROW = BenchRow(
    "120 sentences to MiniLM's vectors, float32, one thread",
    "sentences",
    contest,
    "sentence-transformers",
    "GEMM fp32",
    least=2.6,
    needs=("sentence_transformers",),
    short="The chip decides: 3.25 at 243 GFLOP/s of a core, 1.81 at 111, of which we use .82.",
)
