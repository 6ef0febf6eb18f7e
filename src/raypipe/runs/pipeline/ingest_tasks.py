"""Files into a store by tasks: each reads a shard where a worker is and stages its rows as parts.

The rows are those of one process that reads all files (`ingest.read_here`). What no shard can know alone is
settled between rounds of tasks (`ingest_joins`): a shard whose ids others had before, or whose pages others
fetched later, is read once more with these; of sources that several staged, one stays. A read that was killed
is resumed: what its shards wrote is named by the bytes of the files and by the tables as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raypipe import readers
from raypipe.core import arrow
from raypipe.core.bounded_rows import key_of
from raypipe.core.errors import DataError
from raypipe.core.progress import Progress
from raypipe.core.records import digest
from raypipe.models.kit import LocalKit
from raypipe.readers import Format, ReadCounts, formats
from raypipe.readers.formats import Shard
from raypipe.readers.rows import LIMITS, DuplicateCheck, Newest, Seen
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.ingest import READER, FileReading, StagedFiles, batches, mib, read_here
from raypipe.runs.pipeline.ingest_joins import KEY, ShardFiles, came_before, held, staged_twice
from raypipe.runs.pipeline.ingest_staging import StagedRows, Staging, sources_left, tombstones
from raypipe.runs.pipeline.operators import retried
from raypipe.runs.pipeline.tasks import Runner, RunTask, Task, WorkerConfig, inline, results_of
from raypipe.store import Store, write_part
from raypipe.store.parts import part_rows, read_record
from raypipe.store.tables import INGEST_TABLES

SHARD_BYTES = 64 << 20  # of a file that can be cut: two seconds of a worker, and the most that a kill loses
# From here on tasks are worth Ray's start, 7 to 15 s: one process reads some 30 MB of JSON a second.
LEAST_BYTES = 512 << 20
READ_LIMIT_BYTES = 64 << 20  # of a shard for each row's time that a task may take (`Timeouts.row_timeout_s`)


class FilesElsewhere(DataError):
    """A worker does not see the files that it should read."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The reading of shards, as plain values."""

    worker: WorkerConfig
    format: Format
    of: str  # fingerprint of all files
    run: str  # names the parts
    shards: Mapping[str, Shard]  # by the names of tasks

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        store = Store.open(self.worker.store)
        return retried(self.worker, lambda task: _read(store, self, task.name))


@dataclass(frozen=True, slots=True)
class DropTask:
    """Takes sources that other shards keep out of the parts of shards, as plain values."""

    worker: WorkerConfig
    run: str

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        store = Store.open(self.worker.store)
        return retried(self.worker, lambda task: _drop(store, self.run, task.name))


def _read(store: Store, work: ReadTask, name: str) -> tuple[int, int]:
    """Stages the rows of a shard and says so; how many rows and faults it has."""
    shard, files = work.shards[name], ShardFiles(store, work.run)
    for path in shard.paths:
        if not Path(path).is_file():
            raise FilesElsewhere(f"{path}: a worker does not see this file")
    before, again = files.before(name), files.before_id(name)
    seen = Seen(
        DuplicateCheck(before.get("questions", {})),
        DuplicateCheck(before.get("documents", {})),
        Newest(int(name), before.get("newest", {})),
    )
    counts = ReadCounts()
    staging = Staging(store, work.of, run=work.run, prefix=f"{name}-{again}-" if again else f"{name}-")
    rows = readers.open(shard.paths, work.format, counts, LIMITS, seen, shard.span)
    for batch in batches(rows):
        staging.add(batch)
    for which, found in (
        ("questions", seen.questions.firsts()),
        ("documents", seen.documents.firsts()),
        ("newest", seen.newest.notes()),
        ("sources", ((key, "") for key in staging.sources())),
    ):
        files.write_list(name, which, found)
    files.write_outcome(name, {"before": again, "counts": asdict(counts), "rows": asdict(staging.rows)})
    return counts.rows, counts.faults


def _drop(store: Store, run: str, name: str) -> tuple[int, int]:
    """Writes the parts of a shard again without the sources that other shards keep."""
    files = ShardFiles(store, run)
    outcome, raw = files.outcome(name) or {}, files.dropped(name)
    gone = {raw[at : at + KEY] for at in range(0, len(raw), KEY)}
    parts, mark, dropped = list[str](), digest(raw)[:8], 0
    rows: dict[str, Any] = outcome["rows"]
    for part in rows["parts"].get("sources", ()):
        table = part_rows(store, "sources", run, part)
        stays = np.array([key_of(id) not in gone for id in arrow.id_texts(table["id"])], bool)
        if not stays.all():
            dropped += int((~stays).sum())
            part = f"{part.removesuffix(f'-{mark}')}-{mark}"
            if stays.any():
                write_part(store, "sources", run, part, table.filter(pa.array(stays)), {})
        if stays.any():
            parts.append(part)
    rows["parts"] = {**rows["parts"], "sources": parts}
    files.write_outcome(name, {**outcome, "rows": rows})
    return dropped, 0


