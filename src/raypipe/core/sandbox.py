"""Runs a function of bytes under hard limits: in one long-lived child process, killed at the limit.

No signal interrupts C code and no thread can be killed, so the limits are the child's own: two kernel timers,
armed for each request, end it where no Python handler could run (SIGALRM for time on the wall, SIGPROF for
time on the CPU), and its address space is capped once. Requests stream through two pipes, so a good one costs
its copying and no more. The child is started, not forked, so a process with threads can have one. It ends
when its input ends: also when this process is killed.

A child that ends does not say whose fault that is: a machine without memory kills it, too. So the next child
answers a request of the caller's own first, the probe, and where the system killed the one before, it fills
as much memory as that one had. Only a request that ended TRIES children, with a probe answered after each, is
refused for good, with a reason. Where a probe is not answered, no request is to blame: WorkerBroken.

Does not know what is in a request (`text.html`: pages).
"""

from __future__ import annotations

import importlib
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from raypipe.core.errors import Unavailable, WorkerBroken

Parts: TypeAlias = tuple[bytes, ...]
"""A request, in pieces that are joined on the way: a large one is not copied to get a header."""

_REQUEST = struct.Struct("<IQ")  # bytes that follow; of memory, which the child fills up to first
_REPLY = struct.Struct("<BI")  # outcome, bytes that follow
_OUTCOMES: tuple[Literal["done", "memory", "error"], ...] = ("done", "memory", "error")

TRIES = 2  # children that one request may end: the first may have been killed by chance
_STALL_S = 30.0  # over the wall limit: a child that even its own alarm does not end, or that does not start
_LOOK_S = 0.01  # between two looks at a child's memory: 10 MB, at a GB/s
_PIPE_BYTES = 1 << 20  # requested; the kernel's 64 KiB would switch processes five times a page


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    wall_s: float
    cpu_s: float
    memory_bytes: int  # on top of what the child has when it starts


@dataclass(frozen=True, slots=True)
class Refused:
    reason: Literal["timeout", "memory", "crash", "error"]
    detail: str  # expected and found; error: what the function raised
    transient: bool = False  # True: load may have caused it


class Cancelled(Exception):
    """The caller no longer waits for the answers."""


class Sandbox:
    """Answers requests in a child process that it starts with the first. Safe to share between threads."""

    def __init__(self, function: str, limits: SandboxLimits, probe: bytes = b"") -> None:
        """`function`: "module:name" of a function of bytes that returns bytes. `probe`: an ordinary request,
        which any child answers that is well; an exception is an answer."""
        self._function, self._limits, self._probe = function, limits, probe
        self._child: _Child | None = None
        self._lock = threading.Lock()

    def run(
        self, requests: Sequence[Parts], stop: threading.Event | None = None, before: Parts | None = None
    ) -> list[bytes | Refused]:
        """The answer to each request, or its refusal, in order. One request's trouble is never another's.

        `before`: what each child has to answer before these, such as a file to open. Raises Cancelled once
        `stop` is set, which is looked at between requests: the rest are not computed. Raises WorkerBroken
        where a child has ended and the next does not answer the probe.
        """
        out: list[bytes | Refused] = []
        ended = 0  # children, by the request that comes next
        with self._lock:
            while len(out) < len(requests):
                if stop is not None and stop.is_set():
                    raise Cancelled
                answered = len(out)
                why = self._add(out, requests[answered:], stop, before)
                if why is None:
                    break
                ended = 1 if len(out) > answered else ended + 1
                if why.transient or ended == TRIES:
                    out.append(why)
                    ended = 0
        return out

    def _add(
        self,
        out: list[bytes | Refused],
        requests: Sequence[Parts],
        stop: threading.Event | None,
        before: Parts | None,
    ) -> Refused | None:
        """Adds answers. Returns why the next request has none, once another child has answered the probe."""
        child = self._child = self._child or _Child(self._function, self._limits)
        why, left = None, len(requests)
        opens = before is not None and child.before is not before
        for answer in child.answers([before, *requests] if before is not None and opens else requests):
            if isinstance(answer, Refused) and answer.reason == "memory":
                why = answer  # what is left of its memory is in pieces
                break
            if opens:
                opens, child.before = False, before
                continue
            out.append(answer)
            left -= 1
            if left and stop is not None and stop.is_set():
                self.close()  # it reads on
                raise Cancelled
        if not left:
            return None
        self.close()
        return self._verdict(why or child.end(), child.memory if child.killed else 0)

    def _verdict(self, why: Refused, memory: int) -> Refused:
        """Returns why a child ended, which had `memory` bytes if the system killed it.

        Raises WorkerBroken where no other child is well. Where one is, but cannot have as much memory, the
        next run may.
        """
        if memory and self._trouble(memory):
            why = replace(why, transient=True)
        if self._child is None and (found := self._trouble()):
            raise WorkerBroken(
                f"{self._function}: expected a child process to answer a request that is known to be fine, "
                f"found {found.reason}: {found.detail}. No row is blamed. See whether this machine has "
                f"memory and processors left (`free`, `dmesg`)"
            )
        return why

    def _trouble(self, memory: int = 0) -> Refused | None:
        """Starts a child that fills `memory` bytes and answers the probe. Returns why it did not."""
        self._child = child = _Child(self._function, self._limits)
        answer = next(child.answers([(self._probe,)], memory), None)
        if answer is not None and not (isinstance(answer, Refused) and answer.reason == "memory"):
            return None
        self.close()
        return answer if isinstance(answer, Refused) else child.end()

    def close(self) -> None:
        """Ends the child. The next request starts another."""
        if self._child is not None:
            self._child.kill()
            self._child = None


