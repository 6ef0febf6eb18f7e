"""Ends an engine's processes when the process that started them ends, in any way.

vLLM's children end with their parent when it exits in good order; after SIGKILL they run on, with their
memory. Those started between `OrphanReaper(...)` and `arm()` carry a mark in their environment. A small
process in a session of its own holds one end of a pipe: when the other end closes, it ends what has the mark.
Linux only, as vLLM is. Knows no engine; the watching process imports the standard library alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from multiprocessing import resource_tracker
from pathlib import Path

NAME = "RAYPIPE_ENGINE"
KEEP = "SPT_NOENV"  # else setproctitle, which vLLM calls, writes titles over the environment in /proc
PATIENCE_S = 10.0  # between SIGTERM and SIGKILL


class OrphanReaper:
    """Watches the child processes that are started from here until `arm`."""

    def __init__(self) -> None:
        resource_tracker.ensure_running()  # this process's own, which must not inherit the mark
        mark = uuid.uuid4().hex
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # outlives a signal to the whole group
        )
        os.environ.update({NAME: mark, KEEP: "1"})  # the only way to reach vLLM's children and theirs

    def arm(self) -> None:
        """Ends the watch for new children: all have started."""
        for name in (NAME, KEEP):
            os.environ.pop(name, None)

    def close(self) -> None:
        """Ends the remaining children, and waits for their end."""
        self.arm()
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        self._watcher.wait()


def marked(mark: str) -> list[int]:
    """Processes whose environment has the mark."""
    wanted, found = f"{NAME}={mark}".encode(), []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                if wanted in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
            except OSError:  # ended meanwhile, or another user's
                continue
    return found


def end(mark: str) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + PATIENCE_S
        for pid in marked(mark):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        while marked(mark) and time.monotonic() < deadline:
            time.sleep(0.1)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # until the other end closes
    end(sys.argv[1])
