"""Quotas: what each tenant may ask in a minute, counted at one place for all gateways."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from raypipe.serving.tenants import Tenant


@dataclass(frozen=True, slots=True)
class QuotaUsed:
    what: Literal["requests", "tokens"]
    per_minute: int
    wait_s: int  # until one more may be taken


class QuotaCounter(Protocol):
    """Counts what tenants ask, here or in a process that all gateways call."""

    async def admit(self, tenant: str, questions: int) -> QuotaUsed | None:
        """Counts a request of some questions; what is used up, then it is not counted."""
        ...

    async def spend(self, tenant: str, tokens: int) -> None:
        """Counts the tokens of an answer, which are known afterwards."""
        ...


@dataclass(slots=True)
class Bucket:
    """What is left of a minute's allowance: it fills evenly, and a debt is paid first."""

    per_minute: int
    left: float
    at: float  # seconds, when `left` was right

    def wait_s(self, now: float) -> int:
        """Seconds until one more may be taken; 0: now."""
        self.left = min(self.per_minute, self.left + (now - self.at) * self.per_minute / 60)
        self.at = now
        return 0 if self.left >= 1 else max(1, math.ceil((1 - self.left) * 60 / self.per_minute))


class Quotas:
    """The counts of one process (`QuotaCounter`)."""

    def __init__(self, tenants: Sequence[Tenant], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, now = clock, clock()
        limits = [("tokens", t.name, t.tokens_per_minute) for t in tenants]
        limits += [("requests", t.name, t.requests_per_minute) for t in tenants]
        self._buckets = {(w, n): Bucket(most, most, now) for w, n, most in limits if most is not None}

    async def admit(self, tenant: str, questions: int) -> QuotaUsed | None:
        now = self._clock()
        kinds: tuple[Literal["tokens"], Literal["requests"]] = ("tokens", "requests")
        for what in kinds:
            bucket = self._buckets.get((what, tenant))
            if bucket is not None and (wait_s := bucket.wait_s(now)):
                return QuotaUsed(what, bucket.per_minute, wait_s)
        if (requests := self._buckets.get(("requests", tenant))) is not None:
            requests.left -= questions
        return None

    async def spend(self, tenant: str, tokens: int) -> None:
        if (bucket := self._buckets.get(("tokens", tenant))) is not None:
            bucket.left -= tokens
