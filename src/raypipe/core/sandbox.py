"""Sandbox for a function from bytes to bytes: one long-lived child process, killed at hard limits.

No signal interrupts C code and no thread can be killed, so the child limits itself. Two kernel timers are
armed for each request, SIGALRM for wall time and SIGPROF for CPU time. They end the child even where no
Python handler could run. The child's address space is capped once. Requests and answers stream through two
pipes, so the sandbox adds only the cost of copying. The child is started, not forked, so a process with
threads can have one. It ends when its input ends, so also if this process is killed.

If the function raises, its request is refused and the child continues; only a MemoryError also ends the
child. The end of a child does not prove that the request is to blame, because a machine without memory kills
children, too. So the next child first answers the probe, an ordinary request from the caller. If the system
killed a child, the next child also fills as much memory as the killed one had. A request is refused for good
only after it has ended TRIES children, and a probe was answered after each. If load may have caused the end,
the request is refused after the first child, and the refusal is marked as transient. If a probe is not
answered, no request is to blame, and WorkerBroken is raised.
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
"""A request in pieces, which the pipe joins: a large request is not copied to add a header."""

_REQUEST = struct.Struct("<IQ")  # size of the request; bytes of memory to fill first
_REPLY = struct.Struct("<BI")  # outcome; size of the reply
_OUTCOMES: tuple[Literal["done", "memory", "error"], ...] = ("done", "memory", "error")

TRIES = 2  # children that one request may end: the first may have been killed by chance
_STALL_S = 30.0  # seconds over the wall limit until a child counts as stalled: not started, or no alarm
_LOOK_S = 0.01  # seconds between two looks at a child's memory, which may grow by 10 MB meanwhile
_PIPE_BYTES = 1 << 20  # requested; the kernel's 64 KiB would switch processes five times a page


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    wall_s: float
    cpu_s: float
    memory_bytes: int  # on top of the child's memory at its start


@dataclass(frozen=True, slots=True)
class Refused:
    reason: Literal["timeout", "memory", "crash", "error"]
    detail: str  # what was expected and found; for an error the function's exception
    transient: bool = False  # True: load may have caused it


class Cancelled(Exception):
    """Raised by `Sandbox.run` after its caller set `stop`."""


class Sandbox:
    """A child process that answers requests, started by the first request. Threads may share it."""

    def __init__(self, function: str, limits: SandboxLimits, probe: bytes = b"") -> None:
        """Stores the settings; starts no child. `function` is the "module:name" of a function from bytes to
        bytes. `probe` is an ordinary request that every healthy child answers. An exception counts as an
        answer."""
        self._function, self._limits, self._probe = function, limits, probe
        self._child: _Child | None = None
        self._lock = threading.Lock()

    def run(
        self, requests: Sequence[Parts], stop: threading.Event | None = None, before: Parts | None = None
    ) -> list[bytes | Refused]:
        """Returns an answer or a refusal for each request, in order. A refused request does not affect the
        others. `before` is a request that each child answers first, such as a file to open. Raises Cancelled
        after `stop` is set, which is checked between requests. Raises WorkerBroken if a child has ended and
        the next one does not answer the probe. Raises Unavailable if no process can be started."""
        out: list[bytes | Refused] = []
        ended = 0  # number of children that the next request ended
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
        """Adds answers to `out`. Returns None if all requests are answered. Otherwise returns why the child
        ended at the next request, after a new child has answered the probe."""
        child = self._child = self._child or _Child(self._function, self._limits)
        why, left = None, len(requests)
        opens = before is not None and child.before is not before
        for answer in child.answers([before, *requests] if before is not None and opens else requests):
            if isinstance(answer, Refused) and answer.reason == "memory":
                why = answer  # its memory may be fragmented: end this child
                break
            if opens:
                opens, child.before = False, before
                continue
            out.append(answer)
            left -= 1
            if left and stop is not None and stop.is_set():
                self.close()  # otherwise it would answer the remaining requests
                raise Cancelled
        if not left:
            return None
        self.close()
        why = why or child.end()
        if child.killed and child.memory and self._failed_probe(child.memory):
            why = replace(why, transient=True)  # no new child can get as much memory
        if self._child is None and (failure := self._failed_probe()):
            raise WorkerBroken(
                f"{self._function}: a child process failed on a request that is known to work: "
                f"{failure.reason}: {failure.detail}. No row is blamed. Check whether this machine has "
                "memory and processors left (`free`, `dmesg`)"
            )
        return why

    def _failed_probe(self, memory: int = 0) -> Refused | None:
        """Starts a child, which fills `memory` bytes and then gets the probe. If the child answers the probe,
        keeps the child and returns None. Otherwise ends the child and returns why it did not answer."""
        self._child = child = _Child(self._function, self._limits)
        answer = next(child.answers([(self._probe,)], memory), None)
        failure = answer if isinstance(answer, Refused) and answer.reason == "memory" else None
        if answer is not None and failure is None:
            return None
        self.close()
        return failure or child.end()

    def close(self) -> None:
        """Ends the child. The next request starts another."""
        if self._child is not None:
            self._child.kill()
            self._child = None


class _Child:
    def __init__(self, function: str, limits: SandboxLimits) -> None:
        self._limits = limits
        arguments = [function, *(str(n) for n in (limits.wall_s, limits.cpu_s, limits.memory_bytes))]
        # -P and the path: the child imports this process's modules, none from a working directory
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
        self.before: Parts | None = None  # the request `before` that it has answered
        self.memory = 0  # most bytes that it had at a look
        self.kill = weakref.finalize(self, _kill, self._process)

    @property
    def killed(self) -> bool:
        """True if the system or another process killed the child, as happens when memory runs out."""
        return self._process.returncode == -signal.SIGKILL and not self._stalled

    def answers(self, requests: Sequence[Parts], memory: int = 0) -> Iterator[bytes | Refused]:
        """Yields the answer to each request as it arrives. Stops early if the child ends or stalls; `end`
        then gives the reason. `memory` is the number of bytes that the child fills before each request."""
        framed = (part for r in requests for part in (_REQUEST.pack(sum(map(len, r)), memory), *r))
        out = deque(memoryview(part) for part in framed)
        received, left = bytearray(), len(requests)
        allowed = self._limits.wall_s + _STALL_S
        deadline = time.monotonic() + allowed
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        poll.register(self._to, select.POLLOUT)
        while left:
            ready = dict(poll.poll(_LOOK_S * 1000))
            if not ready:
                with suppress(OSError, IndexError, ValueError):  # it has ended, or this is not Linux
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
                received += data
                while left and (reply := _take(received)) is not None:
                    left -= 1
                    deadline = time.monotonic() + allowed
                    yield reply

    def end(self) -> Refused:
        """Returns the reason why the child, which has ended, did not answer."""
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
    """Closes a child's pipes and ends the child, within a second or so."""
    assert process.stdin and process.stdout
    process.stdin.close()
    process.stdout.close()
    try:
        process.wait(1.0)  # it may be ending by itself; its own exit code tells the reason
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _send(pipe: int, parts: deque[memoryview]) -> bool:
    """Writes as many bytes as the pipe takes. Returns False if all are written or the reader has ended."""
    while parts:
        try:
            sent = os.write(pipe, parts[0]) if len(parts[0]) else 0
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False  # the end of its output shows that it has ended
        parts[0] = parts[0][sent:]
        if not len(parts[0]):
            parts.popleft()
    return False


