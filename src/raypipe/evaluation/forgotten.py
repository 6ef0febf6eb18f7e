"""Removal of forgotten texts from folders outside of a store: of runs, and of kinds that plugins write.

A question whose answer rests on it keeps its verdict and its measures, so that the run can be compared as
before, and loses the answer, its replies and prompts, and the passages that are gone. A question that is
forgotten itself loses its row. Files that raypipe did not write are named and left.
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
from raypipe.runs.run_parts import FILES, RunFolder
from raypipe.store import Store
from raypipe.store.adapters import adapter_names, adapter_recipe
from raypipe.store.files import RECORDS
from raypipe.store.text_places import FoundText, Gone

ROWS = 100  # of a table in memory


class TextFolders(Protocol):
    """Folders outside of a store that hold texts of its questions, of a kind that a plugin writes."""

    def find(self, places: Sequence[Path]) -> list[Path]:
        """The folders of this kind in these places and below them."""
        ...

    def held(self, folder: Path, gone: Gone) -> tuple[str, int]:
        """The digest of what a folder has, and how many of its rows show what is forgotten."""
        ...

    def take_out(self, folder: Path, gone: Gone) -> None:
        """Takes such rows out. The same call again changes nothing; a folder without any rows left loses its
        files."""
        ...


FOLDERS: Registry[TextFolders] = Registry("forgets", {}, "TextFolders")
"""Kind of such a folder -> what reads and rewrites it."""


def trained_on(store: Store) -> list[Path]:
    """The folders of labels that adapters of a store were trained on, where they are still there."""
    recipes = (adapter_recipe(store.files, name) for name in adapter_names(store.files))
    folders = (Path(r["labels"]["folder"]) for r in recipes if "labels" in r)
    return [folder for folder in folders if folder.is_dir()]


def adapters_of(store: Store, gone: Gone, places: Sequence[Path]) -> dict[str, str]:
    """Name -> identity of each adapter of a store that was trained on a folder which shows what goes."""
    shown = {digest for *_, digest, rows in _of_plugins(places, gone) if rows}
    recipes = {name: adapter_recipe(store.files, name) for name in adapter_names(store.files)}
    found = {name: r for name, r in recipes.items() if r.get("labels", {}).get("digest") in shown}
    return {name: str(r["adapter"]) for name, r in sorted(found.items())}


def in_folders(store: Store, gone: Gone, places: Sequence[Path], write: bool) -> Iterator[FoundText]:
    """Yields what folders in these places and below them hold of it. With `write` it is taken out, and the
    same again finds nothing."""
    for folder in _run_folders(places, store):
        table = RunFolder(folder).results
        rows = sum(r["id"] in gone.graded or _rests(r, gone) for r in each(table, metadata(table)["run"]))
        if not rows:
            continue
        yield FoundText(str(folder), rows, "rows lose their answer, prompts and passages")
        for file in sorted(f for f in folder.iterdir() if f.name not in FILES.values()):
            yield FoundText(str(file), 0, "stays, since raypipe did not write it: look at it yourself")
        if write:
            _of_run(store, folder, gone)
    for kind, folder, _, rows in _of_plugins(places, gone):
        if rows:
            yield FoundText(str(folder), rows)
        if rows and write:
            kind.take_out(folder, gone)


def _of_plugins(places: Sequence[Path], gone: Gone) -> list[tuple[TextFolders, Path, str, int]]:
    """Each folder of a plugin, with its digest and how many of its rows show what goes."""
    return [(kind, f, *kind.held(f, gone)) for kind in FOLDERS.values() for f in kind.find(places)]


def _run_folders(places: Sequence[Path], store: Store) -> list[Path]:
    """The folders of runs of a store, in these places and below them, also of evals that were killed. The
    store may have been moved."""
    known = {n.removesuffix(".json").partition("-")[2] for n in store.files.names(RECORDS)}
    found = []
    for folder in dict.fromkeys(f.parent for p in places for f in sorted(p.rglob(FILES["results"]))):
        run = RunFolder(folder)
        # Another program may have a file of this name.
        with suppress(DataError, ValueError, KeyError, TypeError, AttributeError, OSError):
            tree = json.loads(run.record.read_text()) if run.record.is_file() else metadata(run.results)
            if tree.get("store") == store.uri or tree["run"] in known:
                found.append(folder)
    return found


def _rests(row: dict[str, Any], gone: Gone) -> bool:
    """Returns whether a row holds what goes, or its answer rests on it."""
    if row["id"] in gone.resting or any(_of(h, gone) for h in row["hits"] or ()):
        return True
    return any(q["source"] in gone.sources for q in row["quotes"] or ())


def _of(hit: dict[str, Any], gone: Gone) -> bool:
    return parse_chunk_id(hit["chunk"])[0] in gone.sources or hit["url"] in gone.urls


def _of_run(store: Store, folder: Path, gone: Gone) -> None:
    run = RunFolder(folder)
    try:
        record = read(folder)
        whole = record.run == metadata(run.results)["run"]
    except DataError:
        whole = False
    if not whole:  # the same eval writes the files again
        for name in FILES.values():
            (folder / name).unlink(missing_ok=True)
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
    run.changes.unlink(missing_ok=True)  # answers before and after; the next eval says what it changed
    before = earlier_run(store, set(answer_keys(store, record.run)))
    write_text(run.page, report_page(run, record, before))
