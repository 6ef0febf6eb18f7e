"""Small files next to the tables: their names, and how they are written; and what a power cut may meet.

Names of files and folders start with an underscore; each file is written atomically.

Lance syncs none of the files that it writes. While a table is changed, a small file names the version before.
It goes when all that the change wrote is on disk, and what the change makes needless (completion records,
cached values) goes only after that. A driver that finds such a file after a restart of the machine takes the
table back to that version: the same work is then missing, and done again. After a kill without a restart
nothing is lost, and the files are synced then. On an object store a file is durable when its upload is
complete; nothing is done there.

Knows a local folder and any object store that pyarrow knows.
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

MARK = "_store.json"  # the format of what lies in the store
LEASES = "_lease"  # who drives, and which versions readers pin
PARTS = "_parts"  # completion records, by table and run
RUNS = "_runs"  # plans of unfinished runs
PLANNED = "_runs/ids"  # the ids of each unfinished run, by its name
RECORDS = "_runs/records"  # of finished runs, by time
ANSWER_KEYS = "_runs/answers"  # keys of the answers of each finished run
ATTEMPTS = "_attempts"  # counters of runs that no report contains yet
INGESTED = "_ingested"  # which files were read, and what they contained
PROBES = "_probes"  # what models behind an address said to fixed texts, by model
ADOPTED = "_adopted"  # models that count as others, by their own identity
READS = "_reads"  # what tasks that read files found, until it is in the tables, by run
FOLDERS = "_folders"  # the files of each folder that was read, as they were then
ANN = "_ann"  # the measured recall of each approximate index, by table
COVERAGE = "_coverage"  # which sources a table lacked of all, and which rows there were then, by table
CORPUS_SUMS = "_corpus_sums.json"  # the sum of the ids of each fragment of sources
SIZES = "_sizes"  # characters of each source
CHANGING = "_changing"  # the version of each table that is being changed, before the change
MEMO = "_memo"  # cached values that no memo table contains yet
MEMO_LOSSES = "_memo_losses"  # a note for each loss of cached values, by table
ADAPTERS = "_adapters"  # LoRA weights that `finetune` made, a folder for each
TRAININGS = "_trainings"  # checkpoints of trainings that are not done yet
RELEASES = "_releases"  # one file per release
LIVE = "live"  # the file of RELEASES that says which release answers
TOMBSTONES = "_tombstones"  # what was forgotten and may not come in again, by digest
FORGETTING = "_forgetting"  # what a forget that has not ended is doing
CAPTURED = "_captured/answers"  # what an endpoint was asked and answered, in segments
FEEDBACK = "_captured/feedback"  # what users said of captured answers, in segments
CAPTURE_SECRET = "_captured/secret"  # what signs the ids of captured answers

HALF_WRITTEN_S = 3600.0  # no write goes without a byte for so long, over a slow network either

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)  # of link(2), and of FUSE file systems without it

M = TypeVar("M", bound=Callable[..., Any])


def _classed(method: M) -> M:
    """The method, with what the file system raises classed (`errors.reaching`)."""

    @functools.wraps(method)
    def call(self: Files, name: str, *rest: Any) -> Any:
        with reaching(self._path(name)):
            return method(self, name, *rest)

    return cast(M, call)


@contextmanager
def _synced(path: Path) -> Iterator[IO[bytes]]:
    """A file that is on disk when the block ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


