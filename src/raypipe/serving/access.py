"""Configuration of the endpoint: keys and their filters, limits, web page and capture.

The values are sent to replicas, so `ServerConfig` holds digests of keys, and no usable key. A filter of a key
is the part of the store that the key may search:

    filters:
      acme:
        keys: [a-key-of-16-characters-or-more]
        hosts: [example.org]
        where: team = 'hr'
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raypipe.core import config
from raypipe.core.config import Where
from raypipe.core.errors import ConfError
from raypipe.text.filters import Filters, parse

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
    """The accepted API keys. Without keys and key filters, only requests from this machine are accepted,
    except if `open` is true."""

    digests: tuple[bytes, ...] = ()  # SHA-256 of each key, so that replicas get no usable key
    open: bool = False  # True: every request is accepted

    @classmethod
    def of(cls, keys: Iterable[str]) -> ApiKeys:
        """Hashes the keys. Raises ConfError for a key that is short or has a character other than printable
        ASCII; the message does not contain the key."""
        digests = []
        for i, key in enumerate(keys, start=1):
            if len(key) < KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key:
                expected = f"expected at least {KEY_CHARS} printable ASCII characters without a space"
                raise ConfError(f"key {i}: {expected}; `openssl rand -base64 24` makes one")
            digests.append(hashlib.sha256(key.encode()).digest())
        return cls(tuple(digests))

    def accepts(self, key: str) -> bool:
        """Returns whether a key is accepted. Compares it with every accepted key, in constant time."""
        given = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        return any([hmac.compare_digest(given, d) for d in self.digests])


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """A named filter and the keys that have it, as digests."""

    name: str
    keys: ApiKeys = field(default_factory=ApiKeys)
    filters: Filters = field(default_factory=Filters)  # the part of the store to search; empty: all of it


UNFILTERED = KeyFilter("default")
"""Empty filter, for keys that the file of filters does not name and for requests that need no key."""


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


_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True)
class FilterEntry:
    """An entry of the file, with its keys as plain text."""

    keys: tuple[str, ...]  # keys with this filter; two during the exchange of a key
    hosts: tuple[str, ...] = ()  # hosts, sources and where: as in `Filters`; all empty: the whole store
    sources: tuple[str, ...] = ()
    where: str = ""

    def __post_init__(self) -> None:
        if not self.keys:
            raise ValueError("keys: expected at least one")


@dataclass(frozen=True, slots=True)
class FilterFile:
    filters: Mapping[str, FilterEntry]


def read_key_filters(path: Path) -> tuple[KeyFilter, ...]:
    """Reads a file of filters. Raises as `key_filters_in`."""
    return key_filters_in(config.read_yaml(path), str(path))


def key_filters_in(tree: Any, path: str) -> tuple[KeyFilter, ...]:
    """Builds filters from `tree`, the parsed content of the file `path`. Raises ConfError if there is no
    filter, if a filter or key is invalid, and if two filters have the same key. No message contains a key."""
    try:
        return _key_filters(tree, path)
    except ConfError as e:
        raise ConfError(_masked(str(e), tree)) from None


def _masked(message: str, tree: Any) -> str:
    """Replaces in a message every text of the file that may be a key, because a misplaced key may be
    anywhere. Such a text has at least KEY_CHARS characters and resembles no field's name."""
    known = [f.name for cls in (FilterFile, FilterEntry) for f in dataclasses.fields(cls)]
    long = {t for t in _texts(tree) if len(t) >= KEY_CHARS and not difflib.get_close_matches(t, known)}
    for text in sorted(long, key=len, reverse=True):
        for form in (repr(text)[1:-1], text):
            message = message.replace(form, "...").replace(form[: config.SHOWN - 1], "...")
    return message


def _texts(tree: Any) -> set[str]:
    """Collects the texts in parsed YAML: all values, and the keys of all mappings."""
    if isinstance(tree, dict):
        return {str(k) for k in tree}.union(*map(_texts, tree.values()))
    return set().union(*map(_texts, tree)) if isinstance(tree, list) else {str(tree)}


def _key_filters(tree: Any, path: str) -> tuple[KeyFilter, ...]:
    file = config.build(FilterFile, tree, Where(path))
    built: list[KeyFilter] = []
    owners: dict[bytes, str] = {}
    for name, entry in file.filters.items():
        where = f"{path}: filters.{name}"
        if not _NAME.fullmatch(name) or name == UNFILTERED.name:
            raise ConfError(f"{where}: expected a name of small letters, digits and -, not {UNFILTERED.name}")
        try:
            if "where" in tree["filters"][name]:
                parse(entry.where)
            keys, filters = ApiKeys.of(entry.keys), Filters(entry.hosts, entry.sources, entry.where)
        except (ConfError, ValueError) as e:
            raise ConfError(f"{where}: {e}") from e
        for number, digest in enumerate(keys.digests, start=1):
            if (other := owners.setdefault(digest, name)) != name:
                raise ConfError(f"{where}: key {number} is also a key of filter {other}. Remove it from one")
        built.append(KeyFilter(name, keys, filters))
    if not built:
        raise ConfError(f"{path}: expected at least one filter, found none")
    return tuple(built)


def filter_of(key: str, key_filters: Sequence[KeyFilter]) -> KeyFilter | None:
    """Finds the filter of a key; None if no filter has it. Compares every key, in constant time."""
    matches = [f for f in key_filters if f.keys.accepts(key)]
    return matches[0] if matches else None
