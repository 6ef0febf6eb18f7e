"""Caps: what one command may spend. It stops before a task that would begin beyond one.

Knows counters and prices. What is in flight when a cap is reached is still paid, and no more.
"""

from __future__ import annotations

from dataclasses import dataclass

from raypipe.core.errors import CapReached, ConfError
from raypipe.core.prices import HOUR_S, JUDGE, NO_PRICES, Prices
from raypipe.memo.counts import CallCounts
from raypipe.pipeline.counters import RunCounters


@dataclass(frozen=True, slots=True)
class Caps:
    """Bounds of one command; what earlier attempts of the same work spent does not count."""

    calls: int | None = None  # to models and graphs
    usd: float | None = None  # of what has a price
    hours: float | None = None  # wall time since the command began
    prices: Prices = NO_PRICES

    def __post_init__(self) -> None:
        for name in ("calls", "usd", "hours"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfError(f"--max-{name}: expected a number above 0, found {value:g}")
        if self.usd is not None:
            self._require_prices()

    def _require_prices(self) -> None:
        models = [name for name in self.prices.unpriced if name != MACHINES]
        if self.prices.known and not models:
            return
        lacking = ", ".join(self.prices.unpriced) or "any step"
        raise ConfError(
            f"--max-usd: expected prices, found none for {lacking}. Give usd_per_mtok in the models file, or "
            "usd_per_hour of machines in the cluster file"
        )

    @property
    def any(self) -> bool:
        """Whether something is capped."""
        return any(cap is not None for cap in (self.calls, self.usd, self.hours))

    def check_judge(self, done: RunCounters, judged: CallCounts, seconds: float) -> None:
        """The same before more answers are judged; `judged`: what the judge was asked so far. A command that
        did no task judges some answers whatever that costs."""
        if not judged.computed and done.tasks_since <= 0:
            return
        if spent := self._spent(
            calls_now(done) + judged.computed,
            usd_now(done, seconds, self.prices) + self._usd_of_judge(judged),
            seconds,
        ):
            raise CapReached(spent)

    def _usd_of_judge(self, judged: CallCounts) -> float:
        price, t = self.prices.tokens.get(JUDGE), judged.tokens
        return 0.0 if price is None else price.usd(t.prompt, t.cached, t.generated)

    def check(self, done: RunCounters, seconds: float) -> None:
        """Raises CapReached where this attempt has spent as much as it may. `seconds`: since it began."""
        if spent := self.reached(done, seconds):
            raise CapReached(spent)

    def reached(self, done: RunCounters, seconds: float) -> str:
        """Which cap is reached, and what then, in words; "" for none. Each command does a task at least, so
        that as many of them as it takes come to an end."""
        if done.tasks_since <= 0:
            return ""
        return self._spent(calls_now(done), usd_now(done, seconds, self.prices), seconds)

    def _spent(self, calls: int, usd: float, seconds: float) -> str:
        if self.hours is not None and seconds >= self.hours * HOUR_S:
            return f"--max-hours {self.hours:g} is reached after {seconds / HOUR_S:.3g} hours{_THEN}"
        if self.calls is not None and calls >= self.calls:
            return f"--max-calls {self.calls} is reached after {calls} calls{_THEN}"
        if self.usd is not None and usd >= self.usd:
            return f"--max-usd {self.usd:g} is reached after about {usd:.4g} US dollars{_THEN}"
        return ""


MACHINES = "machines"
_THEN = (
    ". What was done is stored, and the same command continues from there, with the cap counted from 0 again"
)
NO_CAPS = Caps()


def calls_now(done: RunCounters) -> int:
    """Calls to models and graphs that this attempt has made."""
    return sum(c.calls.computed for c in done.since().values())


def usd_now(done: RunCounters, seconds: float, prices: Prices) -> float:
    """US dollars that this attempt has cost, of what has a price."""
    now, usd = done.since(), (prices.machines or 0.0) * seconds / HOUR_S
    for step in now.keys() & prices.tokens.keys():
        t = now[step].calls.tokens
        usd += prices.tokens[step].usd(t.prompt, t.cached, t.generated)
    return usd
