"""One bz2 stream unpacked by its blocks."""

from __future__ import annotations

import bz2
import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_data import questions_file
from bench_rows import BenchRow, Contest
from machine import Machine

from raypipe.readers import files
from raypipe.readers.rows import LIMITS, ReadCounts


@contextmanager
def contest(quick: bool, machine: Machine) -> Iterator[Contest]:
    with tempfile.TemporaryDirectory(prefix="raypipe-bench-") as folder:
        path = Path(folder) / "questions.jsonl.bz2"
        path.write_bytes(questions_file(quick))
        [source] = files.find([path])
        size = len(bz2.decompress(path.read_bytes()))

        def ours() -> str:
            found = hashlib.sha256()
            for piece in files.stream(source, ReadCounts(), LIMITS):
                found.update(piece)
            return found.hexdigest()

        def peer() -> str:
            found = hashlib.sha256()
            with bz2.open(path) as stream:
                while piece := stream.read(1 << 20):
                    found.update(piece)
            return found.hexdigest()

        yield Contest(size / 1e6, ours, peer, lambda a, b: "" if a == b else "the bytes differ")


ROW = BenchRow(
    "one bz2 stream unpacked, all cores",
    "MB unpacked",
    contest,
    "bz2, one core",
    by="wall",
    least=1.6,
    short="The cores were not free: in the best turn it was at 1.97.",
)
