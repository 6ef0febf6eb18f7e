"""Several runs against one: p values corrected for their number, which keep what the runs have in common.

Westfall and Young's step-down maxT (1993, algorithm 4.1) by sign flips. If no run differs from the first, the
sign of each question's difference is as likely + as -, and one coin decides it for all runs: runs that answer
alike err alike. Where they do, this is sharper than Holm's bound, which knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raypipe.metrics.paired import DRAWS, sign_flip

Floats = npt.NDArray[np.float64]
_AT_ONCE = 1_000  # draws: some 20 MB at 2,706 questions


def max_t(differences: Sequence[Floats], seed: int = 0) -> list[float]:
    """Corrected two-sided p of the mean of each (n,) array of differences, in their order.

    One array alone has the exact p of `sign_flip`, where there is one. Others are (b + 1) / (m + 1) over
    m = DRAWS drawn signs. Raises ValueError for none, and for arrays of other lengths.

    >>> apart, noise = np.array([1.0] * 12 + [0.0] * 88), np.array([1.0, -1.0] * 6 + [0.0] * 88)
    >>> [round(p, 2) for p in max_t([apart, noise])]
    [0.0, 1.0]
    """
    if not differences or len({len(d) for d in differences}) > 1:
        raise ValueError(f"expected arrays of one length, found {[len(d) for d in differences]}")
    if len(differences) == 1:
        return [sign_flip(differences[0], seed)[0]]
    table = np.column_stack(differences)  # (n, runs)
    scale = np.sqrt((table**2).sum(axis=0))  # the same under all signs
    table = np.divide(table, scale, out=np.zeros_like(table), where=scale > 0)
    found = np.abs(table.sum(axis=0))
    order = np.argsort(-found, kind="stable")  # the surest first
    as_far = np.zeros(len(order), int)
    rng = np.random.default_rng(seed)
    for _ in range(DRAWS // _AT_ONCE):
        signs = rng.integers(0, 2, (_AT_ONCE, len(table)), np.int8) * np.int8(2) - np.int8(1)
        drawn = np.abs(signs.astype(np.float32) @ table.astype(np.float32))[:, order]
        # Of each run: the largest of it and of all that are less sure.
        largest = np.maximum.accumulate(drawn[:, ::-1], axis=1)[:, ::-1]
        as_far += (largest >= found[order] * (1 - 1e-5)).sum(axis=0)
    steps = np.maximum.accumulate((as_far + 1) / (DRAWS + 1))
    out = np.empty(len(order))
    out[order] = steps
    return [float(p) for p in out]
