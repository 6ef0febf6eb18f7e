"""How often a server's replies changed, and the refresh period that follows. Pure functions on observations.

Source: the estimator of Cho and Garcia-Molina, "Estimating frequency of change" (2003): of n looks at a page,
X of which found it changed, the rate per interval is -log((n - X + .5) / (n + .5)).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LEAST_SEEN: Final = 20  # pairs of replies below which nothing is derived
STALE: Final = 0.05  # share of replies that may be out of date when their period ends
LIVE_S: Final = 60.0  # a period below this is live: nothing is kept


@dataclass(frozen=True, slots=True)
class Observed:
    """One request, answered in two periods, one after the other."""

    domain: str
    apart_s: float  # from the one to the other
    changed: bool


@dataclass(frozen=True, slots=True)
class ChangeRate:
    pairs: int
    changed: int
    period: str | int | None  # live, or seconds; None: too few pairs to tell


def observations(texts: Mapping[tuple[str, str, float], Mapping[int, str]]) -> list[Observed]:
    """`texts`: (request, domain, period in seconds) -> number of the period -> its reply."""
    found = []
    for (_, domain, period), replies in texts.items():
        numbers = sorted(replies)
        for a, b in itertools.pairwise(numbers):
            found.append(Observed(domain, (b - a) * period, replies[a] != replies[b]))
    return found


def change_rates(observed: Sequence[Observed]) -> dict[str, ChangeRate]:
    """Domain -> how often its replies changed, and the period after which at most `STALE` of them have."""
    return {
        domain: _rate([o for o in observed if o.domain == domain])
        for domain in sorted({o.domain for o in observed})
    }


def _rate(pairs: Sequence[Observed]) -> ChangeRate:
    n, changed = len(pairs), sum(o.changed for o in pairs)
    if n < LEAST_SEEN:
        return ChangeRate(n, changed, None)
    apart = math.fsum(o.apart_s for o in pairs) / n
    # Without a change the rate is at most 3/n with a certainty of .95 (the rule of three).
    per_interval = -math.log((n - changed + 0.5) / (n + 0.5)) if changed else 3 / n
    seconds = -math.log(1 - STALE) * apart / per_interval
    return ChangeRate(n, changed, "live" if seconds < LIVE_S else round(seconds))