class _Child:
    def __init__(self, function: str, limits: SandboxLimits) -> None:
        self._limits = limits
        arguments = [function, *(str(n) for n in (limits.wall_s, limits.cpu_s, limits.memory_bytes))]
        # -P and the path: it finds the modules that this process finds, none by chance in a working directory
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "raypipe.core.sandbox", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, "PYTHONPATH": path},
            )
        except OSError as e:
            raise Unavailable(f"this machine cannot start a process now: {e}") from e
        assert self._process.stdin and self._process.stdout
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        if sys.platform == "linux":
            from fcntl import F_SETPIPE_SZ, fcntl  # other systems lack the first

            for pipe in (self._to, self._from):
                fcntl(pipe, F_SETPIPE_SZ, _PIPE_BYTES)
        self._stalled = False
        self.before: Parts | None = None  # what it answered before other requests
        self.memory = 0  # bytes that it had when it was last looked at
        self.kill = weakref.finalize(self, _kill, self._process)

    @property
    def killed(self) -> bool:
        """Returns whether it was killed from outside, as a system without memory does."""
        return self._process.returncode == -signal.SIGKILL and not self._stalled

    def answers(self, requests: Sequence[Parts], memory: int = 0) -> Iterator[bytes | Refused]:
        """The answer to each request as it arrives; fewer if the child ends or stalls (`end` says why).
        `memory`: bytes that it fills before each."""
        framed = (part for r in requests for part in (_REQUEST.pack(sum(map(len, r)), memory), *r))
        out = deque(memoryview(part) for part in framed)
        came, left = bytearray(), len(requests)
        allowed = self._limits.wall_s + _STALL_S
        deadline = time.monotonic() + allowed
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        poll.register(self._to, select.POLLOUT)
        while left:
            ready = dict(poll.poll(_LOOK_S * 1000))
            if not ready:
                with suppress(OSError, IndexError, ValueError):  # it has ended, or this is no Linux
                    pages = Path(f"/proc/{self._process.pid}/statm").read_text("ascii").split()[1]
                    self.memory = max(self.memory, int(pages) * resource.getpagesize())
                if time.monotonic() > deadline:
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
            return Refused("timeout", f"expected at most {limits.cpu_s:g} s of CPU, found more")
        if code == -signal.SIGALRM or self._stalled:
            return Refused("timeout", f"expected at most {limits.wall_s:g} s, found more", transient=True)
        if code == -signal.SIGABRT:  # libraries in C++ and Rust abort where an allocation fails
            return Refused("memory", f"expected at most {limits.memory_bytes} bytes of memory, found more")
        return Refused("crash", f"expected an answer, found that the child process ended with code {code}")


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


def _send(pipe: int, parts: deque[memoryview]) -> bool:
    """Writes what fits now. False when there is nothing more to write, or the reader is gone."""
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


def _take(came: bytearray) -> bytes | Refused | None:
    """The first whole reply, removed from what arrived; None if it is not whole yet."""
    if len(came) < _REPLY.size:
        return None
    outcome, size = _REPLY.unpack_from(came)
    whole = _REPLY.size + size
    if len(came) < whole:
        return None
    content = bytes(memoryview(came)[_REPLY.size : whole])
    del came[:whole]
    kind = _OUTCOMES[outcome]
    return content if kind == "done" else Refused(kind, content.decode())


# ---------------------------------------------------------------- the child


def main(function: str, wall_s: float, cpu_s: float, memory_bytes: int) -> None:
    module, _, name = function.partition(":")
    answer: Callable[[bytes], bytes] = getattr(importlib.import_module(module), name)
    requests = os.fdopen(0, "rb", buffering=1 << 20)
    replies = os.fdopen(os.dup(1), "wb", buffering=1 << 20)
    os.dup2(2, 1)  # what a library prints goes to the log, not among the replies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent decides
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # the only system that enforces it: so much above what is used now
        with open("/proc/self/statm", encoding="ascii") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes, used + memory_bytes))
    while head := requests.read(_REQUEST.size):
        size, memory = _REQUEST.unpack(head)
        request = requests.read(size)
        if len(request) < size:
            return
        signal.setitimer(signal.ITIMER_REAL, wall_s)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        with suppress(MemoryError):
            bytearray(min(memory, memory_bytes * 3 // 4))  # the limit is its own, not the machine's
        outcome = "done"
        try:
            content = answer(request)
        except MemoryError:
            outcome, content = "memory", b"expected at most %d bytes of memory, found more" % memory_bytes
        except Exception as e:  # whatever the function makes of a hostile request is that request's refusal
            outcome, content = "error", f"{type(e).__name__}: {e}"[:500].encode("utf-8", "replace")
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            replies.writelines((_REPLY.pack(_OUTCOMES.index(outcome), len(content)), content))
            replies.flush()
        except BrokenPipeError:  # the parent has let go of this child
            os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
