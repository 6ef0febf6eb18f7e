"""A packed file of questions into a store: one bz2 stream, all cores."""

from __future__ import annotations

import bz2
import io
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from bench_data import questions_file
from bench_rows import BenchRow, Contest
from machine import Machine

from raypipe.core.progress import Progress
from raypipe.runs.pipeline.ingest import ingest
from raypipe.store import Store


def unequal(ours: int, peer: int) -> str:
    return "" if ours == peer else f"{ours} questions stored, {peer} lines in the file"


@contextmanager
def contest(quick: bool, machine: Machine) -> Iterator[Contest]:
    with tempfile.TemporaryDirectory(prefix="raypipe-bench-") as folder:
        file, stores = Path(folder) / "questions.jsonl.bz2", count()
        file.write_bytes(questions_file(quick))
        size = len(bz2.decompress(file.read_bytes()))

        def ours() -> int:
            store = Store.create(f"{folder}/store-{next(stores)}")
            return len(ingest(store, [file], "crag", Progress(io.StringIO(), silent=True)).questions)

        def peer() -> int:
            with bz2.open(file, "rt", encoding="utf-8") as lines:
                return len([json.loads(line) for line in lines])

        yield Contest(size / 1e6, ours, peer, unequal, lambda: bz2.decompress(file.read_bytes()))


ROW = BenchRow(
    "a bz2 file of 10 real questions into a store, one stream, all cores",
    "MB unpacked",
    contest,
    "bz2 and json, nothing stored",
    "bz2 on one core",
    by="wall",
    least=1.3,
    short="Of .65 s of CPU, .3 unpack on both cores; the rest parses and writes on one, and 66 syncs of "
    "files wait .1 to .2 s, where the peer stores nothing. Eight times as many questions give 1.0 to 1.15.",
)
