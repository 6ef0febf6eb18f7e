"""Pages that strangers wrote, parsed under hard limits: in one long-lived child process, killed at the limit.

No signal interrupts a C parser and no thread can be killed, so the limits are the child's own: the kernel
ends it when a page takes too long (`page_child.py`). The page that it was reading becomes a refusal with a
reason, and a new child reads the ones after it. Pages stream through two pipes, so a good page costs its
copying and no more. The child is started, not forked, so a process with threads can have one. It ends when
its input ends: also when this process is killed.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import get_args

from raypipe.core.records import Fault
from raypipe.text.html import ParsedPage, Parser, Via, Way, not_html, storable

PARSERS: tuple[Parser, ...] = get_args(Parser)
VIAS: tuple[Via, ...] = get_args(Via)
WAYS: tuple[Way, ...] = get_args(Way)
REQUEST = struct.Struct("<IBBB")  # bytes of HTML that follow, number of parser, of via, whether to compare
REPLY = struct.Struct("<BBII")  # outcome, number of way, bytes of text (or detail), of spans that follow
OUTCOMES = ("page", "memory", "unparsable")

_STALL_S = 30.0  # over the wall limit: a child that even its own alarm does not end, or that does not start
_PIPE_BYTES = 1 << 20  # asked of the kernel; its 64 KiB would switch processes five times a page


@dataclass(frozen=True, slots=True)
class Limits:
    """What one page may take. The largest of the real pages takes .02 s and has 1.6 MB."""

    wall_s: float = 5.0
    cpu_s: float = 2.0
    memory_bytes: int = 1 << 30  # on top of what the child has when it starts
    page_bytes: int = 20_000_000  # of UTF-8


@dataclass(frozen=True, slots=True)
class Job:
    """One page to parse; the other fields as in `html.to_text`."""

    html: bytes  # UTF-8
    parser: Parser = "lxml"
    via: Via = "fast"
    compare: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a page has no text."""

    reason: str  # not_html | too_large | timeout | memory | crash | unparsable
    detail: str  # expected and found
    transient: bool = False  # True: load may have caused it

    def fault(self) -> Fault:
        return Fault("parse", self.reason, self.detail, self.transient)


class Stopped(Exception):
    """Nobody waits for these pages any more."""