def _take(received: bytearray) -> bytes | Refused | None:
    """Removes the first reply from the received bytes, and returns it. Returns None if it is incomplete."""
    if len(received) < _REPLY.size:
        return None
    outcome, size = _REPLY.unpack_from(received)
    whole = _REPLY.size + size
    if len(received) < whole:
        return None
    content = bytes(memoryview(received)[_REPLY.size : whole])
    del received[:whole]
    kind = _OUTCOMES[outcome]
    return content if kind == "done" else Refused(kind, content.decode())


# ---------------------------------------------------------------- the child


def main(function: str, wall_s: float, cpu_s: float, memory_bytes: int) -> None:
    module, _, name = function.partition(":")
    answer: Callable[[bytes], bytes] = getattr(importlib.import_module(module), name)
    requests = os.fdopen(0, "rb", buffering=1 << 20)
    replies = os.fdopen(os.dup(1), "wb", buffering=1 << 20)
    os.dup2(2, 1)  # a library prints to the log, not among the replies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the parent decides
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # the only system that enforces it: the limit on top of current use
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
            bytearray(min(memory, memory_bytes * 3 // 4))  # MemoryError: its own limit, not the machine's
        outcome = "done"
        try:
            content = answer(request)
        except MemoryError:
            outcome, content = "memory", b"expected at most %d bytes of memory, found more" % memory_bytes
        except Exception as e:  # any exception over a hostile request refuses only that request
            outcome, content = "error", f"{type(e).__name__}: {e}"[:500].encode("utf-8", "replace")
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            replies.writelines((_REPLY.pack(_OUTCOMES.index(outcome), len(content)), content))
            replies.flush()
        except BrokenPipeError:  # the parent has closed the pipes
            os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
