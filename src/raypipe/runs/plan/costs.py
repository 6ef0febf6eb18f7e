"""What calls of a step are likely to be, to take and to leave in the store: ranges, for a plan to show.

Estimates, not bounds: they rest on what earlier runs recorded wherever these say something.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from raypipe.runs.plan.bounds import stored_bytes, tokens_at_most
from raypipe.runs.plan.rates import Asked, Range, Rate, seconds
from raypipe.steps.parse import Parse
from raypipe.steps.split import Split
from raypipe.steps.tokenize import Tokenise


@dataclass(frozen=True, slots=True)
class Likely:
    """How many calls a step is likely to make, where its plan has no more than an upper bound."""

    calls: tuple[int, int]
    runs: int  # finished runs that say so, at least 1


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step may take."""

    seconds: Range | None  # of all processes together; None: no earlier run says
    tokens: tuple[int, int]  # of prompts and replies of language models
    nbytes: tuple[int, int]  # that the store grows by, about, before compression; texts not counted


def likely(asked: Asked | None, rows: int, bound: int, sure: int = 0) -> Likely | None:
    """What so many rows should ask, never more than `bound`; None where no earlier run says. `sure`: calls
    for other rows, which are known."""
    if asked is None:
        return None
    least, most = (sure + round(rows * each) for each in (asked.least, asked.most))
    return Likely((min(least, bound), min(most, bound)), asked.runs)


def cost(step: Any, rate: Rate, rows: int, calls: int, exact: bool, guess: Likely | None) -> Cost:
    """What `calls` of a step about so many rows should take. Unless `exact`, they are an upper bound, and
    `guess` says what is likely."""
    low, high = guess.calls if guess else (calls if exact else 0, calls)
    works = isinstance(step, Parse | Split | Tokenise)  # without a model: leaves texts alone
    return Cost(
        seconds(rate, rows, calls if exact else None),
        _tokens(step, rate, low, high),
        (0, 0) if works else (stored_bytes(step, low), stored_bytes(step, high)),
    )


def _tokens(step: Any, rate: Rate, low: int, high: int) -> tuple[int, int]:
    """Of language models: by earlier runs' where there were any, and never more than fit."""
    most = tokens_at_most(step, high)
    if rate.tokens is None:
        return 0, most
    return min(math.ceil(low * rate.tokens[0]), most), min(math.ceil(high * rate.tokens[1]), most)
