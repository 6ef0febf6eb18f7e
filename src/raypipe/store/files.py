"""Small files next to the tables of a store: their names, atomic writes, and repair after a power cut.

The constants below name the files and folders; a name at the top of the store starts with an underscore. Each
file is written atomically. A store is a local folder or any object store that pyarrow supports.

Lance does not sync its files to disk, so a power cut may lose some. While a table is changed, a note in
`_changing` holds the version before the change. The note is removed once all files of the change are on disk.
Only then is data removed that the change made unnecessary (completion records, cached values). If a driver
finds a note after a restart of the machine, it returns the table to the noted version, and the lost work is
computed again. After a kill without a restart nothing is lost: the driver only syncs the files. An object
store needs none of this, since a file there is durable once its upload is complete.
"""

from __future__ import annotations

import errno
import functools
import glob
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import psutil
from pyarrow import Buffer, NativeFile
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem

from raypipe.core.errors import DiskFull
from raypipe.store.errors import StoreError, reaching

MARK = "_store.json"  # the store's format number; its presence makes a folder a store
LEASES = "_lease"  # leases, and the table versions that readers pin
PARTS = "_parts"  # completion records, by table and run
RUNS = "_runs"  # plans of unfinished runs
PLANNED = "_runs/ids"  # the ids of each unfinished run, by its name
RECORDS = "_runs/records"  # records of finished runs, by time
ANSWER_KEYS = "_runs/answers"  # keys of the answers of each finished run
ATTEMPTS = "_attempts"  # counters of runs that no report contains yet
INGESTED = "_ingested"  # the files that were ingested, and a summary of their content
PROBES = "_probes"  # vectors and scores of served models for fixed texts, to notice a swapped model
ADOPTED = "_adopted"  # models whose results count as those of another model, by their own identity
READS = "_reads"  # results of tasks that read files, until the tables have them, by run
FOLDERS = "_folders"  # the files of each ingested folder, as they were at that time
ANN = "_ann"  # the measured recall of each approximate index, by table
COVERAGE = "_coverage"  # the sources that a table lacked, and its chunk counts, with a name of its rows then
CORPUS_SUMS = "_corpus_sums.json"  # the sum of the ids in each fragment of `sources`
SIZES = "_sizes"  # characters of each source
CHANGING = "_changing"  # for each table that is being changed, the version before the change
MEMO = "_memo"  # cached values that no memo table contains yet
MEMO_LOSSES = "_memo_losses"  # an empty file for each loss of cached values, by table
ADAPTERS = "_adapters"  # LoRA weights that `finetune` made, a folder for each
TRAININGS = "_trainings"  # checkpoints of unfinished trainings
RELEASES = "_releases"  # one file per release
LIVE = "live"  # the file of RELEASES that names the release in use
TOMBSTONES = "_tombstones"  # digests of forgotten texts, which ingest refuses
FORGETTING = "_forgetting"  # targets and state of each unfinished forget
CAPTURED = "_captured/answers"  # questions and answers of an endpoint, in segments (`store.segments`)
FEEDBACK = "_captured/feedback"  # users' verdicts on captured answers, in segments
CAPTURE_SECRET = "_captured/secret"  # the key that signs the ids of captured answers

HALF_WRITTEN_S = 3600.0  # a temporary file without a new byte for this long is dead, even over a slow network

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)  # errors of link(2) on file systems without hard links

M = TypeVar("M", bound=Callable[..., Any])


def _classed(method: M) -> M:
    """Wraps a method so that errors of the file system are translated as `errors.reaching` does."""

    @functools.wraps(method)
    def call(self: Files, name: str, *rest: Any) -> Any:
        with reaching(self._path(name)):
            return method(self, name, *rest)

    return cast(M, call)


