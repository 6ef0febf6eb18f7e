"""Who may ask, how much, and how many at once: everything that is checked before a question is read.

Knows requests and nothing of questions. Keys are kept as digests and compared in constant time.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

from fastapi import Request
from starlette.datastructures import Headers

from raypipe.errors import ConfError, Overloaded
from raypipe.service.problems import Gone, Refused

T = TypeVar("T")

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

    def check(self, headers: Headers, client: str | None) -> None:
        """Raises Refused unless this request may ask."""
        if self.open:
            return
        if self.digests:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not self.knows(key.strip()):
                ask = {"www-authenticate": "Bearer"}
                raise Refused(
                    HTTPStatus.UNAUTHORIZED, "expected the header authorization: Bearer KEY", (), ask
                )
        elif not (_loopback(client) and _loopback(_host(headers))):
            # The name counts, too: a page on the web may point a name of its own at this machine.
            raise Refused(
                HTTPStatus.FORBIDDEN, "this endpoint has no keys, so it answers its own machine alone"
            )


def _host(headers: Headers) -> str:
    """The host that was asked for, without its port."""
    name = headers.get("host", "")
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]


def _loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


class Slots:
    """How many requests are being answered."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.taken = 0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A slot, at once. Raises Overloaded where there is none: a queue would only eat deadlines."""
        if self.taken >= self._most:
            raise Overloaded(f"{self.taken} requests are being answered")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


async def body(request: Request, limits: Limits) -> bytes:
    """The body. A form that a web page can send across sites is no JSON by its type, and is refused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected the header content-type: application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected a body that is not compressed")
    large = Refused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {limits.body_bytes} bytes", (), _CLOSE
    )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limits.body_bytes:
        raise large
    found = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            async for chunk in request.stream():
                found += chunk
                if len(found) > limits.body_bytes:
                    raise large
    except TimeoutError:
        detail = f"expected the whole body within {limits.body_s:g} s"
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, detail, (), _CLOSE) from None
    return bytes(found)


_CLOSE = {"connection": "close"}  # what else the client sends is nobody's


async def waited(request: Request, work: Awaitable[T]) -> T:
    """The result of the work, which ends when the client goes. Raises Gone."""
    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left(request))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Gone
        return doing.result()
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def left(request: Request) -> None:
    """Returns when the client has closed its connection. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