class Files:
    """Files under one folder of a store, named by paths relative to it with `/` between names."""

    def __init__(self, uri: str) -> None:
        if "://" in uri:
            self._fs, self._root = FileSystem.from_uri(uri)
        else:
            self._fs, self._root = LocalFileSystem(), str(Path(uri).absolute())
        self.uri = uri
        self.local = isinstance(self._fs, LocalFileSystem)

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _infos(self, folder: str, recursive: bool = False) -> list[FileInfo]:
        """Lists all that is in a folder, which need not be there."""
        found: list[FileInfo] = self._fs.get_file_info(
            FileSelector(self._path(folder), allow_not_found=True, recursive=recursive)
        )
        return found

    @_classed
    def read(self, name: str) -> bytes | None:
        """The whole file; None if it is not there."""
        try:
            with self._fs.open_input_stream(self._path(name)) as stream:
                content: bytes = stream.read()
                return content
        except FileNotFoundError:
            return None

    @_classed
    def open(self, name: str) -> NativeFile | None:
        """The file, to be read in places; None if it is not there."""
        try:
            file: NativeFile = self._fs.open_input_file(self._path(name))
            return file
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes | Buffer) -> None:
        """Replaces the file at once: a reader sees the old content or this, never a part of it."""
        with self.writing(name) as file:
            file.write(content)

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes] | NativeFile]:
        """The same, of a file that is written piece by piece: it is replaced when the block ends."""
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
        """Writes the file unless it is there; True if this call wrote it. Object stores let two callers both
        win: where that matters, see `claim`."""
        if not self.local:
            if self.read(name) is not None:
                return False
            self.write(name, content)
            return True
        staged = self._staged(name)
        with _synced(staged) as file:
            file.write(content)
        try:
            os.link(staged, self._path(name))
            return True
        except FileExistsError:  # over NFS it may be this very link, whose reply was lost (open(2), O_EXCL)
            return os.stat(staged).st_nlink == 2
        except OSError as e:
            if e.errno not in NO_LINKS:
                raise
            raise StoreError(
                f"{self.uri}: expected a folder with hard links, by which one of two processes makes a file, "
                f"found one without: {e}. Put the store on a local disk, on NFS or in an object store"
            ) from e
        finally:
            os.unlink(staged)

    def _staged(self, name: str) -> Path:
        return Path(self._path(name)).with_name(f".{uuid.uuid4().hex}.tmp")

    @_classed
    def sync(self, name: str) -> None:
        """Forces a file to disk that somebody else wrote: Lance does not."""
        if self.local:
            fd = os.open(self._path(name), os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    @_classed
    def walk(self, folder: str) -> list[str]:
        """Names of all files below a folder, half-written ones too; none if it is not there."""
        found = self._infos(folder, recursive=True)
        at = len(self._path(""))
        return sorted(f.path[at:] for f in found if f.type is FileType.File)

    @_classed
    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted, without half-written files; none if the folder is not there."""
        return sorted(f.base_name for f in self._infos(folder) if not f.base_name.endswith(".tmp"))

    @_classed
    def sizes(self, folder: str) -> dict[str, int]:
        """Name -> bytes of each file in a folder, sorted, without half-written ones."""
        there = {f.base_name: f for f in self._infos(folder) if f.type is FileType.File}
        return {name: there[name].size for name in sorted(there) if not name.endswith(".tmp")}

    def half_written(self, now: float) -> list[str]:
        """Names of the files next to the tables that were being written when their process died: nothing was
        added to them for HALF_WRITTEN_S. A writer needs no lease for it. An object store has none."""
        names = list[str]()
        for folder in (self._root, *glob.glob(f"{self._root}/_*/")) if self.local else ():
            for inside, folders, files in os.walk(folder):  # what another process removes meanwhile is none
                if folder == self._root:
                    folders.clear()
                for file in (f"{inside}/{f}" for f in files if f.startswith(".") and f.endswith(".tmp")):
                    with suppress(FileNotFoundError):
                        if os.stat(file).st_mtime < now - HALF_WRITTEN_S:
                            names.append(os.path.relpath(file, self._root))
        return names

    @_classed
    def newest(self, folder: str) -> float | None:
        """When a file below a folder was last written, in seconds since the epoch; None: it has none."""
        found = self._infos(folder, recursive=True)
        return max((f.mtime_ns / 1e9 for f in found if f.mtime_ns is not None), default=None)

    @_classed
    def size(self, name: str) -> int | None:
        """Bytes of a file; None if it is not there."""
        info = self._fs.get_file_info(self._path(name))
        return info.size if info.type is FileType.File else None

    @_classed
    def remove(self, name: str) -> None:
        """Removes a file; one that is gone already is no error."""
        try:
            self._fs.delete_file(self._path(name))
        except FileNotFoundError:
            return

    @_classed
    def remove_folder(self, name: str) -> None:
        """Removes a folder with all that is in it; one that is gone already is no error."""
        try:
            self._fs.delete_dir(self._path(name))
        except FileNotFoundError:
            return


RESERVE = 256 << 20  # bytes for what is written after the rows: commits, indexes, manifests, reports
RESERVE_SHARE = 0.05  # of the disk, where that is less


def need(files: Files, nbytes: int, what: str) -> None:
    """Raises DiskFull, with numbers, if `nbytes` and a reserve do not fit next to the tables of a store. Of
    an object store nothing is known, and nothing is refused."""
    if not files.local:
        return
    disk = shutil.disk_usage(files.uri)
    reserve = int(min(RESERVE, RESERVE_SHARE * disk.total))
    if disk.free < nbytes + reserve:
        raise DiskFull(
            f"{what} needs at least {_mb(nbytes)} at {files.uri} and {_mb(reserve)} to finish in; "
            f"{_mb(disk.free)} are free. Nothing was started. Free some, or run `raypipe prune`"
        )


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"


_BOOT = Path("/proc/sys/kernel/random/boot_id")
_LAST = 2**64 - 1  # Lance names the manifest of version v by this minus v, so that the newest comes first


@contextmanager
def durable(files: Files, table: str) -> Iterator[None]:
    """Around a change of a table: when the block ends, all files that it wrote are on disk."""
    if not files.local:
        yield
        return
    restore(files, table)
    found = map(manifest_version, files.names(f"{table}.lance/_versions"))
    version = max((v for v in found if v is not None), default=0)  # 0: there is none
    before = set(files.walk(f"{table}.lance"))
    files.write(_note(table), json.dumps({"version": version, "boot": boot()}).encode())
    files.sync(CHANGING)  # the folder: the name is to be there before anything of the change is
    try:
        yield
    finally:
        _sync(files, (name for name in files.walk(f"{table}.lance") if name not in before))
        files.remove(_note(table))


def restore_all(files: Files) -> None:
    """Ends every change that a driver began and did not end. Only the holder of the driver's lease may."""
    for name in files.names(CHANGING) if files.local else ():
        restore(files, name.removesuffix(".json"))


def restore(files: Files, table: str) -> None:
    """Takes a table back to before an unfinished change, if the machine was started since."""
    raw = files.read(_note(table))
    if raw is None:
        return
    found, folder = json.loads(raw), f"{table}.lance"
    if found["boot"] != boot() and found["version"] == 0:
        files.remove_folder(folder)
    elif found["boot"] != boot():
        for name in files.names(f"{folder}/_versions"):
            if (of := manifest_version(name)) is None or of > found["version"]:  # None: a hint
                files.remove(f"{folder}/_versions/{name}")
    _sync(files, files.walk(folder))
    files.remove(_note(table))


def _sync(files: Files, names: Iterable[str]) -> None:
    for name in names:
        try:
            files.sync(name)
        except OSError:
            if files.size(name) is not None:
                raise  # else: a worker's or another driver's, which has its last name by now


def boot() -> str:
    """Names the time since the machine was started."""
    return _BOOT.read_text().strip() if _BOOT.exists() else str(int(psutil.boot_time()))


def manifest_version(name: str) -> int | None:
    """The version of a manifest; None for another file."""
    stem, _, end = name.rpartition(".")
    if end != "manifest" or not stem.isdigit():
        return None
    return _LAST - int(stem) if len(stem) == len(str(_LAST)) else int(stem)


def _note(table: str) -> str:
    return f"{CHANGING}/{table}.json"
