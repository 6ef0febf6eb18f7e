"""The driver's lease: a polite sign on the door that names who is inside.

It saves a second driver from doing the same work. Nothing depends on it for correctness: clocks jump, pauses
outlive any limit, and commits are exactly-once without it.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from types import TracebackType

import psutil

from raypipe.store.files import Files, StoreError
from raypipe.store.tables import check_run

STALE_S = 60.0  # a sign without a beat for so long is nobody's
BEAT_S = 15.0


@dataclass(frozen=True, slots=True)
class _Sign:
    owner: str  # for people
    token: str  # of this one lease
    host: str
    pid: int
    started: float  # of the process, seconds since the epoch
    beat: float  # last sign of life, seconds since the epoch


class Lease:
    """Held inside `with`: `with store.lease("index", owner="eval local"): ...`.

    Raises StoreError that names the holder, if there is a live one: its process runs on this host, or it is
    on another host and has given a sign of life in the last STALE_S seconds.
    """

    def __init__(self, files: Files, name: str, owner: str) -> None:
        self._files, self._name, self._owner = files, f"_lease/{check_run(name)}.json", owner
        self._token = uuid.uuid4().hex
        self._left = threading.Event()
        self._beating = threading.Thread(target=self._beat, name=f"lease {name}", daemon=True)

    def __enter__(self) -> Lease:
        while not self._files.create(self._name, self._sign()):
            holder = _read(self._files.read(self._name))
            if holder is not None and _alive(holder):
                raise StoreError(
                    f"the store is in use by {holder.owner} (process {holder.pid} on {holder.host}, last "
                    f"sign of life {time.time() - holder.beat:.0f} s ago). Wait for it to end, or end it"
                )
            self._files.remove(self._name)
        self._beating.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._beating.join()
        if self._mine():
            self._files.remove(self._name)

    def _sign(self) -> bytes:
        me = psutil.Process()
        sign = _Sign(self._owner, self._token, socket.gethostname(), me.pid, me.create_time(), time.time())
        return json.dumps(asdict(sign)).encode()

    def _mine(self) -> bool:
        holder = _read(self._files.read(self._name))
        return holder is not None and holder.token == self._token

    def _beat(self) -> None:
        while not self._left.wait(BEAT_S) and self._mine():
            self._files.write(self._name, self._sign())


def _read(raw: bytes | None) -> _Sign | None:
    """What a sign says; None for one that is gone or that no driver wrote."""
    try:
        return _Sign(**json.loads(raw or b"null"))
    except (ValueError, TypeError):
        return None


def _alive(sign: _Sign) -> bool:
    if sign.host != socket.gethostname():
        return abs(time.time() - sign.beat) < STALE_S
    try:
        # A pid is given to another process some day; the two then differ in when they started.
        return abs(psutil.Process(sign.pid).create_time() - sign.started) < 1.0
    except psutil.NoSuchProcess:
        return False
