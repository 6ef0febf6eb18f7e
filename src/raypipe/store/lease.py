"""Leases: which process holds the store, and which table versions readers pin.

A driver's lease saves a second driver from doing the same work, and keeps housekeeping and work apart.
Commits do not depend on it: clocks jump, pauses outlive any limit, and they are exactly-once without it. A
reader's lease names the versions of the tables that a process searches for long, so that housekeeping leaves
them.

A process of this boot and this pid namespace lives while its pid does. Another one, on another machine or in
another container, lives while its sign moves: its beats are watched, since two clocks may differ by minutes.

Signs of one lease are numbered. The next number after the highest one is taken by claiming its sign, which
only one process can: so of all that find the same sign dead, one takes the lease over. In a local folder a
claim is a hard link: one without them is refused, since Lance commits by them, too. On an object store it is
a conditional put (`If-None-Match: *`), which Lance makes when it creates a table: a claim is the first
version of a table of one row next to the file.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import lance
import psutil
import pyarrow as pa

from raypipe.store.errors import StoreError, StoreUnavailable, reaching, says_absent
from raypipe.store.files import LEASES, Files, boot
from raypipe.store.tables import check_run

STALE_S = 60.0  # a sign without a beat for this long has no owner: four beats, of which some may be late
BEAT_S = 15.0
LOOK_S = 1.0  # between two looks at a sign that is watched
WAIT_S = 0.2  # between two tries to take a lease that another holds
FORGOTTEN_S = 86400.0  # a reader that was silent for a day will not come back
_READER = "reader-"
_SPACE = Path("/proc/self/ns/pid")
_LEFT: set[str] = set()  # tokens of leases that this process holds no more, whether or not the sign is gone
_CLAIM = ".claim"  # of the table that an object store has next to the file

log = logging.getLogger("raypipe.store")


@dataclass(frozen=True, slots=True)
class _Sign:
    owner: str  # for people
    token: str  # of this one lease
    host: str  # for people: containers of one machine may share it
    pid: int  # in its namespace
    started: float  # of the process, seconds since the epoch
    beat: float  # last sign of life, seconds since the epoch
    reads: Mapping[str, int] = field(default_factory=dict)  # table -> version; of a reader
    boot: str = ""  # of its machine, see `_place_here`; "": not known
    space: str = ""  # of its pid


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
        host, place = socket.gethostname(), _place_here()
        sign = _Sign(self._owner, self._token, host, me.pid, me.create_time(), now, self._reads, *place)
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

    Raises StoreError that names the holder, if there is a live one `wait_s` seconds later: its process runs
    here, or it runs elsewhere and gave a sign of life in the last STALE_S seconds by the clock, or does so
    while it is watched for `watch_s` seconds.
    """

    WHAT = "lease"

    def __init__(
        self, files: Files, name: str, owner: str, watch_s: float = STALE_S, wait_s: float = 0.0
    ) -> None:
        super().__init__(files, f"lease {name}", owner)
        self._lease, self._watch_s, self._wait_s = check_run(name), watch_s, wait_s

    def __enter__(self) -> Lease:
        until = time.monotonic() + self._wait_s
        try:
            while not self._take(until):
                continue
        except BaseException:  # a sign may stand by now, and this process lives on
            self._leave()
            raise
        self._beating.start()
        return self

    def held(self) -> bool:
        """Returns whether a living process holds it."""
        return bool(_living(self._files, self._signs(), self._watch_s))

    def _take(self, until: float) -> bool:
        """Takes the highest sign's place; False: another was faster, or its owner lives and it is not yet
        `until`. Raises StoreError: it lives."""
        found = self._signs()
        for sign in _living(self._files, found, self._watch_s).values():
            if time.monotonic() < until:
                time.sleep(WAIT_S)
                return False
            raise StoreError(
                f"the store is in use by {sign.owner} (process {sign.pid} on {sign.host}, last sign of life "
                f"{time.time() - sign.beat:.0f} s ago by the clock here). Wait for it to end, or end it"
            )
        number = max((int(name[-14:-5]) for name in found), default=0) + 1
        self._name = f"{LEASES}/{self._lease}-{number:09d}.json"
        if not claim(self._files, self._name, self._sign()):
            return False
        # A process that read the signs long ago may have found a number free that was taken and left since.
        others = {name: sign for name, sign in self._signs().items() if name != self._name}
        changed = {name: sign for name, sign in others.items() if name not in found or sign != found[name]}
        if any(name > self._name for name in others) or _living(self._files, changed, self._watch_s):
            unclaim(self._files, self._name)
            return False
        for name in others:
            unclaim(self._files, name)
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

    def _signs(self) -> dict[str, _Sign | None]:
        """Name -> sign, of each that stands; None for one that no driver wrote."""
        pattern = re.compile(re.escape(self._lease) + r"-\d{9}\.json")
        names = [f"{LEASES}/{n}" for n in claims(self._files, LEASES) if pattern.fullmatch(n)]
        return {name: _read(claimed(self._files, name)) for name in names}

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


def read_now(files: Files, watch_s: float = STALE_S) -> dict[str, set[int]]:
    """Table -> versions that living readers name. `watch_s`: how long silent ones elsewhere are watched."""
    found: dict[str, set[int]] = {}
    for sign in _living(files, _readers(files), watch_s).values():
        for table, version in sign.reads.items():
            found.setdefault(table, set()).add(version)
    return found


