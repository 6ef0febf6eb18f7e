"""What calls of a step are likely to be, to take and to leave in the store: ranges, for a plan to show.

Estimates, not bounds: they rest on what earlier runs recorded wherever these say something.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from raypipe.core.prices import TokenPrice
from raypipe.runs.plan.rates import CallRange, Range, Rate, TokenSplit, seconds
from raypipe.runs.plan.stage_bounds import times


@dataclass(frozen=True, slots=True)
class ExpectedCalls:
    """How many calls a step is likely to make, where its plan has no more than an upper bound."""

    calls: tuple[int, int]
    runs: int  # finished runs that say so; 0: a sample of the sources does


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step may take."""

    seconds: Range | None  # of all processes together, without loading models; None: no earlier run says
    tokens: tuple[float, float]  # of prompts and replies of language models; math.inf: not known
    nbytes: tuple[float, float]  # that the store grows by, about, before compression; texts not counted
    calls: Range = (0.0, 0.0)  # that this is the cost of
    splits: tuple[TokenSplit, ...] = ()  # tokens of a call, of each earlier run; none: no run says

    def usd(self, price: TokenPrice) -> Range:
        """US dollars of the tokens; math.inf: not known."""
        if not self.splits:
            return 0.0, times(self.tokens[1], price.dearest())
        each = [price.usd(*split) for split in self.splits]
        return times(self.calls[0], min(each)), times(self.calls[1], max(each))


def expected_calls(asked: CallRange | None, rows: int, bound: float, sure: int = 0) -> ExpectedCalls | None:
    """Expected calls of `rows` rows, never more than `bound`; None where no earlier run says. `sure`: calls
    for other rows, which are known."""
    if asked is None:
        return None
    least, most = (sure + round(rows * each) for each in (asked.least, asked.most))
    return ExpectedCalls((int(min(least, bound)), int(min(most, bound))), asked.runs)


def cost(
    tokens: Callable[[float], float], stored: Callable[[float], float], rate: Rate, rows: float,
    calls: float, exact: bool,
    guess: ExpectedCalls | None,
) -> Cost:  # fmt: skip
    """Expected cost of `calls` calls of a step about `rows` rows. Unless `exact`, they are an upper bound,
    and `guess` says what is likely. `tokens`: calls -> their tokens, at most; `stored`: calls -> bytes in the
    store."""
    low, high = guess.calls if guess else (calls if exact else 0, calls)
    return Cost(
        seconds(rate, rows, (low, high) if guess or exact else None),
        _tokens(tokens, rate, low, high),
        (stored(low), stored(high)),
        (low, high),
        rate.splits,
    )


def _tokens(tokens: Callable[[float], float], rate: Rate, low: float, high: float) -> tuple[float, float]:
    """Of language models: by earlier runs' where there were any, and never more than fit."""
    most = tokens(high)
    if rate.tokens is None:
        return 0, most
    least, likely = times(low, rate.tokens[0]), times(high, rate.tokens[1])
    return min(_up(least), most), min(_up(likely), most)


def _up(number: float) -> float:
    return number if math.isinf(number) else math.ceil(number)
