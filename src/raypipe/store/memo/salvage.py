"""Requests one of which raises: what came for the others is kept, and is not sent again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import numpy as np

from raypipe.core.errors import OutOfMemory, RaypipeError

Send: TypeAlias = Callable[[list[int]], Awaitable[np.ndarray]]
"""Row numbers -> one value each."""

Came: TypeAlias = list[tuple[list[int], np.ndarray]]
"""Row numbers, and what came for them."""


async def each(rows: Sequence[int], send: Send) -> tuple[Came, Exception | None]:
    """Sends each row alone, all at the same time: what came, and the first error. For requests that are
    answered one by one, so that a row that raises costs itself."""
    sent = await asyncio.gather(*(send([row]) for row in rows), return_exceptions=True)
    came = [([row], value) for row, value in zip(rows, sent, strict=True) if isinstance(value, np.ndarray)]
    errors = [e for e in sent if isinstance(e, BaseException)]
    for e in errors:
        if not isinstance(e, Exception):
            raise e
    # A failure that is no row's fault is the news: the rest may follow from it.
    errors.sort(key=lambda e: not isinstance(e, RaypipeError))
    return came, errors[0] if errors else None  # type: ignore[return-value]


async def in_pieces(rows: Sequence[int], send: Send) -> tuple[Came, Exception | None]:
    """Sends all rows at once, then, if that raises, in pieces of the square root of their number, then the
    rows of a piece that raises alone: what came, and the first error. For models that compute a batch at a
    time, of which nothing comes when it raises. Where no piece comes, rows are not tried alone."""
    came: Came = []
    broken = [list(rows)]
    for size in (len(rows), math.isqrt(len(rows)), 1):
        pieces = [piece[at : at + size] for piece in broken for at in range(0, len(piece), size)]
        broken, error = await _each_of(pieces, send, came)
        in_vain = size < len(rows) and not came
        if error is None or size == 1 or in_vain or not _is_of_rows(error):
            break
    return came, error


async def _each_of(
    pieces: list[list[int]], send: Send, came: Came
) -> tuple[list[list[int]], Exception | None]:
    """The pieces that raise, and the last error; stops at one that is no row's."""
    broken: list[list[int]] = []
    last: Exception | None = None
    for piece in pieces:
        try:
            came.append((piece, await send(piece)))
        except Exception as e:
            last = e
            broken.append(piece)
            if not _is_of_rows(e):
                break
    return broken, last


def _is_of_rows(error: Exception) -> bool:
    """Returns whether fewer rows may fare better."""
    return isinstance(error, OutOfMemory) or not isinstance(error, RaypipeError)