def sweep(files: Files, watch_s: float = STALE_S) -> None:
    """Removes the signs of readers that died without taking them away. One on another host that is silent may
    only be cut off: its sign stays for FORGOTTEN_S, and counts again with its next beat."""
    now, readers = time.time(), _readers(files)
    dead = [n for n, s in readers.items() if s is None or _alive(s) is False]
    old = {
        n: s
        for n, s in readers.items()
        if s is not None and _alive(s) is None and abs(now - s.beat) >= FORGOTTEN_S
    }
    for name in (*dead, *(old.keys() - _living(files, old, watch_s).keys())):
        files.remove(name)


def _readers(files: Files) -> dict[str, _Sign | None]:
    names = [f"{LEASES}/{n}" for n in files.names(LEASES) if n.startswith(_READER)]
    return {name: _read(files.read(name)) for name in names}


def _read(raw: bytes | None) -> _Sign | None:
    """Returns what a sign says; None for one that is gone or that no driver wrote."""
    try:
        return _Sign(**json.loads(raw or b"null"))
    except (ValueError, TypeError):
        return None


def _living(files: Files, signs: Mapping[str, _Sign | None], watch_s: float) -> dict[str, _Sign]:
    """Returns the signs of living processes. A sign from elsewhere that is old by the clock here is watched:
    its owner lives if it moves within `watch_s`."""
    alive, silent = dict[str, _Sign](), dict[str, _Sign]()
    for name, sign in signs.items():
        here = False if sign is None else _alive(sign)
        if sign is None or here is False:
            continue
        age_s = abs(time.time() - sign.beat)
        if here or age_s < STALE_S:
            alive[name] = sign
        else:
            silent[name] = sign
    end = time.monotonic() + watch_s
    while silent and (left_s := end - time.monotonic()) > 0:
        time.sleep(min(LOOK_S, left_s))
        for name, sign in list(silent.items()):
            now = _read(claimed(files, name))
            if now != sign:
                del silent[name]
                if now is not None:
                    alive[name] = now
    return alive


def _alive(sign: _Sign) -> bool | None:
    """Returns whether the process of a sign lives; None: it runs elsewhere, so its beats alone can tell."""
    if sign.token in _LEFT:
        return False
    if not sign.boot or (sign.boot, sign.space) != _place_here():
        return None
    try:
        # A pid is given to another process some day; the two then differ in when they started.
        return abs(psutil.Process(sign.pid).create_time() - sign.started) < 1.0
    except psutil.NoSuchProcess:
        return False


@functools.cache
def _place_here() -> tuple[str, str]:
    """Returns the boot of this machine, and the namespace in which this process has its pid: a host name says
    neither. Systems without /proc have one namespace of pids."""
    space = os.readlink(_SPACE) if _SPACE.is_symlink() else ""
    return (boot() if space else f"{socket.gethostname()} {boot()}"), space


def claim(files: Files, name: str, content: bytes) -> bool:
    """Makes a file that is not there; True if this call made it. Raises StoreError where two can."""
    if files.local:
        return files.create(name, content)
    if not _create(files, name, content):
        return False
    if _create(files, name, content):
        raise StoreError(
            f"{files.uri}: expected an object store with conditional writes (If-None-Match), found one that "
            "lets two processes create the same object, so no process can hold the store alone. Use a "
            "local folder, or a store that has them: S3, Google Cloud Storage, Azure, MinIO"
        )
    files.write(name, content)
    return True


def _create(files: Files, name: str, content: bytes) -> bool:
    """Makes a table that is not there. Of several callers at once Lance lets more than one commit, the later
    ones a second version: the first has made it."""
    mine = uuid.uuid4().hex
    with reaching(_table(files, name)):
        try:
            rows = pa.table({"content": [content], "by": [mine]})
            lance.write_dataset(rows, _table(files, name), mode="create")
        except OSError as e:
            if "already exists" in str(e) or "commit conflict" in str(e):
                return False
            raise
    return bool(_first(files, name, "by") == mine)


def _first(files: Files, name: str, column: str) -> Any:
    """The value of a column in the first version of a claim's table; None: there is none."""
    with reaching(_table(files, name)):
        try:
            return lance.dataset(_table(files, name), version=1).to_table()[column][0].as_py()
        except (ValueError, KeyError) as e:
            if isinstance(e, ValueError) and not says_absent(e):
                raise
            return None


def claimed(files: Files, name: str) -> bytes | None:
    """Returns what the file holds now, or held when it was claimed; None if it never was."""
    content = files.read(name)
    if content is None and not files.local:
        content = _first(files, name, "content")
    return content


def claims(files: Files, folder: str) -> list[str]:
    """Names of the files in a folder that are claimed, sorted."""
    return sorted({name.removesuffix(_CLAIM) for name in files.names(folder)})


def unclaim(files: Files, name: str) -> None:
    """Removes a file, so that it can be claimed again; one that is gone already is no error."""
    files.remove(name)
    if not files.local:
        files.remove_folder(f"{name}{_CLAIM}")


def _table(files: Files, name: str) -> str:
    return f"{files.uri}/{name}{_CLAIM}"
