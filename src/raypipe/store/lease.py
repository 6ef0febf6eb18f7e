"""Leases of a store: the driver's lease marks the process that changes tables; a reader's lease pins
versions.

The driver's lease keeps a second driver from repeating the work, and keeps housekeeping and work apart.
Commits do not depend on the lease, because clocks jump and pauses outlive any limit. They are exactly-once
without it. A reader's lease names the table versions that a process searches for a long time. Housekeeping
keeps these versions.

A lease is a small JSON file, called its sign. A thread of the holder rewrites the sign every 15 s (a beat). A
holder with this boot and pid namespace is alive while its process exists. A holder on another machine or in
another container is alive if its last beat is young by the clock here. Two clocks may differ by minutes, so
an old sign is watched: if it changes, its holder is alive.

Signs of one lease are numbered. A process takes a lease by claiming the number after the highest one, which
only one process can do. So of all processes that find a dead sign, one takes over. In a local folder, a claim
is a hard link. A folder without hard links is refused, because Lance also commits by them. On an object
store, a claim is a conditional put (`If-None-Match: *`), which Lance makes when it creates a table. So the
claim there is the first version of a one-row table next to the file.
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

from raypipe.store.errors import StoreError, StoreInUse, StoreUnavailable, reaching, says_absent
from raypipe.store.files import LEASES, Files, boot
from raypipe.store.tables import check_run

STALE_S = 60.0  # a sign without a beat for this long is watched: four beats, since some may be late
BEAT_S = 15.0  # seconds between two beats
LOOK_S = 1.0  # seconds between two reads of a watched sign
WAIT_S = 0.2  # seconds between two tries to take a held lease
FORGOTTEN_S = 86400.0  # seconds of silence after which a reader's sign is watched once more, then removed
_READER = "reader-"
_SPACE = Path("/proc/self/ns/pid")
_LEFT: set[str] = set()  # tokens of leases that this process gave up, even if their sign still exists
_CLAIM = ".claim"  # suffix of the claim's table next to the file, on an object store

log = logging.getLogger("raypipe.store")


@dataclass(frozen=True, slots=True)
class _Sign:
    owner: str  # for people
    token: str  # random id of this holding of the lease
    host: str  # for people: containers of one machine may share it
    pid: int  # in its namespace
    started: float  # start of the process, seconds since the epoch
    beat: float  # last beat, seconds since the epoch
    reads: Mapping[str, int] = field(default_factory=dict)  # table -> version that a reader pins
    boot: str = ""  # boot of its machine, see `_place_here`; "": unknown
    space: str = ""  # namespace of its pid


class _Beating:
    """A sign that a background thread rewrites until it is stopped."""

    def __init__(self, files: Files, what: str, owner: str, reads: Mapping[str, int]) -> None:
        self._files, self._owner, self._reads = files, owner, dict(reads)
        self._token = uuid.uuid4().hex
        self._name = ""  # file of the sign, set before it is written
        self._left = threading.Event()
        self._beating = threading.Thread(target=self._beat, name=what, daemon=True)

    def _sign(self) -> bytes:
        me, now = psutil.Process(), time.time()
        host, place = socket.gethostname(), _place_here()
        sign = _Sign(self._owner, self._token, host, me.pid, me.create_time(), now, self._reads, *place)
        return json.dumps(asdict(sign)).encode()

    def _stands(self) -> bool:
        """Returns whether the sign still exists and was written by this object."""
        raise NotImplementedError

    def _beat(self) -> None:
        while not self._left.wait(BEAT_S):
            try:
                if not self._stands():
                    return
                self._files.write(self._name, self._sign())
            except OSError as e:  # a full disk or a broken network: the next beat may succeed
                log.warning("the %s of %s could not be renewed: %s", self._beating.name, self._owner, e)

    def _stop(self) -> None:
        self._left.set()
        self._beating.join()


class Lease(_Beating):
    """A lease that one process holds inside `with`: `with store.lease("index", owner="eval local"): ...`.

    Raises StoreInUse, with the holder's name, if a living process still holds it after `wait_s` seconds. An
    old sign from another machine or container is watched for `watch_s` seconds.
    """

    def __init__(
        self, files: Files, name: str, owner: str, watch_s: float = STALE_S, wait_s: float = 0.0
    ) -> None:
        super().__init__(files, f"lease {name}", owner, {})
        self._lease, self._watch_s, self._wait_s = check_run(name), watch_s, wait_s

    def __enter__(self) -> Lease:
        until = time.monotonic() + self._wait_s
        try:
            while not self._take(until):
                continue
        except BaseException:  # the sign may exist by now, and this process may live on
            self._leave()
            raise
        self._beating.start()
        return self

    def held(self) -> bool:
        """Returns whether a living process holds the lease."""
        return bool(_living(self._files, self._signs(), self._watch_s))

    def _take(self, until: float) -> bool:
        """Tries once to take the lease; returns False if the caller must try again. Raises StoreInUse if a
        living process holds the lease and the time `until` has passed."""
        signs = self._signs()
        for sign in _living(self._files, signs, self._watch_s).values():
            if time.monotonic() < until:
                time.sleep(WAIT_S)
                return False
            raise StoreInUse(
                f"the store is in use by {sign.owner} (process {sign.pid} on {sign.host}, last sign of life "
                f"{time.time() - sign.beat:.0f} s ago by the clock here). Wait for it to end, or end it"
            )
        number = max((int(name[-14:-5]) for name in signs), default=0) + 1
        self._name = f"{LEASES}/{self._lease}-{number:09d}.json"
        if not claim(self._files, self._name, self._sign()):
            return False
        # If this process read the signs long ago, its number may have been taken and given up since.
        others = {name: sign for name, sign in self._signs().items() if name != self._name}
        changed = {name: sign for name, sign in others.items() if name not in signs or sign != signs[name]}
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
        """Removes this object's sign. Then this process ignores the sign, even if the removal fails."""
        _LEFT.add(self._token)
        try:
            if self._name and self._stands():
                unclaim(self._files, self._name)
        except StoreUnavailable as e:
            log.warning("the lease of %s could not be taken away: %s", self._owner, e)

    def _signs(self) -> dict[str, _Sign | None]:
        """Maps the names of this lease's signs to their content; None for a file that is no sign."""
        pattern = re.compile(re.escape(self._lease) + r"-\d{9}\.json")
        names = [f"{LEASES}/{n}" for n in claims(self._files, LEASES) if pattern.fullmatch(n)]
        return {name: _read(claimed(self._files, name)) for name in names}

    def _stands(self) -> bool:  # False: another process judged the holder dead and took over
        holder = _read(claimed(self._files, self._name))
        return holder is not None and holder.token == self._token


