"""Files into a store by tasks: each reads a shard where a worker is and stages its rows as parts.

The rows are those of one process that reads all files (`ingest.read_here`). What no shard can know alone is
settled between rounds of tasks. Each shard writes its outcome and sorted lists of keys as small files of the
store: ids of questions and documents, addresses with the time of their fetch, sources. An id that an earlier
shard has, and an address that another shard has fetched later, go to the shard as rows that came before: it
is read again with them. A source that several shards staged is kept by the first. Keys are joined as arrays,
a range of them at a time, so memory stays bounded. A read that was killed is resumed: what its shards wrote
is named by the bytes of the files and by the tables as they were.
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
from raypipe.readers.formats import Shard
from raypipe.readers.rows import LIMITS, DuplicateCheck, Newest, Seen
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.ingest import READER, FileReading, StagedFiles, batches, mib, read_here
from raypipe.runs.pipeline.ingest_staging import StagedRows, Staging, sources_left, tombstones
from raypipe.runs.pipeline.store_tasks import StoreTask
from raypipe.runs.pipeline.tasks import Runner, Task, WorkerConfig, inline, results_of
from raypipe.store import Store, write_part
from raypipe.store.files import READS
from raypipe.store.parts import part_rows, read_record, sealed, unsealed
from raypipe.store.tables import INGEST_TABLES

SHARD_BYTES = 64 << 20  # of a file that can be cut: two seconds of a worker, and the most that a kill loses
# From here on tasks are worth Ray's start, 7 to 15 s: one process reads some 30 MB of JSON a second.
LEAST_BYTES = 512 << 20
READ_LIMIT_BYTES = 64 << 20  # of a shard for each row's time that a task may take (`Timeouts.row_timeout_s`)
KEY = 16  # bytes of a key: `bounded_rows.key_of`
AT_ONCE = 64 << 20  # bytes of lists that are joined at a time; a key with its value has some 90
BATCH = 1 << 16  # keys of a list that are written at a time
_LIST = pa.schema([("key", pa.binary(KEY)), ("value", pa.string())])

Before: TypeAlias = dict[str, dict[bytes, str]]
"""List -> key -> value: rows that came ahead of a shard's own, or pages that were fetched later."""


class FilesElsewhere(DataError):
    """A worker does not see the files that it should read."""


