"""Reranking passages by MaxSim that the embedder of the same weights has just encoded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from bench_data import chunks
from bench_rows import BenchRow, Contest
from embedding import model
from machine import Machine

from raypipe.models import load
from raypipe.models.shared_encoders import SharedEncoders

CLOSE = 1e-6


@contextmanager
def contest(quick: bool, machine: Machine) -> Iterator[Contest]:
    import torch

    passages = chunks(quick, 4 if quick else 40)
    embedder, maxsim = model("all-MiniLM-L6-v2"), model("minilm-maxsim")
    shared = SharedEncoders()
    shared.expect(embedder)
    shared.expect(maxsim)
    warm = load.open_model(embedder, "transformers", "cpu", shared)
    ours = load.open_model(maxsim, "transformers", "cpu", shared)
    alone = load.open_model(maxsim, "transformers", "cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    warm.embed(passages, "passage")
    pairs = [(passages[0][:60], passage) for passage in passages]

    def unequal(a: np.ndarray, b: np.ndarray) -> str:
        far = float(np.abs(a - b).max())
        return "" if far < CLOSE else f"scores differ by up to {far:.1e}"

    try:
        yield Contest(len(pairs), lambda: ours.score(pairs), lambda: alone.score(pairs), unequal)
    finally:
        torch.set_num_threads(threads)


ROW = BenchRow(
    "40 pairs of 700 characters scored by MaxSim, after the embedder of the same weights saw them",
    "pairs",
    contest,
    "the same, encoded again",
)