class Reading(_Beating):
    """A reader's lease; any number of processes may hold one. `reads` maps tables to versions. Housekeeping
    keeps these versions from `begin` to `end`, or until the process dies or its beats stop."""

    def __init__(self, files: Files, owner: str, reads: Mapping[str, int]) -> None:
        super().__init__(files, "reading", owner, reads)
        self._name = f"{LEASES}/{_READER}{self._token}.json"

    def begin(self) -> None:
        """Writes the sign. Raises OSError if the store cannot be written."""
        self._files.write(self._name, self._sign())
        self._beating.start()

    def end(self) -> None:
        """Removes the sign. Raises OSError if the store cannot be written."""
        self._stop()
        self._files.remove(self._name)

    def _stands(self) -> bool:  # False: the whole store was removed, and a beat must not create it again
        return self._files.size(self._name) is not None


def read_now(files: Files, watch_s: float = STALE_S) -> dict[str, set[int]]:
    """Maps tables to the versions that living readers pin. Watches a silent reader for `watch_s` seconds."""
    pinned: dict[str, set[int]] = {}
    for sign in _living(files, _readers(files), watch_s).values():
        for table, version in sign.reads.items():
            pinned.setdefault(table, set()).add(version)
    return pinned


def sweep(files: Files, watch_s: float = STALE_S) -> None:
    """Removes the signs of dead readers. A silent reader on another machine may only be cut off from the
    network. So its sign stays for FORGOTTEN_S, and becomes valid again with the next beat."""
    now, dead, old = time.time(), list[str](), dict[str, _Sign | None]()
    for name, sign in _readers(files).items():
        if sign is None or (lives := _alive(sign)) is False:
            dead.append(name)
        elif lives is None and abs(now - sign.beat) >= FORGOTTEN_S:
            old[name] = sign
    for name in (*dead, *(old.keys() - _living(files, old, watch_s).keys())):
        files.remove(name)


