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
    # What is no row's fault is the news: the rest may follow from it.
    errors.sort(key=lambda e: not isinstance(e, RaypipeError))
    return came, errors[0] if errors else None  # type: ignore[return-value]


async def in_pieces(rows: Sequence[int], send: Send) -> tuple[Came, Exception | None]:
    """Sends all rows at once, then, if that raises, in pieces of the square root of their number, then the
    rows of a piece that raises alone: what came, and the first error. For models that compute a batch at a
    time, of which nothing comes when it raises. Where no piece comes, rows are not tried alone."""
    came: Came = []
    error = await _sent(list(rows), send, came)
    if error is None or len(rows) == 1 or not _is_of_rows(error):
        return came, error
    size = math.isqrt(len(rows))
    broken, error = await _each_of(
        [list(rows[at : at + size]) for at in range(0, len(rows), size)], send, came
    )
    if error is None or size == 1 or not came or not _is_of_rows(error):
        return came, error
    _, error = await _each_of([[row] for piece in broken for row in piece], send, came)
    return came, error


async def _each_of(
    pieces: list[list[int]], send: Send, came: Came
) -> tuple[list[list[int]], Exception | None]:
    """The pieces that raise, and the last error; stops at one that is no row's."""
    broken, last = [], None
    for piece in pieces:
        if (error := await _sent(piece, send, came)) is not None:
            last = error
            broken.append(piece)
            if not _is_of_rows(error):
                break
    return broken, last


def _is_of_rows(error: Exception) -> bool:
    """Whether fewer rows may fare better."""
    return isinstance(error, OutOfMemory) or not isinstance(error, RaypipeError)


async def _sent(rows: list[int], send: Send, came: Came) -> Exception | None:
    try:
        came.append((rows, await send(rows)))
    except Exception as e:
        return e
    return None
