"""How the endpoint meets the world: who may ask, and how much is taken on. Plain values, which travel to
replicas and open nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

from raypipe.core.errors import ConfError

KEY_CHARS = 16
"""The least that a key has: 16 characters of base64 are 96 bits, which nobody guesses."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one gateway takes on. The defaults suit one machine of two cores."""

    ongoing: int = 32  # requests being answered at once; the next is told to come again
    body_bytes: int = 32 << 20  # fifty real pages are 16 MB on average
    body_s: float = 10.0  # for a body to arrive: 32 MiB at 27 Mbit/s; slower ones are cut
    deadline_s: float = 30.0  # of a request that names none; CRAG's limit for a question
    longest_s: float = 120.0  # of any request

    def __post_init__(self) -> None:
        if self.ongoing < 1 or self.body_bytes < 1:
            raise ValueError("limits: expected ongoing and body_bytes of at least 1")
        if not 0 < self.deadline_s <= self.longest_s or self.body_s <= 0:
            raise ValueError("limits: expected 0 < deadline_s <= longest_s, and body_s above 0")


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that open the endpoint: none of them (loopback only), some, or `open` for everyone."""

    digests: tuple[bytes, ...] = ()  # SHA-256 of each: what travels to replicas opens nothing
    open: bool = False  # whoever reaches the port may ask

    @classmethod
    def of(cls, keys: Iterable[str]) -> Keys:
        """From the keys themselves. Raises ConfError, without the key, for one that could be guessed."""
        digests = []
        for i, key in enumerate(keys, start=1):
            if len(key) < KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key:
                raise ConfError(
                    f"key {i}: expected at least {KEY_CHARS} printable ASCII characters without a space; "
                    "`openssl rand -base64 24` makes one"
                )
            digests.append(hashlib.sha256(key.encode()).digest())
        return cls(tuple(digests))

    def knows(self, key: str) -> bool:
        """Compares with every key, each in constant time."""
        given = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        matches = [hmac.compare_digest(given, d) for d in self.digests]
        return any(matches)


@dataclass(frozen=True, slots=True)
class Face:
    """How the endpoint meets the world."""

    keys: Keys = field(default_factory=Keys)
    limits: Limits = field(default_factory=Limits)
    page: bool = True  # the web page at /
    traces: str | None = None  # where spans are sent, as OTLP over HTTP: http://collector:4318/v1/traces
