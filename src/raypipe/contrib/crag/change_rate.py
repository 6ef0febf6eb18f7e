"""Rate at which a server's replies changed, and the refresh period that follows. Pure functions.

Source: the estimator of Cho and Garcia-Molina, "Estimating frequency of change" (2003). If X of n visits
found a page changed, the rate per interval is -log((n - X + .5) / (n + .5)).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LEAST_SEEN: Final = 20  # fewest pairs of replies from which a period is derived
STALE: Final = 0.05  # share of replies that may be out of date when their period ends
LIVE_S: Final = 60.0  # a shorter period is "live": replies are not stored


@dataclass(frozen=True, slots=True)
class ChangeRate:
    pairs: int
    changed: int
    period: str | int | None  # "live", or seconds; None: too few pairs to tell


def change_rates(texts: Mapping[tuple[str, str, float], Mapping[int, str]]) -> dict[str, ChangeRate]:
    """Estimates how often each domain's replies changed from one fetched period to the next, and derives its
    refresh period. By the end of a refresh period at most the share `STALE` of the replies has changed.

    `texts`: (request, domain, period in seconds) -> number of the period -> its reply.
    """
    pairs: dict[str, list[tuple[float, bool]]] = {}  # domain -> seconds apart, and whether the reply changed
    for (_, domain, period), replies in texts.items():
        for a, b in itertools.pairwise(sorted(replies)):
            pairs.setdefault(domain, []).append(((b - a) * period, replies[a] != replies[b]))
    return {domain: _rate(pairs[domain]) for domain in sorted(pairs)}


def _rate(pairs: Sequence[tuple[float, bool]]) -> ChangeRate:
    n, changed = len(pairs), sum(differs for _, differs in pairs)
    if n < LEAST_SEEN:
        return ChangeRate(n, changed, None)
    apart = math.fsum(apart_s for apart_s, _ in pairs) / n
    # Without a change the rate is at most 3/n with a certainty of .95 (the rule of three).
    per_interval = -math.log((n - changed + 0.5) / (n + 0.5)) if changed else 3 / n
    seconds = -math.log(1 - STALE) * apart / per_interval
    return ChangeRate(n, changed, "live" if seconds < LIVE_S else round(seconds))