class Limited:
    """Parses pages in a child process that it starts with the first page. Safe to share between threads."""

    def __init__(self, limits: Limits = Limits()) -> None:
        self._limits = limits
        self._child: _Child | None = None
        self._lock = threading.Lock()

    def run(self, jobs: Sequence[Job], stop: threading.Event | None = None) -> list[ParsedPage | Refused]:
        """Each page's text or refusal, in order. One page's trouble is never another's.

        Raises Stopped once `stop` is set, which is looked at between pages: what is left is not parsed.
        """
        out: list[ParsedPage | Refused | None] = [self._refused(j.html) for j in jobs]
        todo = deque((i, j) for i, (j, r) in enumerate(zip(jobs, out, strict=True)) if r is None)
        second_try = False  # a child can also be killed by someone else, and then the page is innocent
        with self._lock:
            while todo:
                if stop is not None and stop.is_set():
                    raise Stopped
                child = self._child or _Child(self._limits)
                self._child = child
                exhausted = False
                for answer in child.answers([job for _, job in todo]):
                    out[todo.popleft()[0]] = answer
                    second_try = False
                    if exhausted := isinstance(answer, Refused) and answer.reason == "memory":
                        break
                    if stop is not None and stop.is_set():
                        self.close()  # it reads on
                        raise Stopped
                if exhausted:  # what is left of its memory is in pieces
                    self.close()
                    continue
                if not todo:
                    break
                self.close()
                why = child.end()
                i, job = todo[0]
                if job.compare:  # BeautifulSoup may have been what took so long
                    todo[0] = (i, replace(job, compare=False))
                elif why.reason == "crash" and not second_try:
                    second_try = True
                else:
                    out[todo.popleft()[0]] = why
                    second_try = False
        return [r for r in out if r is not None]

    def parse(self, html: str, parser: Parser = "lxml") -> tuple[str | None, Fault | None]:
        """One page's text, as a job gets it, or why there is none."""
        data = storable(html).encode()
        (page,) = self.run([Job(data, parser, "fast" if parser == "lxml" else "bs4")])
        return (None, page.fault()) if isinstance(page, Refused) else (page.text, None)

    def close(self) -> None:
        """Ends the child. The next page starts another."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def __enter__(self) -> Limited:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _refused(self, html: bytes) -> Refused | None:
        if len(html) > self._limits.page_bytes:
            return Refused(
                "too_large", f"expected at most {self._limits.page_bytes} bytes of HTML, found {len(html)}"
            )
        why = not_html(html[:20_000].decode("utf-8", "replace"))
        return Refused("not_html", why) if why else None


class _Child:
    """A running `page_child` and the pipes to it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        arguments = [str(n) for n in (limits.wall_s, limits.cpu_s, limits.memory_bytes)]
        # -P and the path: it finds the modules that this process finds, none by chance in a working directory
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "raypipe.text.page_child", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
        )
        assert self._process.stdin and self._process.stdout
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        _widen(self._to, self._from)
        self._stalled = False
        self.kill = weakref.finalize(self, _kill, self._process)

    def answers(self, jobs: Sequence[Job]) -> Iterator[ParsedPage | Refused]:
        """The answer to each job as it comes; fewer if the child ends or stalls (`end` says why)."""
        out = deque(part for job in jobs for part in _request(job))
        came, left = bytearray(), len(jobs)
        allowed = self._limits.wall_s + _STALL_S
        deadline = time.monotonic() + allowed
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        poll.register(self._to, select.POLLOUT)
        while left:
            ready = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if not ready:
                self._stalled = True
                return
            if self._to in ready and not _send(self._to, out):
                poll.unregister(self._to)
            if self._from in ready:
                data = os.read(self._from, _PIPE_BYTES)
                if not data:
                    return
                came += data
                while left and (reply := _take(came)) is not None:
                    left -= 1
                    deadline = time.monotonic() + allowed
                    yield reply

    def end(self) -> Refused:
        """Why the child, now killed or dead, did not answer."""
        code = self._process.returncode
        limits = self._limits
        if code == -signal.SIGPROF:
            return Refused("timeout", f"expected at most {limits.cpu_s:g} s of CPU, the page took more")
        if code == -signal.SIGALRM or self._stalled:
            return Refused(
                "timeout", f"expected at most {limits.wall_s:g} s, the page took more", transient=True
            )
        return Refused("crash", f"expected a text, found the parser's process ended with code {code}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Lets a child go that has ended or will not: never blocks on it."""
    assert process.stdin and process.stdout
    process.stdin.close()
    process.stdout.close()
    try:
        process.wait(1.0)  # it may be ending by itself, and its own reason is the one to keep
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _widen(*pipes: int) -> None:
    if sys.platform == "linux":
        from fcntl import F_SETPIPE_SZ, fcntl

        for pipe in pipes:
            fcntl(pipe, F_SETPIPE_SZ, _PIPE_BYTES)


def _request(job: Job) -> tuple[memoryview, memoryview]:
    head = REQUEST.pack(len(job.html), PARSERS.index(job.parser), VIAS.index(job.via), job.compare)
    return memoryview(head), memoryview(job.html)


def _send(pipe: int, parts: deque[memoryview]) -> bool:
    """Writes what fits now. False when there is nothing more to write, or nobody to read it."""
    while parts:
        try:
            sent = os.write(pipe, parts[0]) if len(parts[0]) else 0
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False  # the end of its output tells that it is gone
        parts[0] = parts[0][sent:]
        if not len(parts[0]):
            parts.popleft()
    return False


def _take(came: bytearray) -> ParsedPage | Refused | None:
    """The first whole reply, taken out of what came; None if it is not whole yet."""
    if len(came) < REPLY.size:
        return None
    outcome, way, text_bytes, span_bytes = REPLY.unpack_from(came)
    whole = REPLY.size + text_bytes + span_bytes
    if len(came) < whole:
        return None
    text = came[REPLY.size : REPLY.size + text_bytes].decode()
    flat = array("i", bytes(came[whole - span_bytes : whole]))
    del came[:whole]
    if OUTCOMES[outcome] != "page":
        return Refused(OUTCOMES[outcome], text)
    return ParsedPage(text, tuple(zip(flat[::2], flat[1::2], strict=True)), WAYS[way])