@dataclass(frozen=True, slots=True)
class TaskReading:
    """Reads files by tasks of a runner (`ingest.FileReading`); a few small files in this process."""

    worker: WorkerConfig
    runner: Runner
    connect: Callable[[], object]  # to where tasks run
    least_bytes: int = LEAST_BYTES
    shard_bytes: int = SHARD_BYTES

    def __call__(
        self, store: Store, of: str, paths: Sequence[Path], format: Format, progress: Progress
    ) -> StagedFiles:
        """Raises DataError for a damaged file, and Unavailable where the store stays so."""
        size = readers.size(paths, format)
        if size < self.least_bytes:
            return read_here(store, of, paths, format, progress)
        counts = ReadCounts()
        cut = formats.cut(paths, format, self.shard_bytes, counts)
        if len(cut) == 1:
            return read_here(store, of, paths, format, progress)
        self.connect()
        if formats.bring_layouts(paths, format):
            store.ensure("layouts", arrow.layout.schema)  # here, since two workers cannot make one table
        work = ReadTask(
            self.worker, format, of, read_id(store, of), {f"{n:06d}": s for n, s in enumerate(cut)}
        )
        try:
            rows = self._rounds(store, work, counts, progress)
        except FilesElsewhere as e:
            found = read_here(store, of, paths, format, progress)
            why = f"one process: {e}. Put files where every machine sees them, to have them read by tasks"
            return StagedFiles(found.run, found.rows, found.counts, found.left, why)
        files = ShardFiles(store, work.run)
        left = {key_of(source): source for source in rows.left.values()}
        given = {left[key] for key in held(files, list(work.shards), set(left))}
        by = f"{len(cut):,} tasks"
        return StagedFiles(work.run, rows, counts, sources_left(store, rows, given), by, files.end)

    def _rounds(self, store: Store, work: ReadTask, counts: ReadCounts, progress: Progress) -> StagedRows:
        """Reads all shards, settles what they found, and adds up their rows and counts."""
        names, files = list(work.shards), ShardFiles(store, work.run)
        left = [n for n in names if not _is_done(files, n)]
        while True:
            self._run(work, left, "read", progress)
            if not (before := came_before(files, names)):
                break
            for place, rows in before.items():
                files.add_before(names[place], rows)
            left = [names[place] for place in sorted(before)]
        dropped = staged_twice(files, names)
        for place, keys in dropped.items():
            files.write_dropped(names[place], keys)
        self._run(
            work, [names[p] for p in sorted(dropped)], "settled", progress, DropTask(self.worker, work.run)
        )
        whole = StagedRows()
        for name in names:
            outcome = files.outcome(name) or {}
            whole.add(StagedRows(**outcome["rows"]))
            for field, count in outcome["counts"].items():
                setattr(counts, field, getattr(counts, field) + count)
        return whole

    def _run(
        self,
        work: ReadTask,
        names: Sequence[str],
        verb: str,
        progress: Progress,
        other: DropTask | None = None,
    ) -> None:
        """Does tasks over these shards. Raises what a worker raises."""
        if not names:
            return
        # A task may take as often the time of a row as it has ids.
        rows = {n: range(1 + work.shards[n].size // READ_LIMIT_BYTES) for n in names}
        tasks = [Task(n, tuple(f"{n}.{row}" for row in rows[n])) for n in names]
        done = 0  # bytes: shards of less than one MB add up, too
        with progress.task(verb, "MB", mib(sum(work.shards[n].size for n in names))) as shown:
            for result in results_of(self.runner, "parse", other or work, tasks):
                done += work.shards[result.name].size
                shown.reach(mib(done))


def _is_done(files: ShardFiles, name: str) -> bool:
    """Returns whether a shard was read, and its parts are still there."""
    outcome = files.outcome(name)
    if outcome is None or outcome["before"] != files.before_id(name):
        return False
    parts = outcome["rows"]["parts"]
    return all(read_record(files.store, t, files.run, p) for t, names in parts.items() for p in names)


def read_id(store: Store, of: str) -> str:
    """Names the read of some files into a store as it is: one that was killed goes on from its parts, unless
    a table or tombstone came between."""
    versions = [f"{t} {store.version(t) if store.has(t) else 1}" for t in INGEST_TABLES]
    return digest(READER, of, *versions, *(stone.id for stone in tombstones(store)))


def reading_of(pipeline: Pipeline) -> FileReading:
    """Returns how a pipeline's files are read: where its tasks run."""
    if pipeline.runner is inline:
        return read_here
    return TaskReading(pipeline.worker, pipeline.runner, pipeline.start)
