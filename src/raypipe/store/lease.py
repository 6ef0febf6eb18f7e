"""Leases: signs on the door that name who is inside, and what each reads.

A driver's lease saves a second driver from doing the same work, and keeps housekeeping and work apart.
Commits do not depend on it: clocks jump, pauses outlive any limit, and they are exactly-once without it. A
reader's lease names the versions of the tables that a process searches for long, so that housekeeping leaves
them.

Signs of one lease are numbered. The next number after the highest one is taken by creating its sign, which
only one process can (`files.claim`): so of all that find the same sign dead, one takes the lease over.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import TracebackType

import psutil

from raypipe.store.errors import StoreError, StoreUnavailable
from raypipe.store.files import Files, claim, claimed, claims, unclaim
from raypipe.store.layout import LEASES
from raypipe.store.tables import check_run

STALE_S = 60.0  # a sign without a beat for this long has no owner
BEAT_S = 15.0
FORGOTTEN_S = 86400.0  # a reader that was silent for a day will not come back
_READER = "reader-"
_LEFT: set[str] = set()  # tokens of leases that this process holds no more, whether or not the sign is gone

log = logging.getLogger("raypipe.store")


@dataclass(frozen=True, slots=True)
class _Sign:
    owner: str  # for people
    token: str  # of this one lease
    host: str
    pid: int
    started: float  # of the process, seconds since the epoch
    beat: float  # last sign of life, seconds since the epoch
    reads: Mapping[str, int] = field(default_factory=dict)  # table -> version; of a reader


class _Beating:
    """A sign that a thread renews until it is left."""

    WHAT = "sign"  # as a warning calls it

    def __init__(self, files: Files, what: str, owner: str, reads: Mapping[str, int] | None = None) -> None:
        self._files, self._owner, self._reads = files, owner, dict(reads or {})
        self._token = uuid.uuid4().hex
        self._name = ""  # of the sign, once it may be up
        self._left = threading.Event()
        self._beating = threading.Thread(target=self._beat, name=what, daemon=True)

    def _sign(self) -> bytes:
        me, now = psutil.Process(), time.time()
        host = socket.gethostname()
        sign = _Sign(self._owner, self._token, host, me.pid, me.create_time(), now, self._reads)
        return json.dumps(asdict(sign)).encode()

    def _stands(self) -> bool:
        """Returns whether the sign is still there, and this one's."""
        raise NotImplementedError

    def _beat(self) -> None:
        while not self._left.wait(BEAT_S):
            try:
                if not self._stands():
                    return
                self._files.write(self._name, self._sign())
            except OSError as e:  # a full disk, a network that is down: the next beat may come through
                log.warning("the %s of %s could not be renewed: %s", self.WHAT, self._owner, e)

    def _stop(self) -> None:
        self._left.set()
        self._beating.join()