class JoinedKeys(NamedTuple):
    """Rows of the lists of all shards, one list after the other."""

    rows: pa.Table  # _LIST
    shard: np.ndarray  # (n,) int32
    first: np.ndarray  # (n,) int64: the first row with the same key, of the earliest shard that has it
    repeated: np.ndarray  # (m,) int64: rows whose key an earlier shard has


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """The folder in which one read of files keeps what its shards found."""

    store: Store
    run: str  # names the read

    def write(self, shard: str, what: str, data: bytes) -> None:
        self.store.files.write(f"{READS}/{self.run}/{shard}.{what}", data)

    def read(self, shard: str, what: str) -> bytes:
        return self.store.files.read(f"{READS}/{self.run}/{shard}.{what}") or b""

    def write_outcome(self, shard: str, tree: Mapping[str, object]) -> None:
        """Says that a shard is done. Goes last."""
        self.write(shard, "json", sealed(json.dumps(tree)))

    def outcome(self, shard: str) -> dict[str, Any] | None:
        """Returns what a shard that is done wrote; None: it is not, or its file is damaged."""
        text = unsealed(self.read(shard, "json"))
        return None if text is None else dict(json.loads(text))

    def before(self, shard: str) -> Before:
        """The rows that came ahead of a shard's own, as far as they are known."""
        tree = json.loads(self.read(shard, "before") or b"{}")
        return {which: {bytes.fromhex(k): v for k, v in rows.items()} for which, rows in tree.items()}

    def before_id(self, shard: str) -> str:
        """Names the rows that came before a shard; "" without any."""
        raw = self.read(shard, "before")
        return digest(raw)[:8] if raw else ""

    def is_done(self, shard: str) -> bool:
        """Returns whether a shard was read, and its parts are still there."""
        outcome = self.outcome(shard)
        if outcome is None or outcome["before"] != self.before_id(shard):
            return False
        parts = outcome["rows"]["parts"]
        return all(read_record(self.store, t, self.run, p) for t, names in parts.items() for p in names)

    def joined(self, shards: Sequence[str], which: str) -> Iterator[JoinedKeys]:
        """The lists of all shards, joined, a range of keys at a time."""
        sizes = (self.store.files.size(f"{READS}/{self.run}/{s}.{which}") for s in shards)
        edges = np.linspace(0, 1 << 16, sum(n or 0 for n in sizes) // AT_ONCE + 2).astype(int).tolist()
        for low, high in pairwise(edges):
            tables = [_between(self.read(s, which), low, high) for s in shards]
            rows = pa.concat_tables(tables).combine_chunks()
            shard = np.repeat(np.arange(len(tables), dtype=np.int32), [t.num_rows for t in tables])
            coded = rows["key"].combine_chunks().dictionary_encode().indices.to_numpy()
            first = np.unique(coded, return_index=True)[1][coded]
            yield JoinedKeys(rows, shard, first, np.flatnonzero(first != np.arange(len(first))))


def _between(raw: bytes, low: int, high: int) -> pa.Table:
    """The rows of a sorted list whose keys begin with two bytes in a range."""
    table = arrow.rows_of(raw) if raw else _LIST.empty_table()
    heads = np.frombuffer(b"".join(map(_bytes, table["key"].chunks)), ">u2")[:: KEY // 2]
    start, stop = np.searchsorted(heads, [low, high])
    return table.slice(start, stop - start)


def _bytes(chunk: pa.FixedSizeBinaryArray) -> bytes:
    whole: bytes = chunk.buffers()[1].to_pybytes()
    return whole[chunk.offset * KEY : (chunk.offset + len(chunk)) * KEY]


def came_before(found: ShardFiles, shards: Sequence[str]) -> dict[int, Before]:
    """Shard, by its place -> rows that it must not give, since others have them. What was fetched later comes
    first: an id that goes with an older page is no id that repeats."""
    before: defaultdict[int, Before] = defaultdict(lambda: defaultdict(dict))

    def add(joined: JoinedKeys, which: str, at: int, value: str) -> None:
        before[int(joined.shard[at])][which][joined.rows["key"][at].as_py()] = value

    for joined in found.joined(shards, "newest"):
        values, groups = joined.rows["value"], dict[int, list[int]]()
        for at in joined.repeated.tolist():
            start = int(joined.first[at])
            groups.setdefault(start, [start]).append(at)
        for group in groups.values():
            best = max(values[at].as_py() for at in group)
            for at in (at for at in group if values[at].as_py() != best):
                add(joined, "newest", at, best)
    for which in ("questions", "documents") if not before else ():
        for joined in found.joined(shards, which):
            for at in joined.repeated.tolist():
                add(joined, which, at, joined.rows["value"][int(joined.first[at])].as_py())
    return before


def staged_twice(found: ShardFiles, shards: Sequence[str]) -> dict[int, bytes]:
    """Shard, by its place -> keys of sources that an earlier shard keeps, one behind the other."""
    dropped = dict[int, bytes]()
    for joined in found.joined(shards, "sources"):
        owners = joined.shard[joined.repeated]
        for shard in np.unique(owners).tolist():
            keys = joined.rows["key"].take(joined.repeated[owners == shard])
            dropped[shard] = dropped.get(shard, b"") + b"".join(map(_bytes, keys.chunks))
    return dropped


@dataclass(frozen=True, slots=True)
class ShardedRead:
    """The reading of shards, as plain values."""

    format: Format
    of: str  # fingerprint of all files
    run: str  # names the parts
    shards: Mapping[str, Shard]  # by the names of tasks


def read_shard(work: ShardedRead, store: Store, task: Task) -> tuple[int, int]:
    """Stages the rows of a shard and says so; how many rows and faults it has."""
    name, shard, files = task.name, work.shards[task.name], ShardFiles(store, work.run)
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
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, _LIST) as file:
            for some in bounded_rows.batches(rows, BATCH):
                keys, values = zip(*some, strict=True)
                file.write_batch(pa.record_batch([pa.array(keys, pa.binary(KEY)), pa.array(values)], _LIST))
        files.write(name, which, sink.getvalue().to_pybytes())
    files.write_outcome(name, {"before": again, "counts": asdict(counts), "rows": asdict(staging.rows)})
    return counts.rows, counts.faults


def drop_sources(run: str, store: Store, task: Task) -> tuple[int, int]:
    """Writes the parts of a shard again without the sources that other shards keep."""
    files = ShardFiles(store, run)
    outcome, raw = files.outcome(task.name) or {}, files.read(task.name, "dropped")
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
    files.write_outcome(task.name, {**outcome, "rows": rows})
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
        counts, cut = ReadCounts(), list[Shard]()
        if readers.size(paths, format) >= self.least_bytes:
            cut = formats.cut(paths, format, self.shard_bytes, counts)
        if len(cut) < 2:
            return read_here(store, of, paths, format, progress)
        self.connect()
        if formats.bring_layouts(paths, format):
            store.ensure("layouts", arrow.layout.schema)  # here, since two workers cannot make one table
        # A read that was killed goes on from its parts, unless a table or tombstone came between.
        versions = [f"{t} {store.version(t) if store.has(t) else 1}" for t in INGEST_TABLES]
        run = digest(READER, of, *versions, *(stone.id for stone in tombstones(store)))
        work = ShardedRead(format, of, run, {f"{n:06d}": s for n, s in enumerate(cut)})
        files = ShardFiles(store, run)
        try:
            rows = self._rounds(files, work, counts, progress)
        except FilesElsewhere as e:
            found = read_here(store, of, paths, format, progress)
            why = f"one process: {e}. Put files where every machine sees them, to have them read by tasks"
            return StagedFiles(found.run, found.rows, found.counts, found.left, why)
        left = {key_of(source): source for source in rows.left.values()}
        wanted, given = pa.array(sorted(left), pa.binary(KEY)), set[str]()
        for joined in files.joined(list(work.shards), "sources") if left else ():
            there = joined.rows["key"].filter(pc.is_in(joined.rows["key"], wanted))
            given.update(left[key] for key in there.to_pylist())
        end = functools.partial(store.files.remove_folder, f"{READS}/{run}")
        return StagedFiles(run, rows, counts, sources_left(store, rows, given), f"{len(cut):,} tasks", end)

    def _rounds(
        self, files: ShardFiles, work: ShardedRead, counts: ReadCounts, progress: Progress
    ) -> StagedRows:
        """Reads all shards, settles what they found, and adds up their rows and counts."""
        names = list(work.shards)
        left = [n for n in names if not files.is_done(n)]
        while True:
            self._run(functools.partial(read_shard, work), work.shards, left, "read", progress)
            if not (before := came_before(files, names)):
                break
            left = [names[place] for place in sorted(before)]
            for place, more in before.items():
                whole = files.before(names[place])
                for which, rows in more.items():
                    whole.setdefault(which, {}).update(rows)
                tree = {which: {k.hex(): v for k, v in sorted(rows.items())} for which, rows in whole.items()}
                files.write(names[place], "before", json.dumps(tree).encode())
        dropped = staged_twice(files, names)
        for place, keys in dropped.items():
            files.write(names[place], "dropped", keys)
        settled = [names[place] for place in sorted(dropped)]
        self._run(functools.partial(drop_sources, work.run), work.shards, settled, "settled", progress)
        staged = StagedRows()
        for name in names:
            outcome = files.outcome(name) or {}
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
        """Does tasks over these shards. Raises what a worker raises."""
        if not names:
            return
        # A task may take as often the time of a row as it has ids.
        rows = {n: range(1 + shards[n].size // READ_LIMIT_BYTES) for n in names}
        tasks = [Task(n, tuple(f"{n}.{row}" for row in rows[n])) for n in names]
        done = 0  # bytes: shards of less than one MB add up, too
        with progress.task(verb, "MB", mib(sum(shards[n].size for n in names))) as shown:
            for result in results_of(self.runner, "parse", StoreTask(self.worker, do), tasks):
                done += shards[result.name].size
                shown.reach(mib(done))


def reading_of(pipeline: Pipeline) -> FileReading:
    """Returns how a pipeline's files are read: where its tasks run."""
    if pipeline.runner is inline:
        return read_here
    return TaskReading(pipeline.worker, pipeline.runner, pipeline.start)
