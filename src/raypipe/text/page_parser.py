"""Parses untrusted pages under hard limits (`core.sandbox`).

Knows the request and the reply of a page, and which pages never reach a parser.
"""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

from raypipe.core.records import Block, Fault
from raypipe.core.sandbox import Refused, Sandbox, SandboxLimits
from raypipe.text.blocks import KINDS
from raypipe.text.html import ParsedPage, Parser, Via, Way, not_html, storable, to_text

_PARSERS: tuple[Parser, ...] = get_args(Parser)
_VIAS: tuple[Via, ...] = get_args(Via)
_WAYS: tuple[Way, ...] = get_args(Way)
_REQUEST = struct.Struct("<BBB")  # number of parser, of via, whether to compare; the HTML follows
_REPLY = struct.Struct("<BII")  # number of way, bytes of text, hidden spans
"""The text follows, and as int32 the hidden spans and of each block its span and the number of its kind."""


@dataclass(frozen=True, slots=True)
class PageLimits:
    """The limits of one page. The largest of the real pages takes .02 s and has 1.6 MB."""

    wall_s: float = 5.0
    cpu_s: float = 2.0
    memory_bytes: int = 1 << 30  # on top of what the child has when it starts
    page_bytes: int = 20_000_000  # of UTF-8


@dataclass(frozen=True, slots=True)
class ParseJob:
    """One page to parse; the other fields as in `html.to_text`."""

    html: bytes  # UTF-8
    parser: Parser = "lxml"
    via: Via = "fast"
    compare: bool = False


@dataclass(frozen=True, slots=True)
class ParseRefused:
    reason: str  # not_html | too_large | timeout | memory | crash | unparsable
    detail: str  # expected and found
    transient: bool = False  # True: load may have caused it

    def fault(self) -> Fault:
        return Fault("parse", self.reason, self.detail, self.transient)


class SandboxedParser:
    """Parses pages in a child process that it starts with the first page. Safe to share between threads."""

    def __init__(self, limits: PageLimits = PageLimits()) -> None:
        self._limits = limits
        bounds = SandboxLimits(limits.wall_s, limits.cpu_s, limits.memory_bytes)
        self._sandbox = Sandbox(f"{__name__}:answer", bounds)

    def run(
        self, jobs: Sequence[ParseJob], stop: threading.Event | None = None
    ) -> list[ParsedPage | ParseRefused]:
        """Each page's text or refusal, in order. One page's trouble is never another's.

        Raises core.sandbox.Cancelled once `stop` is set: the rest of the pages are not parsed.
        """
        out: list[ParsedPage | ParseRefused | None] = [self._refused(j.html) for j in jobs]
        self._parse(jobs, [i for i, refused in enumerate(out) if refused is None], out, stop)
        # BeautifulSoup may have been what took so long
        killed = [isinstance(a, ParseRefused) and a.reason in ("timeout", "crash") for a in out]
        slow = [i for i, j in enumerate(jobs) if j.compare and killed[i]]
        self._parse([replace(j, compare=False) for j in jobs], slow, out, stop)
        return [answer for answer in out if answer is not None]

    def _parse(
        self,
        jobs: Sequence[ParseJob],
        rows: Sequence[int],
        out: list[ParsedPage | ParseRefused | None],
        stop: threading.Event | None,
    ) -> None:
        """Puts the answers to these rows of `jobs` into `out`."""
        ways = ((_PARSERS.index(j.parser), _VIAS.index(j.via), j.compare) for j in (jobs[i] for i in rows))
        requests = [(_REQUEST.pack(*way), jobs[i].html) for i, way in zip(rows, ways, strict=True)]
        for i, answer in zip(rows, self._sandbox.run(requests, stop), strict=True):
            out[i] = _page(answer)

    def parse(self, html: str, parser: Parser = "lxml") -> tuple[str | None, Fault | None]:
        """One page's text, as a job gets it, or why there is none."""
        data = storable(html).encode()
        (page,) = self.run([ParseJob(data, parser, "fast" if parser == "lxml" else "bs4")])
        return (None, page.fault()) if isinstance(page, ParseRefused) else (page.text, None)

    def close(self) -> None:
        self._sandbox.close()

    def __enter__(self) -> SandboxedParser:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _refused(self, html: bytes) -> ParseRefused | None:
        if len(html) > self._limits.page_bytes:
            return ParseRefused(
                "too_large", f"expected at most {self._limits.page_bytes} bytes of HTML, found {len(html)}"
            )
        why = not_html(html[:20_000].decode("utf-8", "replace"))
        return ParseRefused("not_html", why) if why else None


def answer(request: bytes) -> bytes:
    """Parses one page, in the child."""
    parser, via, compare = _REQUEST.unpack_from(request)
    html = request[_REQUEST.size :].decode()
    page = to_text(html, _PARSERS[parser], _VIAS[via], bool(compare))
    text, spans = page.text.encode(), array("i", [n for span in page.hidden for n in span])
    spans.extend(n for b in page.blocks for n in (b.start, b.end, KINDS.index(b.kind)))
    return b"".join((_REPLY.pack(_WAYS.index(page.way), len(text), len(page.hidden)), text, spans.tobytes()))


def _page(answer: bytes | Refused) -> ParsedPage | ParseRefused:
    if isinstance(answer, Refused):
        reason = "unparsable" if answer.reason == "error" else answer.reason
        return ParseRefused(reason, answer.detail, answer.transient)
    way, size, spans = _REPLY.unpack_from(answer)
    text = answer[_REPLY.size : _REPLY.size + size].decode()
    flat = array("i", answer[_REPLY.size + size :])
    hidden, rest = flat[: 2 * spans], flat[2 * spans :]
    blocks = (Block(a, b, KINDS[k]) for a, b, k in zip(rest[::3], rest[1::3], rest[2::3], strict=True))
    return ParsedPage(text, tuple(zip(hidden[::2], hidden[1::2], strict=True)), _WAYS[way], tuple(blocks))
