"""Ingest of files by tasks: each task reads a shard, a section of the files, and stages its rows as parts.

The result equals that of one process that reads all files (`ingest.read_here`). Each shard also writes small
files to the store: its outcome, and sorted lists of its ids of questions and documents, its addresses with
fetch times, and its sources. Between rounds of tasks, the driver joins the lists of all shards to find what
several shards have. If an earlier shard has the same id, or any shard has a later fetch of the same address,
the shard is read again with these rows as input. If several shards stage a source, the first keeps it. The
driver joins one range of keys at a time, so its memory is bounded. A killed read is resumed. It is found by
its name, a digest of the files' names and bytes, the tables' versions and the tombstones of forgotten texts.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe import readers
from raypipe.core import arrow, bounded_rows
from raypipe.core.bounded_rows import key_of
from raypipe.core.errors import DataError
from raypipe.core.progress import Progress
from raypipe.core.records import digest
from raypipe.readers import Format, ReadCounts, formats
from raypipe.readers.file_read import DuplicateCheck, Newest, Seen
from raypipe.readers.formats import Shard
from raypipe.readers.rows import LIMITS
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.ingest import READER, FileReading, StagedFiles, batches, mib, read_here
from raypipe.runs.pipeline.ingest_staging import StagedRows, Staging, sources_left, tombstones
from raypipe.runs.pipeline.store_tasks import StoreTask
from raypipe.runs.pipeline.tasks import Runner, Task, WorkerConfig, inline, results_of
from raypipe.store import Store, write_part
from raypipe.store.files import READS
from raypipe.store.ids import raw
from raypipe.store.parts import part_rows, read_record, sealed, unsealed
from raypipe.store.tables import INGEST_TABLES

SHARD_BYTES = 64 << 20  # of a shard: two seconds of a worker, and the most that a kill loses
# From this size on, tasks are worth Ray's start, 7 to 15 s: one process reads some 30 MB of JSON a second.
LEAST_BYTES = 512 << 20
READ_LIMIT_BYTES = 64 << 20  # of a shard that count as one row in its time limit (`Timeouts.row_timeout_s`)
KEY = 16  # bytes of a key: `bounded_rows.key_of`
AT_ONCE = 64 << 20  # bytes of lists joined at a time; a key with its value has some 90 bytes
BATCH = 1 << 16  # keys written at a time
_LIST = pa.schema([("key", pa.binary(KEY)), ("value", pa.string())])

Before: TypeAlias = dict[str, dict[bytes, str]]
"""Name of a list -> key -> value: rows of other shards that come before a shard's own, or later fetches."""


class FilesElsewhere(DataError):
    """Error of a worker whose machine does not have the files to read."""