@contextmanager
def _synced(path: Path) -> Iterator[IO[bytes]]:
    """Opens a new file that is synced to disk when the block ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


class Files:
    """Files under one folder of a store. A name is a path relative to this folder, with `/` as separator."""

    def __init__(self, uri: str) -> None:
        if "://" in uri:
            if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):  # pyarrow takes it as it is
                os.environ.setdefault("AWS_ALLOW_HTTP", "true")  # Lance refuses it without this
            with reaching(uri):
                self._fs, self._root = FileSystem.from_uri(uri)
        else:
            self._fs, self._root = LocalFileSystem(), str(Path(uri).absolute())
        self.uri = uri
        self.local = isinstance(self._fs, LocalFileSystem)

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _infos(self, folder: str, recursive: bool = False) -> list[FileInfo]:
        """Lists the content of a folder; a missing folder is empty."""
        found: list[FileInfo] = self._fs.get_file_info(
            FileSelector(self._path(folder), allow_not_found=True, recursive=recursive)
        )
        return found

    @_classed
    def read(self, name: str) -> bytes | None:
        """Reads a whole file; None if it does not exist."""
        try:
            with self._fs.open_input_stream(self._path(name)) as stream:
                content: bytes = stream.read()
                return content
        except FileNotFoundError:
            return None

    @_classed
    def open(self, name: str) -> NativeFile | None:
        """Opens a file for reads at any position; None if it does not exist."""
        try:
            file: NativeFile = self._fs.open_input_file(self._path(name))
            return file
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes | Buffer) -> None:
        """Replaces a file atomically: a reader sees the old content or the new content, never a part."""
        with self.writing(name) as file:
            file.write(content)

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes] | NativeFile]:
        """Opens a file to write piece by piece. It replaces the old file atomically when the block ends."""
        with reaching(self._path(name)):
            if self.local:
                with _synced(staged := self._staged(name)) as file:
                    yield file
                staged.replace(self._path(name))
            else:  # an object appears when its upload is complete
                with self._fs.open_output_stream(self._path(name)) as stream:
                    yield stream

    @_classed
    def create(self, name: str, content: bytes) -> bool:
        """Writes a file if it does not exist; returns whether this call wrote it. On an object store two
        concurrent callers may both get True: use `lease.claim` if that matters."""
        if not self.local:
            if self.read(name) is not None:
                return False
            self.write(name, content)
            return True
        with _synced(staged := self._staged(name)) as file:
            file.write(content)
        try:
            os.link(staged, self._path(name))
            return True
        except FileExistsError:  # over NFS it may be this link, whose reply was lost (open(2), O_EXCL)
            return os.stat(staged).st_nlink == 2
        except OSError as e:
            if e.errno not in NO_LINKS:
                raise
            raise StoreError(
                f"{self.uri}: expected a folder with hard links, found one without: {e}. Only with them a "
                "single process creates a file. Put the store on a local disk, on NFS or in an object store"
            ) from e
        finally:
            os.unlink(staged)

    def _staged(self, name: str) -> Path:
        return Path(self._path(name)).with_name(f".{uuid.uuid4().hex}.tmp")

    @_classed
    def sync(self, name: str) -> None:
        """Forces to disk a file that other code wrote, such as Lance, which does not sync."""
        if self.local:
            fd = os.open(self._path(name), os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    @_classed
    def walk(self, folder: str) -> list[str]:
        """Lists all files below a folder, also half-written ones; a missing folder is empty."""
        found = self._infos(folder, recursive=True)
        at = len(self._path(""))
        return sorted(f.path[at:] for f in found if f.type is FileType.File)

    @_classed
    def names(self, folder: str) -> list[str]:
        """Lists files and folders in a folder, sorted, without half-written files; [] if it is missing."""
        return sorted(f.base_name for f in self._infos(folder) if not f.base_name.endswith(".tmp"))

    @_classed
    def sizes(self, folder: str) -> dict[str, int]:
        """Maps each file name in a folder to its bytes, sorted, without half-written files."""
        there = {f.base_name: f for f in self._infos(folder) if f.type is FileType.File}
        return {name: there[name].size for name in sorted(there) if not name.endswith(".tmp")}

    def half_written(self, now: float) -> list[str]:
        """Lists temporary files outside tables that got no byte for HALF_WRITTEN_S, so their writer is dead.
        Only the age tells this, because writers need no lease. An object store has no such files."""
        names = list[str]()
        for folder in (self._root, *glob.glob(f"{self._root}/_*/")) if self.local else ():
            for inside, folders, files in os.walk(folder):  # skips what another process removes meanwhile
                if folder == self._root:
                    folders.clear()
                for file in (f"{inside}/{f}" for f in files if f.startswith(".") and f.endswith(".tmp")):
                    with suppress(FileNotFoundError):
                        if os.stat(file).st_mtime < now - HALF_WRITTEN_S:
                            names.append(os.path.relpath(file, self._root))
        return names

    @_classed
    def newest(self, folder: str) -> float | None:
        """Returns when a folder's content last changed, in seconds since the epoch; None without content."""
        found = self._infos(folder, recursive=True)
        return max((f.mtime_ns / 1e9 for f in found if f.mtime_ns is not None), default=None)

    @_classed
    def size(self, name: str) -> int | None:
        """Returns the bytes of a file; None if no such file exists."""
        info = self._fs.get_file_info(self._path(name))
        return info.size if info.type is FileType.File else None

    @_classed
    def remove(self, name: str) -> None:
        """Removes a file; a missing one is no error."""
        with suppress(FileNotFoundError):
            self._fs.delete_file(self._path(name))

    @_classed
    def remove_folder(self, name: str) -> None:
        """Removes a folder with its content; a missing one is no error."""
        with suppress(FileNotFoundError):
            self._fs.delete_dir(self._path(name))