class Lease(_Beating):
    """Held inside `with`: `with store.lease("index", owner="eval local"): ...`.

    Raises StoreError that names the holder, if there is a live one: its process runs on this host, or it is
    on another host and has given a sign of life in the last STALE_S seconds.
    """

    WHAT = "lease"

    def __init__(self, files: Files, name: str, owner: str) -> None:
        super().__init__(files, f"lease {name}", owner)
        self._lease = check_run(name)

    def __enter__(self) -> Lease:
        try:
            while not self._take():
                continue
        except BaseException:  # a sign may stand by now, and this process lives on
            self._leave()
            raise
        self._beating.start()
        return self

    def held(self) -> bool:
        """Returns whether a living process holds it."""
        return any(sign is not None and _alive(sign) for sign in self._signs().values())

    def _take(self) -> bool:
        """Takes the place of the sign that stands highest now; False if another process was faster. Raises
        StoreError for one whose owner lives."""
        found = self._signs()
        for sign in found.values():
            if sign is not None and _alive(sign):
                raise StoreError(
                    f"the store is in use by {sign.owner} (process {sign.pid} on {sign.host}, last "
                    f"sign of life {time.time() - sign.beat:.0f} s ago). Wait for it to end, or end it"
                )
        mine = max(found, default=0) + 1
        self._name = self._place(mine)
        if not claim(self._files, self._name, self._sign()):
            return False
        # A process that read the signs long ago may have found a number free that was taken and left since.
        others = {n: sign for n, sign in self._signs().items() if n != mine}
        if any(n > mine or (sign is not None and _alive(sign)) for n, sign in others.items()):
            unclaim(self._files, self._name)
            return False
        for n in others:
            unclaim(self._files, self._place(n))
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._leave()

    def _leave(self) -> None:
        """Takes the own sign away. One that cannot be taken away counts no more in this process."""
        _LEFT.add(self._token)
        try:
            if self._name and self._stands():
                unclaim(self._files, self._name)
        except StoreUnavailable as e:
            log.warning("the lease of %s could not be taken away: %s", self._owner, e)

    def _place(self, number: int) -> str:
        return f"{LEASES}/{self._lease}-{number:09d}.json"

    def _signs(self) -> dict[int, _Sign | None]:
        """Number -> sign, of each that stands; None for one that no driver wrote."""
        pattern = re.compile(re.escape(self._lease) + r"-(\d{9})\.json")
        numbers = [int(m[1]) for n in claims(self._files, LEASES) if (m := pattern.fullmatch(n))]
        return {n: _read(claimed(self._files, self._place(n))) for n in numbers}

    def _stands(self) -> bool:  # False: another took it for a dead driver's
        holder = _read(claimed(self._files, self._name))
        return holder is not None and holder.token == self._token


class Reading(_Beating):
    """Any number of processes may read. From `begin` to `end`, and no longer than the process lives,
    housekeeping leaves these versions of these tables."""

    def __init__(self, files: Files, owner: str, reads: Mapping[str, int]) -> None:
        super().__init__(files, "reading", owner, reads)
        self._name = f"{LEASES}/{_READER}{self._token}.json"

    def begin(self) -> None:
        """Puts up the sign. Raises OSError where the store cannot be written."""
        self._files.write(self._name, self._sign())
        self._beating.start()

    def end(self) -> None:
        """Takes it away. Raises OSError where the store cannot be written."""
        self._stop()
        self._files.remove(self._name)

    def _stands(self) -> bool:  # False: the whole store was removed, and no sign may create it again
        return self._files.size(self._name) is not None


def read_now(files: Files) -> dict[str, set[int]]:
    """Table -> versions that living readers name."""
    found: dict[str, set[int]] = {}
    for _, sign in _readers(files):
        reads = sign.reads if sign is not None and _alive(sign) else {}
        for table, version in reads.items():
            found.setdefault(table, set()).add(version)
    return found


def sweep(files: Files) -> None:
    """Removes the signs of readers that died without taking them away. One on another host that is silent may
    only be cut off: its sign stays for FORGOTTEN_S, and counts again with its next beat."""
    for name, sign in _readers(files):
        if sign is not None and (
            _alive(sign) or (sign.host != socket.gethostname() and time.time() - sign.beat < FORGOTTEN_S)
        ):
            continue
        files.remove(name)


def _readers(files: Files) -> list[tuple[str, _Sign | None]]:
    names = [f"{LEASES}/{n}" for n in files.names(LEASES) if n.startswith(_READER)]
    return [(name, _read(files.read(name))) for name in names]


def _read(raw: bytes | None) -> _Sign | None:
    """Returns what a sign says; None for one that is gone or that no driver wrote."""
    try:
        return _Sign(**json.loads(raw or b"null"))
    except (ValueError, TypeError):
        return None


def _alive(sign: _Sign) -> bool:
    if sign.token in _LEFT:
        return False
    if sign.host != socket.gethostname():
        return abs(time.time() - sign.beat) < STALE_S
    try:
        # A pid is given to another process some day; the two then differ in when they started.
        return abs(psutil.Process(sign.pid).create_time() - sign.started) < 1.0
    except psutil.NoSuchProcess:
        return False
