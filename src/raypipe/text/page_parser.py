"""Parses untrusted pages under hard limits (`core.sandbox`).

Knows the request and the reply of a page, and which pages never reach a parser.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from raypipe.core.records import Block, Fault
from raypipe.core.sandbox import Refused, Sandbox, SandboxLimits
from raypipe.text.html import ParsedPage, Parser, Via, not_html, storable, to_text

Answer: TypeAlias = ParsedPage | Fault

PROBE = b'["lxml", "fast", false]\n' + b"<p>One of many <b>words</b>.</p>\n" * 3_000
"""A page that takes .02 s, as the heaviest real one does: a machine that cannot parse it within the limits
parses no page."""


@dataclass(frozen=True, slots=True)
class PageLimits:
    """The limits of one page. The largest of the real pages takes .02 s and has 1.6 MB."""

    wall_s: float = 5.0
    cpu_s: float = 2.0
    memory_bytes: int = 1 << 30  # on top of what the child has when it starts
    page_bytes: int = 20_000_000  # of UTF-8


@dataclass(frozen=True, slots=True)
class ParseJob:
    """A page to parse; the other fields as in `html.to_text`."""

    html: bytes  # UTF-8
    parser: Parser = "lxml"
    via: Via = "fast"
    compare: bool = False


class SandboxedParser:
    """Parses pages in a child process that it starts with the first page. Safe to share between threads."""

    def __init__(self, limits: PageLimits = PageLimits()) -> None:
        self._limits = limits
        bounds = SandboxLimits(limits.wall_s, limits.cpu_s, limits.memory_bytes)
        self._sandbox = Sandbox(f"{__name__}:answer", bounds, PROBE)

    def run(self, jobs: Sequence[ParseJob], stop: threading.Event | None = None) -> list[Answer]:
        """Each page's text or fault, in order: not_html, too_large, timeout, memory, crash, unparsable.

        Raises core.sandbox.Cancelled once `stop` is set: the rest of the pages are not parsed. Raises
        WorkerBroken where this machine cannot parse any page now.
        """
        refused = ((i, self._refused(j.html)) for i, j in enumerate(jobs))
        out: dict[int, Answer] = {i: why for i, why in refused if why}
        out |= self._parse({i: j for i, j in enumerate(jobs) if i not in out}, stop)
        # BeautifulSoup may have been what took so long
        compared = {i: a for i, a in out.items() if jobs[i].compare and isinstance(a, Fault)}
        slow = [i for i, refused in compared.items() if refused.reason in ("timeout", "crash")]
        out |= self._parse({i: replace(jobs[i], compare=False) for i in slow}, stop)
        return [out[i] for i in range(len(jobs))]

    def _parse(self, jobs: Mapping[int, ParseJob], stop: threading.Event | None) -> dict[int, Answer]:
        heads = (json.dumps((j.parser, j.via, j.compare)).encode() + b"\n" for j in jobs.values())
        requests = [(head, j.html) for head, j in zip(heads, jobs.values(), strict=True)]
        return dict(zip(jobs, map(_page, self._sandbox.run(requests, stop)), strict=True))

    def parse(self, html: str, parser: Parser = "lxml") -> tuple[str | None, Fault | None]:
        """Returns one page's text, as a job gets it, or why there is none."""
        data = storable(html).encode()
        (page,) = self.run([ParseJob(data, parser, "fast" if parser == "lxml" else "bs4")])
        return (None, page) if isinstance(page, Fault) else (page.text, None)

    def close(self) -> None:
        self._sandbox.close()

    def __enter__(self) -> SandboxedParser:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _refused(self, html: bytes) -> Fault | None:
        if len(html) > self._limits.page_bytes:
            detail = f"expected at most {self._limits.page_bytes} bytes of HTML, found {len(html)}"
            return Fault("parse", "too_large", detail, transient=False)
        why = not_html(html[:20_000].decode("utf-8", "replace"))
        return Fault("parse", "not_html", why, transient=False) if why else None


def answer(request: bytes) -> bytes:
    """Parses one page, in the child. A line of JSON says how; the page follows."""
    head, _, html = request.partition(b"\n")
    page = to_text(html.decode(), *json.loads(head))
    blocks = [(b.start, b.end, b.kind) for b in page.blocks]
    return json.dumps((page.text, page.hidden, page.way, blocks)).encode()


def _page(answer: bytes | Refused) -> Answer:
    if isinstance(answer, Refused):
        reason = "unparsable" if answer.reason == "error" else answer.reason
        return Fault("parse", reason, answer.detail, answer.transient)
    text, hidden, way, blocks = json.loads(answer)
    return ParsedPage(text, tuple((a, b) for a, b in hidden), way, tuple(Block(*b) for b in blocks))
