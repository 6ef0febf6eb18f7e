"""The program that parses pages for `limits.SandboxedParser`: jobs on its input, texts on its output.

It limits itself. Two kernel timers, armed for each page, end the process where no Python handler could run:
SIGALRM for time on the wall, SIGPROF for time on the CPU. The address space is capped once.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from array import array
from typing import BinaryIO

from raypipe.text.html import to_text
from raypipe.text.limits import OUTCOMES, PARSERS, REPLY, REQUEST, VIAS, WAYS


def main(wall_s: float, cpu_s: float, memory_bytes: int) -> None:
    """Answers jobs until the input ends."""
    jobs = os.fdopen(0, "rb", buffering=1 << 20)
    answers = os.fdopen(os.dup(1), "wb", buffering=1 << 20)
    os.dup2(2, 1)  # whatever a library prints goes to the log, not among the answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent decides
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _cap(memory_bytes)
    while head := jobs.read(REQUEST.size):
        size, parser, via, compare = REQUEST.unpack(head)
        html = jobs.read(size)
        if len(html) < size:
            return
        signal.setitimer(signal.ITIMER_REAL, wall_s)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        outcome, way, text, spans = _parse(html, parser, via, bool(compare))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            _answer(answers, outcome, way, text, spans)
        except BrokenPipeError:  # the parent has let go of this child
            os._exit(0)


def _parse(html: bytes, parser: int, via: int, compare: bool) -> tuple[str, int, bytes, bytes]:
    try:
        page = to_text(html.decode(), PARSERS[parser], VIAS[via], compare)
        flat = array("i", [n for span in page.hidden for n in span])
        return "page", WAYS.index(page.way), page.text.encode(), flat.tobytes()
    except MemoryError:
        return "memory", 0, b"the page needs more memory than one page may have", b""
    except Exception as e:  # whatever a parser makes of a hostile page is that page's refusal
        return "unparsable", 0, f"{type(e).__name__}: {e}"[:500].encode("utf-8", "replace"), b""


def _answer(to: BinaryIO, outcome: str, way: int, text: bytes, spans: bytes) -> None:
    to.write(REPLY.pack(OUTCOMES.index(outcome), way, len(text), len(spans)))
    to.write(text)
    to.write(spans)
    to.flush()


def _cap(memory_bytes: int) -> None:
    """Caps the address space at what is used now and so much more. Only Linux holds a process to it."""
    if sys.platform == "linux":
        with open("/proc/self/statm", encoding="ascii") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes, used + memory_bytes))


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
