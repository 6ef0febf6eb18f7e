"""Connection of this process to a Ray that it joins or starts, with retries.

Messages of Ray's core that tell nothing new are not shown.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import Any

import psutil
import ray

from raypipe.core.backoff import Backoff
from raypipe.core.errors import ConfError, Unavailable, unstopped
from raypipe.core.plugins import modules_of
from raypipe.core.textfile import replacing
from raypipe.recipes.recipe import Recipe
from raypipe.runs.cluster.capacity import Node

JOINS, JOIN_PAUSE_S = 4, 1.0  # tries to join a Ray; seconds before the second, doubling
LONGEST_FOLDER = 40  # characters: a socket's path may have 107, and Ray appends some 66 to its folder
LISTENS_S = 5.0  # seconds to wait for a connection to a Ray's port
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")  # variables that give Ray's token


def carry(recipe: Recipe) -> None:
    """Makes Ray send the modules of steps from outside raypipe, so that nodes need not install them."""
    for stage in (*recipe.corpus, *recipe.question):
        if stage.plugin is not None and stage.plugin.package != "raypipe":
            for module in modules_of(stage.plugin):
                ray.cloudpickle.register_pickle_by_value(module)


def connect(address: str, imports: str = "") -> None:
    """Joins the Ray at `address`, or starts one if it is "local". Does nothing if this process has joined a
    Ray before. Prints a line if the joined Ray has no free CPU. Raises as `join` does, and ConfError if
    RAY_TMPDIR is too long for a Ray started here. A Ray started here begins with one process per CPU; each
    imports the module `imports`.

    A Ray started here has no dashboard. The dashboard's ten processes would take two CPU seconds to start,
    and look at all other processes every few seconds."""
    if not ray.is_initialized():
        options: dict[str, Any] = {"logging_level": logging.ERROR}
        if address == "local":
            options["include_dashboard"] = False
            options |= _short_folder(os.environ)
            if imports:
                options["_system_config"] = {"preload_python_modules": [imports]}
            # With Ray's default niceness of 15 a worker gets a thirtieth of a core if another process wants
            # the core. A Ray that others started keeps its niceness.
            os.environ.setdefault("RAY_worker_niceness", "0")
            # Version 1 of the autoscaler takes 1 s to end: it writes to the GCS, which has ended before.
            os.environ.setdefault("RAY_enable_autoscaler_v2", "1")
            # By default Serve kills a proxy that takes 5 s to start, as on a busy machine, and fails itself.
            os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
            # Ray listens on every address of the machine and requires a token. A token made by Ray stays in
            # ~/.ray: from then on `ray start` requires it, while `ray job submit` does not send it.
            if os.environ.keys().isdisjoint(TOKENS):
                os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # as long as Ray's own
        # Ray's core prints that actors cannot restart without this process, with which they end anyway.
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        # Silences progress lines, as raypipe prints its own, and dead workers, which are retried or raised.
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            # Lance warns of forks. Ray forks to start its processes and executes them at once.
            warnings.filterwarnings("ignore", message="lance is not fork-safe|lancedb fork support")
            stop = signal.getsignal(signal.SIGTERM)
            with _stderr_without(b"RAY_BACKEND_LOG_LEVEL"):
                join(address, **options)
            signal.signal(signal.SIGTERM, stop)  # Ray's core sets a handler that aborts the process
        held = (ray.cluster_resources(), ray.available_resources())
        if address != "local" and (line := no_cpu_free(address, *held)):
            print(line, file=sys.stderr, flush=True)


def write_timeline(file: Path) -> None:
    """Writes the work of each Ray process over time in Chrome's trace format. Writes nothing unless
    RAY_PROFILING is 1 and this process has joined a Ray."""
    if os.environ.get("RAY_PROFILING") != "1" or not ray.is_initialized():
        return
    logging.getLogger("ray._private.state").setLevel(logging.ERROR)  # says where later versions read events
    with replacing(file) as temporary:
        ray.timeline(str(temporary))


def no_cpu_free(address: str, all_of: Mapping[str, float], free: Mapping[str, float]) -> str:
    """Returns a line for people if no CPU is free in a Ray that others use, so that work waits; else "".

    >>> no_cpu_free("auto", {"CPU": 2.0}, {"memory": 1.0})
    'no CPU is free in the Ray at auto: others hold all 2. Work waits for one; RAY_ADDRESS names another Ray'
    >>> no_cpu_free("auto", {}, {}).partition(".")[0]
    'no CPU is free in the Ray at auto: its nodes have none yet'
    >>> no_cpu_free("auto", {"CPU": 2.0}, {"CPU": 1.0})
    ''
    """
    count = all_of.get("CPU", 0.0)
    why = f"others hold all {count:g}" if count else "its nodes have none yet"
    line = f"no CPU is free in the Ray at {address}: {why}. Work waits for one; RAY_ADDRESS names another Ray"
    return "" if free.get("CPU", 0.0) > 0 else line


def _short_folder(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns options for a Ray started here. They name a short folder if the default is too long for Ray's
    sockets. Raises ConfError if the user named the long folder, by RAY_TMPDIR.

    >>> _short_folder({"TMPDIR": "/tmp"}), _short_folder({"TMPDIR": "/scratch" * 9})
    ({}, {'_temp_dir': '/tmp/ray'})
    """
    if len(named := environ.get("RAY_TMPDIR", "")) > LONGEST_FOLDER:
        expected = f"a folder of at most {LONGEST_FOLDER} characters, since Ray's sockets lie in it"
        raise ConfError(f"RAY_TMPDIR: expected {expected}, found {len(named)}: {named}. Name a shorter one")
    short = named or len(environ.get("TMPDIR", "")) <= LONGEST_FOLDER
    return {} if short else {"_temp_dir": "/tmp/ray"}  # Ray's default if no variable is set


