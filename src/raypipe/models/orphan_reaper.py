"""Watcher that ends an engine's processes when the engine is closed or its starting process ends in any way.

vLLM's children end with a parent that exits normally. After SIGKILL of the parent, they would keep running
and hold their memory. So children started between `OrphanReaper(...)` and `arm()` carry a mark in their
environment. A watching process, in a session of its own, reads a pipe from the starting process. When the
pipe closes, the watcher ends all marked processes. Linux only, like vLLM. Imports only the standard library.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path

NAME = "RAYPIPE_ENGINE"
KEEP = "SPT_NOENV"  # stops setproctitle, which vLLM calls, from overwriting the environment in /proc
PATIENCE_S = 10.0  # most seconds to wait for processes to end, after SIGTERM and again after SIGKILL


class OrphanReaper:
    """Watcher of the child processes that start between its creation and `arm`."""

    def __init__(self) -> None:
        resource_tracker.ensure_running()  # started before the mark is set, so that it is not marked
        mark = uuid.uuid4().hex
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # outlives a signal to the whole group
        )
        os.environ.update({NAME: mark, KEEP: "1"})  # inherited by vLLM's children and theirs

    def arm(self) -> None:
        """Stops marking new children; the watcher still ends the marked children."""
        for name in (NAME, KEEP):
            os.environ.pop(name, None)

    def close(self) -> None:
        """Ends the marked children that still run, and waits for them, at most twice PATIENCE_S."""
        self.arm()
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        self._watcher.wait()


def marked(mark: str) -> list[int]:
    """Returns the ids of the processes whose environment has the mark."""
    wanted, pids = f"{NAME}={mark}".encode(), []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                pids.append(int(path.name))
    return pids


def end(mark: str) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + PATIENCE_S
        for pid in marked(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        while marked(mark) and time.monotonic() < deadline:
            time.sleep(0.1)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # until the other end closes
    end(sys.argv[1])
