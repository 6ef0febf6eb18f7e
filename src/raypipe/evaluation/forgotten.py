"""Removal of forgotten texts (`raypipe forget`) from folders outside the store: of runs, and of plugins.

A question whose answer rests on a forgotten text keeps its verdict and measures, so its run can still be
compared. Its row loses the answer, replies, prompts and the forgotten passages. A question that is itself
forgotten loses its row. An unfinished run loses its files. Files that raypipe did not write are named and
kept. In all functions, `gone` has the ids of what is forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from raypipe.core.errors import DataError
from raypipe.core.plugins import Registry
from raypipe.core.records import parse_chunk_id
from raypipe.core.textfile import replacing, write_text
from raypipe.evaluation.export import write_predictions
from raypipe.evaluation.result_table import each, metadata
from raypipe.evaluation.view.pages import report_page
from raypipe.runs.changes import earlier_run
from raypipe.runs.record import answer_keys, read
from raypipe.runs.run_parts import RunFolder
from raypipe.store import Store
from raypipe.store.adapters import adapter_names, adapter_recipe
from raypipe.store.files import RECORDS
from raypipe.store.text_places import FoundText, Gone

ROWS = 100  # rows of a table in memory together


class TextFolders(Protocol):
    """A kind of folder outside the store, with rows that show texts of the store. Plugins implement it."""

    def find(self, places: Sequence[Path]) -> list[Path]:
        """Returns the folders of this kind in these places and below them."""
        ...

    def held(self, folder: Path, gone: Gone) -> tuple[str, int]:
        """Returns the digest of a folder's content, and the number of its rows that show a forgotten text."""
        ...

    def take_out(self, folder: Path, gone: Gone) -> None:
        """Deletes the rows that show a forgotten text. If no row is left, deletes the folder's files."""
        ...


FOLDERS: Registry[TextFolders] = Registry("forgets", {}, "TextFolders")
"""Kind of folder -> the TextFolders that reads and rewrites it."""


def trained_on(store: Store) -> list[Path]:
    """Returns the label folders that the store's adapters were trained on, if they still exist."""
    recipes = (adapter_recipe(store.files, name) for name in adapter_names(store.files))
    folders = (Path(r["labels"]["folder"]) for r in recipes if "labels" in r)
    return [folder for folder in folders if folder.is_dir()]


def adapters_of(store: Store, gone: Gone, places: Sequence[Path]) -> dict[str, str]:
    """Returns name -> identity of the adapters that were trained on a folder with a forgotten text."""
    shown = {digest for *_, digest, rows in _of_plugins(places, gone) if rows}
    recipes = {name: adapter_recipe(store.files, name) for name in adapter_names(store.files)}
    found = {name: r for name, r in recipes.items() if r.get("labels", {}).get("digest") in shown}
    return {name: str(r["adapter"]) for name, r in sorted(found.items())}


def in_folders(store: Store, gone: Gone, places: Sequence[Path], write: bool) -> Iterator[FoundText]:
    """Yields each folder of a run or plugin, in or below these places, that holds a forgotten text. For a
    folder of a run, also yields each file that raypipe did not write. If `write` is True, removes the texts;
    a second call then yields nothing."""
    for folder in _run_folders(places, store):
        table = RunFolder(folder).results
        rows = sum(r["id"] in gone.graded or _rests(r, gone) for r in each(table, metadata(table)["run"]))
        if not rows:
            continue
        yield FoundText(str(folder), rows, "rows lose their answer, prompts and passages")
        for file in sorted({*folder.iterdir()}.difference(RunFolder(folder).files())):
            yield FoundText(str(file), 0, "stays: raypipe did not write it, so check it yourself")
        if write:
            _of_run(store, folder, gone)
    for kind, folder, _, rows in _of_plugins(places, gone):
        if rows:
            yield FoundText(str(folder), rows)
        if rows and write:
            kind.take_out(folder, gone)


def _of_plugins(places: Sequence[Path], gone: Gone) -> list[tuple[TextFolders, Path, str, int]]:
    """Returns (kind, folder, digest of content, number of rows with a forgotten text) of plugin folders."""
    return [(kind, f, *kind.held(f, gone)) for kind in FOLDERS.values() for f in kind.find(places)]


def _run_folders(places: Sequence[Path], store: Store) -> list[Path]:
    """Returns the run folders of a store in or below these places, killed evals included. A folder may have
    the old address of a moved store, so it also counts if the store has a record of its run."""
    known = {n.removesuffix(".json").partition("-")[2] for n in store.files.names(RECORDS)}
    found = []
    for folder in dict.fromkeys(f.parent for p in places for f in sorted(p.rglob(RunFolder.results.name))):
        run = RunFolder(folder)
        # Another program may have a file of this name.
        with suppress(DataError, ValueError, KeyError, TypeError, AttributeError, OSError):
            tree = json.loads(run.record.read_text()) if run.record.is_file() else metadata(run.results)
            if tree.get("store") == store.uri or tree["run"] in known:
                found.append(folder)
    return found


def _rests(row: dict[str, Any], gone: Gone) -> bool:
    """Returns whether a row holds a forgotten text, or its answer rests on one."""
    quoted = any(q["source"] in gone.sources for q in row["quotes"] or ())
    return quoted or row["id"] in gone.resting or any(_of(h, gone) for h in row["hits"] or ())


def _of(hit: dict[str, Any], gone: Gone) -> bool:
    return parse_chunk_id(hit["chunk"])[0] in gone.sources or hit["url"] in gone.urls


def _of_run(store: Store, folder: Path, gone: Gone) -> None:
    run = RunFolder(folder)
    try:
        record = read(folder)
        whole = record.run == metadata(run.results)["run"]
    except DataError:
        whole = False
    if not whole:  # an unfinished run: repeating the eval writes its files again
        for file in RunFolder(folder).files():
            file.unlink(missing_ok=True)
        return
    schema = pq.read_schema(run.results)
    with (
        replacing(run.results) as table,
        pq.ParquetFile(run.results) as found,
        pq.ParquetWriter(table, schema, compression="zstd") as out,
    ):
        for batch in found.iter_batches(ROWS):
            rows = [r for r in batch.to_pylist() if r["id"] not in gone.questions]
            for row in (r for r in rows if r["id"] in gone.graded):
                row["grades"] = [g for g in row["grades"] if g[0] not in gone.documents]
            for row in (r for r in rows if _rests(r, gone)):
                left = [h for h in row["hits"] or () if not _of(h, gone)]
                row |= {"answer": None, "replies": [], "judge_response": None, "quotes": [], "hits": left}
            out.write_table(pa.Table.from_pylist(rows, schema))
    write_predictions(run, record)
    run.changes.unlink(missing_ok=True)  # it holds answers before and after; the next eval writes its own
    before = earlier_run(store, set(answer_keys(store, record.run)))
    write_text(run.page, report_page(run, record, before))
