"""A Ray of a drill's own, whose processes can be ended without ending others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

import raypipe

PATIENCE_S = 600.0  # for a life, or what is left of one


def environment() -> dict[str, str]:
    """What the processes of a drill find: this checkout's raypipe, and a Ray that needs no token."""
    # 15 s, after which a raylet gives up its agents and ends, are short on a crowded machine.
    paths = os.pathsep.join([str(Path(raypipe.__file__).parents[1]), str(Path(__file__).parent)])
    patient = {"RAY_agent_register_timeout_ms": "120000", "PYTHONPATH": paths}
    # At Ray's own niceness of 15 a worker gets a thirtieth of a core where other processes compute.
    fixed = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    return {**os.environ, **fixed, **patient}


def raylet(session: int) -> psutil.Process:
    """The raylet of the head that this drill started: the only one in the session of its parent."""
    (found,) = (p for p in psutil.process_iter() if _in(p, session) and p.name() == "raylet")
    return found


def workers(session: int) -> list[psutil.Process]:
    return [p for p in raylet(session).children() if "MapBatches" in " ".join(p.cmdline())]


def _in(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session
    except (ProcessLookupError, PermissionError):
        return False


class Head:
    """A head and its processes, in a session of their own."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    @property
    def session(self) -> int:
        """The session of all its processes."""
        assert self._process is not None
        return self._process.pid

    def up(self) -> None:
        """Starts it, or restarts it where its raylet is gone."""
        if self._process is not None and self.lives():
            return
        self.down()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("ray")),
                "start",
                "--head",
                "--block",
                f"--port={port}",
                "--node-ip-address=127.0.0.1",
                "--num-cpus=2",
                "--include-dashboard=false",
                "--object-store-memory=200000000",
            ],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + PATIENCE_S
        while not self.lives():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SystemExit(f"no Ray came up at {self.address}")
            time.sleep(0.2)

    def lives(self) -> bool:
        assert self._process is not None
        named = {p.name() for p in psutil.process_iter() if _in(p, self._process.pid)}
        return {"raylet", "gcs_server"} <= named

    def down(self) -> None:
        """Ends every process of its session."""
        if self._process is None:
            return
        for p in psutil.process_iter():
            if _in(p, self._process.pid) and p.pid != self._process.pid:
                p.kill()
        self._process.kill()
        self._process.wait()
        self._process = None