def join(
    address: str,
    tries: int = JOINS,
    pause_s: float = JOIN_PAUSE_S,
    init: Callable[..., Any] = ray.init,
    **options: Any,
) -> None:
    """Calls `ray.init` up to `tries` times, since a Ray that starts or is overloaded may not reply in time.
    The first pause is `pause_s`; each further pause is twice as long. Raises Unavailable after the last try,
    and ValueError for an option or address that can never be right."""
    # Even without `log_to_driver`, Ray prints its messages about dead workers to standard output, among
    # results. raypipe retries or reports the work of such a worker.
    ray._private.worker._worker_logs_enabled = False
    backoff = Backoff(tries, pause_s)
    host, colon, port = address.rpartition(":")
    elsewhere = colon and port.isdigit() and "/" not in host
    running = {child.pid for child in psutil.Process().children(recursive=True)}
    while True:
        try:
            if elsewhere:  # Ray itself tries for a quarter of an hour before it reports that nothing listens
                try:
                    socket.create_connection((host.strip("[]"), int(port)), timeout=LISTENS_S).close()
                except OSError as e:
                    raise ConnectionError(f"nothing listens there: {e}") from e
            init(address=address, log_to_driver=False, **options)
            return
        except ValueError:
            raise  # options or an address that can never be right
        except Exception as e:  # ConnectionError, RuntimeError, and for a late raylet a plain Exception
            ray.shutdown()
            _end_half_started(running)
            if (wait_s := backoff.next_s()) is not None:
                time.sleep(wait_s)
                continue
            if address == "local":
                failed = "no Ray could be started on this machine"
                mend = "See whether it is very busy or its disk is full, or give RAY_ADDRESS a Ray that runs"
            else:
                failed = f"the Ray at {address!r} could not be joined"
                mend = (
                    "See whether it runs and can be reached from here, or correct RAY_ADDRESS; if it asks "
                    "for a token, export RAY_AUTH_MODE=token; RAY_ADDRESS=local starts one on this machine"
                )
            raise Unavailable(f"{failed} in {tries} tries: {unstopped(e)}. {mend}") from e


def _end_half_started(running: Collection[int]) -> None:
    """Ends the processes of a Ray that failed to start, which its own shutdown does not know. `running` has
    the ids of the child processes before the start. Ray's processes name their session in their command."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if child.pid not in running and any("/session_" in word for word in child.cmdline()):
                child.kill()


@contextmanager
def _stderr_without(words: bytes) -> Iterator[None]:
    """Holds back output to file descriptor 2 until the block ends, then writes it without lines that contain
    `words`. Ray's core prints from C++ that its log level was set. Python's prints are not held back."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held, open(os.dup(2), "w", 1) as kept, redirect_stderr(kept):
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept.fileno(), 2)
            held.seek(0)
            os.write(2, b"".join(line for line in held if words not in line))


def nodes() -> list[Node]:
    """Returns the resources of each living node of the joined cluster."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]
