"""Tenants: who may ask, how much, of which release, over which part of the store. Plain values.

    tenants:
      acme:
        keys: [a-key-of-16-characters-or-more]
        share: 3
        requests_per_minute: 600
        tokens_per_minute: 200000
        releases: [live@acme, live]
        filters: {hosts: [example.org]}

Keys become digests when the file is read: what travels to replicas opens nothing. What each tenant asks in a
minute is counted at one place for all gateways (`Quotas`).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from raypipe.core import config
from raypipe.core.config import Where
from raypipe.core.errors import ConfError
from raypipe.runs.release import check_pointer
from raypipe.serving.access import KEY_CHARS, ApiKeys
from raypipe.serving.query import Filters
from raypipe.store.layout import LIVE

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True)
class TenantEntry:
    keys: tuple[str, ...]
    share: float = 1.0  # of the slots, against the shares of the others
    requests_per_minute: int | None = None  # None: no limit of its own
    tokens_per_minute: int | None = None  # of prompts and replies; None: no limit
    releases: tuple[str, ...] = (LIVE,)  # pointers that it may ask; the first answers unless it names one
    filters: Filters = field(default_factory=Filters)  # the part of a store that it may search; none: all

    def __post_init__(self) -> None:
        if not self.keys:
            raise ValueError("keys: expected at least one")
        if self.share <= 0:
            raise ValueError(f"share: expected a number above 0, found {self.share}")
        for name in ("requests_per_minute", "tokens_per_minute"):
            if (limit := getattr(self, name)) is not None and limit < 1:
                raise ValueError(f"{name}: expected at least 1, found {limit}")
        if not self.releases:
            raise ValueError("releases: expected at least one pointer, such as live")


@dataclass(frozen=True, slots=True)
class TenantFile:
    tenants: Mapping[str, TenantEntry]


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who asks. Its keys are digests."""

    name: str
    keys: ApiKeys = field(default_factory=ApiKeys)
    share: float = 1.0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    releases: tuple[str, ...] = (LIVE,)
    scope: Filters = field(default_factory=Filters)

    @property
    def limited(self) -> bool:
        return self.requests_per_minute is not None or self.tokens_per_minute is not None

    @property
    def corpus(self) -> str:
        """Names the corpus that its answers, memo and captures belong to: "" for the whole store, which all
        tenants without filters share."""
        return self.name if self.scope else ""


ANYONE = Tenant("default")
"""Who has a key that is no tenant's, or needs none."""


def read_tenants(path: Path) -> tuple[Tenant, ...]:
    """The tenants of a file. Raises as `tenants_in` does."""
    return tenants_in(config.read_yaml(path), str(path))


def tenants_in(tree: Any, path: str) -> tuple[Tenant, ...]:
    """The tenants of what a file holds, which messages call `path`. Raises ConfError, without any key, for
    what is none, and for a key that could be guessed or that two tenants have."""
    try:
        return _tenants(tree, path)
    except ConfError as e:
        raise ConfError(_masked(str(e), tree)) from None


def _masked(message: str, tree: Any) -> str:
    """The message without any text of the tree that is as long as a key, since one may stand anywhere. What
    is nearly the name of a field stays."""
    known = [f.name for cls in (TenantFile, TenantEntry, Filters) for f in dataclasses.fields(cls)]
    long = {t for t in _texts(tree) if len(t) >= KEY_CHARS and not difflib.get_close_matches(t, known)}
    for text in sorted(long, key=len, reverse=True):
        for form in (repr(text)[1:-1], text):
            message = message.replace(form, "...").replace(form[: config.SHOWN - 1], "...")
    return message


def _texts(tree: Any) -> set[str]:
    """Every key and value of a tree, as text."""
    if isinstance(tree, dict):
        return {str(k) for k in tree}.union(*map(_texts, tree.values()))
    return set().union(*map(_texts, tree)) if isinstance(tree, list) else {str(tree)}


def _tenants(tree: Any, path: str) -> tuple[Tenant, ...]:
    file = config.build(TenantFile, tree, Where(path))
    found: list[Tenant] = []
    owners: dict[bytes, str] = {}
    for name, entry in file.tenants.items():
        where = f"{path}: tenants.{name}"
        if not _NAME.fullmatch(name) or name == ANYONE.name:
            expected = f"expected a name of small letters, digits and -, and not {ANYONE.name!r}"
            raise ConfError(f"{where}: {expected}")
        try:
            keys = ApiKeys.of(entry.keys)
            for pointer in entry.releases:
                check_pointer(pointer)
        except ConfError as e:
            raise ConfError(f"{where}: {e}") from e
        for number, digest in enumerate(keys.digests, start=1):
            if (other := owners.setdefault(digest, name)) != name:
                raise ConfError(f"{where}: key {number} is a key of tenant {other}, too; each has its own")
        limits = (entry.share, entry.requests_per_minute, entry.tokens_per_minute)
        found.append(Tenant(name, keys, *limits, entry.releases, entry.filters))
    if not found:
        raise ConfError(f"{path}: expected at least one tenant, found none")
    return tuple(found)


def tenant_of(key: str, tenants: Sequence[Tenant]) -> Tenant | None:
    """The tenant with this key. Every key is compared, each in constant time."""
    matches = [tenant for tenant in tenants if tenant.keys.accepts(key)]
    return matches[0] if matches else None


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