def _readers(files: Files) -> dict[str, _Sign | None]:
    names = [f"{LEASES}/{n}" for n in files.names(LEASES) if n.startswith(_READER)]
    return {name: _read(files.read(name)) for name in names}


def _read(raw: bytes | None) -> _Sign | None:
    """Parses a sign; None if the file was removed or is no sign."""
    try:
        return _Sign(**json.loads(raw or b"null"))
    except (ValueError, TypeError):
        return None


def _living(files: Files, signs: Mapping[str, _Sign | None], watch_s: float) -> dict[str, _Sign]:
    """Returns the signs of living processes. A sign from elsewhere whose beat is older than STALE_S, by the
    clock here, is watched: its owner lives if the sign changes within `watch_s`."""
    alive, silent = dict[str, _Sign](), dict[str, _Sign]()
    for name, sign in signs.items():
        if sign is not None and (lives := _alive(sign)) is not False:
            young = abs(time.time() - sign.beat) < STALE_S
            (alive if lives or young else silent)[name] = sign
    end = time.monotonic() + watch_s
    while silent and (left_s := end - time.monotonic()) > 0:
        time.sleep(min(LOOK_S, left_s))
        for name, sign in list(silent.items()):
            current = _read(claimed(files, name))
            if current != sign:
                del silent[name]
                if current is not None:
                    alive[name] = current
    return alive


def _alive(sign: _Sign) -> bool | None:
    """Returns whether the process of a sign lives; None if it runs elsewhere, where only beats can tell."""
    if sign.token in _LEFT:
        return False
    if not sign.boot or (sign.boot, sign.space) != _place_here():
        return None
    try:
        # A pid may be reused by another process, which then has another start time.
        return abs(psutil.Process(sign.pid).create_time() - sign.started) < 1.0
    except psutil.NoSuchProcess:
        return False


@functools.cache
def _place_here() -> tuple[str, str]:
    """Returns the boot of this machine, and the pid namespace of this process. A host name identifies
    neither. A system without /proc has one pid namespace."""
    space = os.readlink(_SPACE) if _SPACE.is_symlink() else ""
    return (boot() if space else f"{socket.gethostname()} {boot()}"), space


def claim(files: Files, name: str, content: bytes) -> bool:
    """Creates a file; returns whether this call did. Raises StoreError if the storage lets two do so."""
    if files.local:
        return files.create(name, content)
    if not _create(files, name, content):
        return False
    if _create(files, name, content):
        raise StoreError(
            f"{files.uri}: expected an object store with conditional writes (If-None-Match), found one that "
            "lets two processes create the same object, so no lease protects the store. Use a local folder, "
            "or a service that has them: S3, Google Cloud Storage, Azure, MinIO"
        )
    files.write(name, content)
    return True


def _create(files: Files, name: str, content: bytes) -> bool:
    """Creates the claim's table; returns whether this call did. Lance may let several concurrent callers
    commit, each with its own version. Then the writer of the first version is the creator."""
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
    """Reads a column's value in the first version of a claim's table; None if there is no table."""
    with reaching(_table(files, name)):
        try:
            return lance.dataset(_table(files, name), version=1).to_table()[column][0].as_py()
        except (ValueError, KeyError) as e:
            if isinstance(e, ValueError) and not says_absent(e):
                raise
            return None


def claimed(files: Files, name: str) -> bytes | None:
    """Reads a claimed file, or the content of its claim if only the claim exists. None if neither exists."""
    content = files.read(name)
    return content if content is not None or files.local else _first(files, name, "content")


def claims(files: Files, folder: str) -> list[str]:
    """Lists the names of the files and claims in a folder, sorted, each once."""
    return sorted({name.removesuffix(_CLAIM) for name in files.names(folder)})


def unclaim(files: Files, name: str) -> None:
    """Removes a file, so that it can be claimed again; a missing one is no error."""
    files.remove(name)
    if not files.local:
        files.remove_folder(f"{name}{_CLAIM}")


def _table(files: Files, name: str) -> str:
    return f"{files.uri}/{name}{_CLAIM}"
