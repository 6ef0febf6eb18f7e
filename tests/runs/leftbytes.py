"""Finds a text in every file of a store and of runs: tables at every version, parts, Arrow, parquet."""

from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.parquet as pq
from lance.file import LanceFileReader


def files_with(marker, *folders):
    """Names of the files and versions that hold the marker, in any case."""
    told = marker.lower()
    found = []
    for folder in map(Path, folders):
        for file in sorted(f for f in folder.rglob("*") if f.is_file()):
            if told.encode() in file.read_bytes().lower() or told in str(decoded(file)).lower():
                found.append(str(file.relative_to(folder)))
        for table in sorted(folder.glob("*.lance")):
            for version in (v["version"] for v in lance.dataset(table).versions()):
                if told in str(lance.dataset(table, version=version).to_table().to_pylist()).lower():
                    found.append(f"{table.name} at {version}")
    return found


def decoded(file):
    if file.suffix == ".lance" and file.parent.name == "data":
        return LanceFileReader(str(file)).read_all().to_table().to_pylist()
    if file.suffix == ".arrow" and "_deletions" not in file.parts:
        return pa.ipc.open_file(file.read_bytes()).read_all().to_pylist()
    return pq.read_table(file).to_pylist() if file.suffix == ".parquet" else ""
