"""Removal of forgotten texts from folders of runs and of those that plugins write: by ids of questions and
sources.

A question whose answer rests on it keeps its verdict and its measures, so that the run can be compared as
before, and loses the answer, its replies and prompts, and the passages that are gone. A question that is
forgotten itself loses its row. Files that raypipe did not write are named and left.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from raypipe.core.errors import DataError
from raypipe.core.plugin_tables import Registry
from raypipe.core.records import parse_chunk_id
from raypipe.evaluation.export import write_predictions
from raypipe.evaluation.result_table import each, metadata
from raypipe.evaluation.view.pages import write_page
from raypipe.metrics.textfile import replacing
from raypipe.runs.changes import earlier_run
from raypipe.runs.forget.find import ForgetDecision
from raypipe.runs.manifest import answer_keys, read
from raypipe.runs.report import FILES, RunFolder
from raypipe.runs.roots import releases_naming
from raypipe.store import Store
from raypipe.store.adapters import adapter_names, adapter_recipe
from raypipe.store.layout import MANIFESTS
from raypipe.store.text_places import FoundText, Gone

ROWS = 100  # of a table in memory


def with_folders(
    store: Store, decision: ForgetDecision, places: list[Path]
) -> tuple[ForgetDecision, list[FoundText]]:
    """Adds folders of runs and of plugins in these places and below them, adapters that were trained on such
    labels, and releases that these answer, which end. Returns the decision, and what was found of them."""
    gone, found, runs = decision.gone, list[FoundText](), list[str]()
    for folder in _run_folders(places, store):
        if not (rows := sum(_touched(row, gone) for row in _rows(RunFolder(folder).results))):
            continue
        does = "rows lose their answer, prompts and passages; its files are written again"
        if not _is_whole(folder):
            does = "was left by a killed eval: its files go, and the same eval writes them again"
        runs.append(str(folder))
        found.append(FoundText(str(folder), rows, does))
        if others := sorted(f.name for f in folder.iterdir() if f.name not in FILES.values()):
            does = f"stays, since raypipe did not write it: look at it yourself ({', '.join(others)})"
            found.append(FoundText(f"{folder}/*", len(others), does))
    recipes = {name: adapter_recipe(store.files, name) for name in adapter_names(store.files)}
    trained = [Path(r["labels"]["folder"]) for r in recipes.values() if "labels" in r]
    shown, digests = dict[str, tuple[str, ...]](), dict[str, int]()  # of labels -> rows that show it
    for kind, folders in FOLDERS.items():
        for folder in folders.find([*places, *(p for p in trained if p.is_dir())]):
            of, rows = folders.held(folder, decision)
            digests[of] = digests.get(of, 0) + rows
            if rows:
                shown[kind] = (*shown.get(kind, ()), str(folder))
                found.append(FoundText(str(folder), rows, f"rows of {kind} go"))
    of_labels = {name: str(r.get("labels", {}).get("digest")) for name, r in recipes.items()}
    adapters = sorted(name for name, labels in of_labels.items() if digests.get(labels))
    for name in sorted(name for name, labels in of_labels.items() if labels not in digests):
        does = "stays: the labels that it was trained on are not there to be looked at"
        found.append(FoundText(f"adapter {name}", 0, does))
    ended = releases_naming(store, {str(recipes[name]["adapter"]) for name in adapters})
    decided = replace(
        decision,
        gone=replace(gone, adapters=tuple(adapters)),
        releases=tuple(dict.fromkeys((*decision.releases, *ended))),
        folders=tuple(runs),
        text_folders=shown,
    )
    return decided, found


def take_out(store: Store, decision: ForgetDecision) -> None:
    """Takes it out of the folders of a decision. The same again changes nothing."""
    for folder in filter(Path.is_dir, map(Path, decision.folders)):
        _of_run(store, folder, decision.gone)
    for kind, folders in decision.text_folders.items():
        for folder in filter(Path.is_dir, map(Path, folders)):
            FOLDERS[kind].take_out(folder, decision)


def _run_folders(places: list[Path], store: Store) -> list[Path]:
    """The folders of runs of a store, in these places and below them, also of evals that were killed. The
    store may have been moved."""
    found = dict.fromkeys(f.parent for place in places for f in sorted(place.rglob(FILES["results"])))
    known = {n.removesuffix(".json").partition("-")[2] for n in store.files.names(MANIFESTS)}
    return [f for f in found if _is_of(RunFolder(f), store.uri, known)]


def _is_of(run: RunFolder, store: str, runs: set[str]) -> bool:
    try:
        tree = json.loads(run.manifest.read_text()) if run.manifest.is_file() else metadata(run.results)
        return tree.get("store") == store or tree["run"] in runs
    except (DataError, ValueError, KeyError, TypeError, AttributeError, OSError):
        return False  # another program's file of this name


def _is_whole(folder: Path) -> bool:
    """Returns whether the files of a run's folder are those of its manifest. Else the same eval writes them
    again."""
    try:
        return read(folder).run == metadata(RunFolder(folder).results)["run"]
    except DataError:
        return False


def _rows(table: Path) -> Iterator[dict[str, Any]]:
    return each(table, metadata(table)["run"])


def _rests(row: dict[str, Any], gone: Gone) -> bool:
    """Returns whether a row holds what goes, or its answer rests on it."""
    if row["id"] in gone.resting or any(_of(h, gone) for h in row["hits"] or ()):
        return True
    return any(q["source"] in gone.sources for q in row["quotes"] or ())


def _touched(row: dict[str, Any], gone: Gone) -> bool:
    return row["id"] in gone.graded or _rests(row, gone)


def _of(hit: dict[str, Any], gone: Gone) -> bool:
    return parse_chunk_id(hit["chunk"])[0] in gone.sources or hit["url"] in gone.urls


def _of_run(store: Store, folder: Path, gone: Gone) -> None:
    run = RunFolder(folder)
    if not _is_whole(folder):
        for name in FILES.values():
            (folder / name).unlink(missing_ok=True)
        return
    _table(run.results, gone)
    manifest = read(folder)
    write_predictions(run, manifest.run)
    run.changes.unlink(missing_ok=True)  # answers before and after; the next eval says what it changed
    write_page(run, manifest, earlier_run(store, set(answer_keys(store, manifest.run))))


def _table(path: Path, gone: Gone) -> None:
    schema = pq.read_schema(path)
    with (
        replacing(path) as whole,
        pq.ParquetFile(path) as found,
        pq.ParquetWriter(whole, schema, compression="zstd") as out,
    ):
        for batch in found.iter_batches(ROWS):
            rows = [r for r in batch.to_pylist() if r["id"] not in gone.questions]
            for row in (r for r in rows if r["id"] in gone.graded):
                row["grades"] = [g for g in row["grades"] if g[0] not in gone.documents]
            for row in (r for r in rows if _rests(r, gone)):
                left = [h for h in row["hits"] or () if not _of(h, gone)]
                row |= {"answer": None, "replies": [], "judge_response": None, "quotes": [], "hits": left}
            out.write_table(pa.Table.from_pylist(rows, schema))


class TextFolders(Protocol):
    """Folders outside of a store that hold texts of its questions, of a kind that a plugin writes."""

    def find(self, places: Sequence[Path]) -> list[Path]:
        """The folders of this kind in these places and below them."""
        ...

    def held(self, folder: Path, decision: ForgetDecision) -> tuple[str, int]:
        """The digest of what a folder has, and how many of its rows show what is forgotten."""
        ...

    def take_out(self, folder: Path, decision: ForgetDecision) -> None:
        """Takes such rows out. The same call again changes nothing; a folder without any rows left loses its
        files."""
        ...


FOLDERS: Registry[TextFolders] = Registry("forgets", {}, "TextFolders")
"""Kind of such a folder -> what reads and rewrites it."""
