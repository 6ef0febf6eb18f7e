"""Configuration of the endpoint: keys, limits, web page and capture. Plain values, sent to replicas; they
contain no usable key."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.serving.key_filters import KeyFilter

KEY_CHARS = 16
"""Minimum length of a key: 16 characters of base64 are 96 bits, too many to guess."""

MEMO_MB = 64
"""Memory for a gateway's memo, MB. It holds the vectors, scores and replies of some thousand questions about
a store, at 20 pairs of 300 bytes and a vector of 3 KB each."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one gateway. The defaults suit one machine with two cores."""

    max_ongoing_requests: int = 32  # requests answered at the same time; a further one gets 429
    max_body_bytes: int = 32 << 20  # fifty real pages are 16 MB on average
    # Bytes of all bodies together: four of the largest, or eight with fifty pages. A parsed body takes three
    # to five times its bytes, together 0.4 to 0.6 GB of a gateway's 4 GiB.
    max_bytes_in_flight: int = 128 << 20
    body_timeout_s: float = 10.0  # seconds in which a body must arrive: 32 MiB at 27 Mbit/s
    deadline_s: float = 30.0  # default for a request without a deadline; CRAG's limit for a question
    max_deadline_s: float = 120.0  # longest deadline that a request may set

    def __post_init__(self) -> None:
        if self.max_ongoing_requests < 1 or self.max_body_bytes < 1:
            raise ValueError("limits: expected max_ongoing_requests and max_body_bytes of at least 1")
        if self.max_bytes_in_flight < self.max_body_bytes:
            raise ValueError("limits: expected max_bytes_in_flight of at least max_body_bytes")
        if not 0 < self.deadline_s <= self.max_deadline_s or self.body_timeout_s <= 0:
            raise ValueError("limits: expected 0 < deadline_s <= max_deadline_s, and body_timeout_s above 0")


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The accepted API keys. Without keys, only loopback requests are accepted, unless `open` is set."""

    digests: tuple[bytes, ...] = ()  # SHA-256 of each key, so that replicas get no usable key
    open: bool = False  # True: every request is accepted

    @classmethod
    def of(cls, keys: Iterable[str]) -> ApiKeys:
        """Hashes the keys. Raises ConfError, without the key, for a key that could be guessed."""
        digests = []
        for i, key in enumerate(keys, start=1):
            if len(key) < KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key:
                raise ConfError(
                    f"key {i}: expected at least {KEY_CHARS} printable ASCII characters without a space; "
                    "`openssl rand -base64 24` makes one"
                )
            digests.append(hashlib.sha256(key.encode()).digest())
        return cls(tuple(digests))

    def accepts(self, key: str) -> bool:
        """Returns whether a key is accepted; compares it with every accepted key, each in constant time."""
        given = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        matches = [hmac.compare_digest(given, d) for d in self.digests]
        return any(matches)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    keys: ApiKeys = field(default_factory=ApiKeys)
    limits: RequestLimits = field(default_factory=RequestLimits)
    page: bool = True  # the web page at /
    log: str | None = None  # file with a line for each request; None: the gateway's stderr
    capture: CaptureConfig | None = None  # None: no answer is captured
    memo_mb: int = MEMO_MB  # memory of a gateway for cached model results about its store; 0: no cache
    key_filters: tuple[KeyFilter, ...] = ()  # keys that may search only a part of the store
    mcp: bool = False  # serves /mcp: the routes as tools for agents


RETENTION_DAYS = 7.0
"""Default days for which captured answers are kept: a week, so that each weekday occurs once."""


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """Settings of captured answers: their share, their retention and their redaction."""

    rate: float  # share of the answers, above 0 and at most 1
    retention_days: float = RETENTION_DAYS
    redact: str | None = None  # MODULE:NAME of a function from text to text; None: texts are kept unchanged

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"capture: expected a rate above 0 and at most 1, found {self.rate:g}")
        if self.retention_days <= 0:
            raise ValueError(f"capture: expected a retention above 0 days, found {self.retention_days:g}")