RESERVE = 256 << 20  # bytes to keep free for commits, indexes, manifests and reports, written after the rows
RESERVE_SHARE = 0.05  # share of the disk to keep free instead, if that is less


def need(files: Files, nbytes: int, what: str) -> None:
    """Raises DiskFull if `nbytes` and a reserve do not fit on the store's disk; the message has the numbers.
    The free space of an object store is unknown, so nothing is refused there."""
    if not files.local:
        return
    disk = shutil.disk_usage(files.uri)
    reserve = int(min(RESERVE, RESERVE_SHARE * disk.total))
    if disk.free < nbytes + reserve:
        raise DiskFull(
            f"{what} needs at least {_mb(nbytes)} at {files.uri} and {_mb(reserve)} to finish; "
            f"{_mb(disk.free)} are free. Nothing was started. Free some space, or run `raypipe prune`"
        )


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"


_BOOT = Path("/proc/sys/kernel/random/boot_id")
_LAST = 2**64 - 1  # Lance names the manifest of version v by this minus v, so the newest sorts first


@contextmanager
def durable(files: Files, table: str) -> Iterator[None]:
    """Makes a change of a table durable: the files that the block made are on disk when it ends or raises.
    First ends an unfinished change (`restore`). Does nothing on an object store."""
    if not files.local:
        yield
        return
    restore(files, table)
    versions = map(manifest_version, files.names(f"{table}.lance/_versions"))
    version = max((v for v in versions if v is not None), default=0)  # 0: there is none
    before = set(files.walk(f"{table}.lance"))
    files.write(_note(table), json.dumps({"version": version, "boot": boot()}).encode())
    files.sync(CHANGING)  # the folder: the note must be on disk before any file of the change
    try:
        yield
    finally:
        _sync(files, (name for name in files.walk(f"{table}.lance") if name not in before))
        files.remove(_note(table))


def restore(files: Files, table: str) -> None:
    """Ends an unfinished change of a table, if a note records one. If the machine has restarted since, sets
    the table to the noted version, or removes it if the change made it. Then syncs the table's files."""
    if (raw := files.read(_note(table))) is None:
        return
    note, folder = json.loads(raw), f"{table}.lance"
    if note["boot"] != boot() and note["version"] == 0:
        files.remove_folder(folder)
    elif note["boot"] != boot():
        for name in files.names(f"{folder}/_versions"):
            if (version := manifest_version(name)) is None or version > note["version"]:  # None: a hint
                files.remove(f"{folder}/_versions/{name}")
    _sync(files, files.walk(folder))
    files.remove(_note(table))


def _sync(files: Files, names: Iterable[str]) -> None:
    for name in names:
        try:
            files.sync(name)
        except OSError:
            if files.size(name) is not None:
                raise  # else: a temporary file of another process, which has its final name by now


def boot() -> str:
    """Returns a name of the machine's current boot."""
    return _BOOT.read_text().strip() if _BOOT.exists() else str(int(psutil.boot_time()))


def manifest_version(name: str) -> int | None:
    """Returns the version of a manifest from its file name; None for another file."""
    stem, _, end = name.rpartition(".")
    if end != "manifest" or not stem.isdigit():
        return None
    return _LAST - int(stem) if len(stem) == len(str(_LAST)) else int(stem)


def _note(table: str) -> str:
    return f"{CHANGING}/{table}.json"
