"""Prices: what tokens of language models and hours of machines cost. In no digest.

A price that is not given is not 0: money is then not known, and what it leaves out is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MILLION = 1_000_000
HOUR_S = 3600.0
JUDGE = "judge"
"""In the place of a step: the model that judges answers."""


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """US dollars per million tokens of one language model."""

    prompt: float
    reply: float
    cached: float | None = None  # of prompt tokens that a prefix cache had; None: as `prompt`

    def __post_init__(self) -> None:
        if min(self.prompt, self.reply, self.cached or 0) < 0:
            raise ValueError("usd_per_mtok: expected no price below 0")

    def usd(self, prompt: float, cached: float, generated: float) -> float:
        """Price of some tokens. `cached` are among those of the prompt.

        >>> TokenPrice(1.0, 4.0, 0.5).usd(2_000_000, 1_000_000, 500_000)
        3.5
        """
        of_cache = self.prompt if self.cached is None else self.cached
        return ((prompt - cached) * self.prompt + cached * of_cache + generated * self.reply) / MILLION

    def in_batches(self) -> TokenPrice:
        """The price of chats that are sent in files: half, at every provider that has a batch API."""
        cached = None if self.cached is None else self.cached / 2
        return TokenPrice(self.prompt / 2, self.reply / 2, cached)

    def dearest(self) -> float:
        """Price of a token, whatever it is."""
        return max(self.usd(1, 0, 0), self.usd(1, 1, 0), self.usd(0, 0, 1))


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a run of a recipe on a cluster, as far as its files say."""

    tokens: Mapping[str, TokenPrice] = field(default_factory=dict)  # step -> price of its language model
    machines: float | None = None  # US dollars per hour of all machines together; None: some have no price
    actors: Mapping[str, int] = field(default_factory=dict)  # step -> processes that do it at a time
    gpus: Mapping[str, float] = field(default_factory=dict)  # step -> GPUs held while it runs
    unpriced: tuple[str, ...] = ()  # what has no price: machines, and models behind endpoints

    @property
    def known(self) -> bool:
        return bool(self.tokens) or self.machines is not None


NO_PRICES = Prices()