class JoinedKeys(NamedTuple):
    """A list joined over all shards: its rows in one range of keys, in the order of the shards."""

    rows: pa.Table  # (n,) rows with schema _LIST
    shard: np.ndarray  # (n,) int32: index of the row's shard
    first: np.ndarray  # (n,) int64: index of the first row with the same key, in the earliest shard
    repeated: np.ndarray  # (m,) int64: indexes of rows whose key an earlier shard has


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """Folder with the results of the shards of one read of files."""

    store: Store
    run: str  # names the read

    def path(self, shard: str, what: str) -> str:
        return f"{READS}/{self.run}/{shard}.{what}"

    def write(self, shard: str, what: str, data: bytes | pa.Buffer) -> None:
        self.store.files.write(self.path(shard, what), data)

    def read(self, shard: str, what: str) -> bytes:
        return self.store.files.read(self.path(shard, what)) or b""

    def write_outcome(self, shard: str, tree: Mapping[str, object]) -> None:
        """Writes the outcome of a shard, which marks it as done: call it after all other writes."""
        self.write(shard, "json", sealed(json.dumps(tree)))

    def outcome(self, shard: str) -> dict[str, Any]:
        """Returns the outcome of a shard; empty if the shard is not done, or the file is damaged."""
        return dict(json.loads(unsealed(self.read(shard, "json")) or "{}"))

    def before(self, shard: str) -> Before:
        """Returns the rows of other shards that take precedence over rows of this shard, as far as known."""
        tree = json.loads(self.read(shard, "before") or b"{}")
        return {which: {bytes.fromhex(k): v for k, v in rows.items()} for which, rows in tree.items()}

    def before_id(self, shard: str) -> str:
        """Returns a digest of the rows that `before` returns; "" if there are none."""
        content = self.read(shard, "before")
        return digest(content)[:8] if content else ""

    def is_done(self, shard: str) -> bool:
        """Returns whether a shard was read with the rows that `before` returns, and its parts still exist."""
        outcome = self.outcome(shard)
        if outcome.get("before") != self.before_id(shard):
            return False
        parts = outcome["rows"]["parts"]
        return all(read_record(self.store, t, self.run, p) for t, names in parts.items() for p in names)

    def joined(self, shards: Sequence[str], which: str) -> Iterator[JoinedKeys]:
        """Joins the list named `which` over all shards. Yields the result in ranges of keys, in order."""
        sizes = (self.store.files.size(self.path(s, which)) for s in shards)
        edges = np.linspace(0, 1 << 16, sum(n or 0 for n in sizes) // AT_ONCE + 2).astype(int).tolist()
        for low, high in pairwise(edges):
            tables = [_between(self.read(s, which), low, high) for s in shards]
            rows = pa.concat_tables(tables).combine_chunks()
            shard = np.repeat(np.arange(len(tables), dtype=np.int32), [t.num_rows for t in tables])
            coded = rows["key"].combine_chunks().dictionary_encode().indices.to_numpy()
            first = np.unique(coded, return_index=True)[1][coded]
            yield JoinedKeys(rows, shard, first, np.flatnonzero(first != np.arange(len(first))))


def _between(content: bytes, low: int, high: int) -> pa.Table:
    """Returns the rows of a list (sorted by key) whose key begins with a two-byte number in [low, high)."""
    table = arrow.rows_of(content) if content else _LIST.empty_table()
    heads = raw(table["key"].combine_chunks()).view(">u2")[:: KEY // 2]
    start, stop = np.searchsorted(heads, [low, high])
    return table.slice(start, stop - start)


def preceding_rows(found: ShardFiles, shards: Sequence[str]) -> dict[int, Before]:
    """Returns index of a shard -> rows of other shards that take precedence over the shard's rows. Empty: no
    shard must be read again. Such a row is the latest fetch of an address, or the first row with an id. Ids
    are compared only once each shard knows the latest fetches, because an older page that is dropped takes
    its id with it."""
    before: defaultdict[int, Before] = defaultdict(lambda: defaultdict(dict))

    def add(joined: JoinedKeys, which: str, at: int, value: str) -> None:
        before[int(joined.shard[at])][which][joined.rows["key"][at].as_py()] = value

    for joined in found.joined(shards, "newest"):
        groups = dict[int, list[int]]()
        for at in joined.repeated.tolist():
            start = int(joined.first[at])
            groups.setdefault(start, [start]).append(at)
        for group in groups.values():
            values = joined.rows["value"].take(group).to_pylist()
            latest = max(values)
            for at, value in zip(group, values, strict=True):
                if value != latest:
                    add(joined, "newest", at, latest)
    for which in ("questions", "documents") if not before else ():
        for joined in found.joined(shards, which):
            for at in joined.repeated.tolist():
                add(joined, which, at, joined.rows["value"][int(joined.first[at])].as_py())
    return before


def repeated_sources(found: ShardFiles, shards: Sequence[str]) -> dict[int, bytes]:
    """Returns index of a shard -> joined keys of the sources to drop, which an earlier shard keeps."""
    dropped = defaultdict[int, bytes](bytes)
    for joined in found.joined(shards, "sources"):
        owners = joined.shard[joined.repeated]
        for shard in np.unique(owners).tolist():
            keys = joined.rows["key"].take(joined.repeated[owners == shard])
            dropped[shard] += raw(keys.combine_chunks()).tobytes()
    return dropped


@dataclass(frozen=True, slots=True)
class ShardedRead:
    """A read of files in shards, as plain values."""

    format: Format
    of: str  # fingerprint of all files
    run: str  # names the parts
    shards: Mapping[str, Shard]  # name of the task -> shard


def read_shard(work: ShardedRead, store: Store, task: Task) -> tuple[int, int]:
    """Stages the rows of a shard and writes its outcome. Returns the numbers of rows and faults. Raises
    FilesElsewhere if this machine lacks a file."""
    name, shard, files = task.name, work.shards[task.name], ShardFiles(store, work.run)
    for path in shard.paths:
        if not Path(path).is_file():
            raise FilesElsewhere(f"{path}: a worker cannot see this file")
    before, again = files.before(name), files.before_id(name)
    seen = Seen(
        DuplicateCheck(before.get("questions", {})),
        DuplicateCheck(before.get("documents", {})),
        Newest(int(name), before.get("newest", {})),
    )
    counts = ReadCounts()
    staging = Staging(store, work.of, run=work.run, prefix=f"{name}-{again}-" if again else f"{name}-")
    found = readers.open(shard.paths, work.format, counts, LIMITS, seen, shard.span)
    for batch in batches(found):
        staging.add(batch)
    lists: dict[str, Iterable[tuple[bytes, str]]] = {
        "questions": seen.questions.firsts(),
        "documents": seen.documents.firsts(),
        "newest": seen.newest.notes(),
        "sources": ((key, "") for key in staging.sources()),
    }
    for which, rows in lists.items():
        parts = list[pa.RecordBatch]()
        for some in bounded_rows.batches(rows, BATCH):
            keys, values = zip(*some, strict=True)
            parts.append(pa.record_batch([pa.array(keys, pa.binary(KEY)), pa.array(values)], _LIST))
        files.write(name, which, arrow.file_of(pa.Table.from_batches(parts, _LIST)))
    files.write_outcome(name, {"before": again, "counts": asdict(counts), "rows": asdict(staging.rows)})
    return counts.rows, counts.faults


def drop_sources(run: str, store: Store, task: Task) -> tuple[int, int]:
    """Writes a shard's sources again, without those that an earlier shard keeps. Returns (dropped, 0)."""
    files = ShardFiles(store, run)
    outcome, keys = files.outcome(task.name), files.read(task.name, "dropped")
    gone = {keys[at : at + KEY] for at in range(0, len(keys), KEY)}
    kept, mark, dropped = list[str](), digest(keys)[:8], 0
    parts: dict[str, list[str]] = outcome["rows"]["parts"]
    for part in parts.get("sources", ()):
        table = part_rows(store, "sources", run, part)
        keep = np.array([key_of(id) not in gone for id in arrow.id_texts(table["id"])], bool)
        if not keep.all():
            dropped += int((~keep).sum())
            part = f"{part.removesuffix(f'-{mark}')}-{mark}"
            if keep.any():
                write_part(store, "sources", run, part, table.filter(pa.array(keep)), {})
        if keep.any():
            kept.append(part)
    parts["sources"] = kept
    files.write_outcome(task.name, outcome)
    return dropped, 0


@dataclass(frozen=True, slots=True)
class TaskReading:
    """Reader that reads files by tasks of a runner (an `ingest.FileReading`). Reads in this process if the
    files are small or cannot be cut, or if a worker does not see them."""

    worker: WorkerConfig
    runner: Runner
    connect: Callable[[], object]  # connects to Ray
    least_bytes: int = LEAST_BYTES
    shard_bytes: int = SHARD_BYTES

    def __call__(
        self, store: Store, of: str, paths: Sequence[Path], format: Format, progress: Progress
    ) -> StagedFiles:
        """Stages the rows of files. Raises DataError for a damaged file, Unavailable for an undone task."""
        counts, cut = ReadCounts(), list[Shard]()
        if readers.size(paths, format) >= self.least_bytes:
            cut = formats.cut(paths, format, self.shard_bytes, counts)
        if len(cut) < 2:
            return read_here(store, of, paths, format, progress)
        self.connect()
        if formats.bring_layouts(paths, format):
            store.ensure("layouts", arrow.layout.schema)  # here: two workers cannot both create it
        # A killed read is resumed from its parts, if no table and no tombstone has changed since.
        versions = [f"{t} {store.version(t) if store.has(t) else 1}" for t in INGEST_TABLES]
        run = digest(READER, of, *versions, *(stone.id for stone in tombstones(store)))
        work = ShardedRead(format, of, run, {f"{n:06d}": s for n, s in enumerate(cut)})
        files = ShardFiles(store, run)
        try:
            rows = self._rounds(files, work, counts, progress)
        except FilesElsewhere as e:
            found = read_here(store, of, paths, format, progress)
            why = f"one process: {e}. To read them by tasks, put the files where every machine sees them"
            return StagedFiles(found.run, found.rows, found.counts, found.left, why)
        old = {key_of(source): source for source in rows.left.values()}  # sources of replaced documents
        wanted, given = pa.array(sorted(old), pa.binary(KEY)), set[str]()
        for joined in files.joined(list(work.shards), "sources") if old else ():
            again = joined.rows["key"].filter(pc.is_in(joined.rows["key"], wanted))
            given.update(old[key] for key in again.to_pylist())
        end = functools.partial(store.files.remove_folder, f"{READS}/{run}")
        return StagedFiles(run, rows, counts, sources_left(store, rows, given), f"{len(cut):,} tasks", end)

    def _rounds(
        self, files: ShardFiles, work: ShardedRead, counts: ReadCounts, shown: Progress
    ) -> StagedRows:
        """Reads all shards until no id or address is repeated. Returns the rows, and fills `counts`."""
        names = list(work.shards)
        unread = [n for n in names if not files.is_done(n)]
        while True:
            self._run(functools.partial(read_shard, work), work.shards, unread, "read", shown)
            if not (before := preceding_rows(files, names)):
                break
            unread = [names[place] for place in sorted(before)]
            for place, more in before.items():
                whole = files.before(names[place])
                for which, rows in more.items():
                    whole.setdefault(which, {}).update(rows)
                tree = {which: {k.hex(): v for k, v in sorted(rows.items())} for which, rows in whole.items()}
                files.write(names[place], "before", json.dumps(tree).encode())
        dropped = repeated_sources(files, names)
        for place, keys in dropped.items():
            files.write(names[place], "dropped", keys)
        repeating = [names[place] for place in sorted(dropped)]
        self._run(functools.partial(drop_sources, work.run), work.shards, repeating, "deduplicated", shown)
        staged = StagedRows()
        for name in names:
            outcome = files.outcome(name)
            staged.add(StagedRows(**outcome["rows"]))
            for field, count in outcome["counts"].items():
                setattr(counts, field, getattr(counts, field) + count)
        return staged

    def _run(
        self,
        do: Callable[[Store, Task], tuple[int, int]],
        shards: Mapping[str, Shard],
        names: Sequence[str],
        verb: str,
        progress: Progress,
    ) -> None:
        """Runs `do` as a task per shard in `names`. Raises as `__call__`, and any error of a worker."""
        if not names:
            return
        # The time limit of a task is that of one row times its number of ids.
        rows = {n: range(1 + shards[n].size // READ_LIMIT_BYTES) for n in names}
        tasks = [Task(n, tuple(f"{n}.{row}" for row in rows[n])) for n in names]
        done = 0  # in bytes, so that shards of less than one MB add up, too
        with progress.task(verb, "MB", mib(sum(shards[n].size for n in names))) as shown:
            for result in results_of(self.runner, "parse", StoreTask(self.worker, do), tasks):
                done += shards[result.name].size
                shown.reach(mib(done))


def reading_of(pipeline: Pipeline) -> FileReading:
    """Returns the reader of a pipeline's files: `read_here` if the runner is `inline`, else a TaskReading."""
    if pipeline.runner is inline:
        return read_here
    return TaskReading(pipeline.worker, pipeline.runner, pipeline.start)
