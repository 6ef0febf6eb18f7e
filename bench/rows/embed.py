"""Chunks of 700 characters to vectors, one thread."""

from __future__ import annotations

from contextlib import AbstractContextManager

from bench_data import chunks
from bench_rows import BenchRow, Contest
from embedding import against_sentence_transformers
from machine import Machine


def contest(quick: bool, machine: Machine) -> AbstractContextManager[Contest]:
    return against_sentence_transformers(chunks(quick, 4 if quick else 48), machine)


ROW = BenchRow(
    "48 chunks of 700 characters to MiniLM's vectors, float32, one thread",
    "chunks",
    contest,
    "sentence-transformers",
    "GEMM fp32",
    least=1.7,
    least_share=0.75,
    needs=("sentence_transformers",),
    short="The chip decides: 2.64 at 243 GFLOP/s of a core, 1.56 at 111, of which we use .82.",
)
