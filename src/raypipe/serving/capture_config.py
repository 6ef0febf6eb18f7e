"""How an endpoint captures answers: plain values, which travel to replicas and open nothing."""

from __future__ import annotations

from dataclasses import dataclass

RETENTION_DAYS = 7.0
"""Days that captured answers are kept where no one says otherwise: a week has every day of the week once."""


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """How many answers are captured, for how long, and what is taken out of them."""

    rate: float  # share of the answers, above 0 and at most 1
    retention_days: float = RETENTION_DAYS
    redact: str | None = None  # MODULE:NAME of a function of one text; None: texts are kept as they are

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"capture: expected a rate above 0 and at most 1, found {self.rate:g}")
        if self.retention_days <= 0:
            raise ValueError(f"capture: expected a retention above 0 days, found {self.retention_days:g}")
