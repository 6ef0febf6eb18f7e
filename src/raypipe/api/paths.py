"""Paths: data of any place as local files, and folders for what is written."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from raypipe.api.session import Settings
from raypipe.core.errors import ConfError
from raypipe.core.records import digest
from raypipe.readers import row_files
from raypipe.readers.field_map import Fields, checked, parse
from raypipe.readers.formats import Format, looks_like
from raypipe.readers.object_store import download, is_remote, upload
from raypipe.readers.own_rows import RowFormat
from raypipe.runs.run_parts import RunFolder

Data: TypeAlias = str | Path | Sequence[str | Path]
"""One file, folder or URI, or several."""


def several(data: Data) -> Sequence[str | Path]:
    """Returns what was given, as one or as several."""
    return [data] if isinstance(data, str | Path) else data


def inputs(given: Data, settings: Settings) -> list[Path]:
    """Data files and folders, absolute; those of an object store as copies under $RAYPIPE_HOME."""
    cache = settings.home / "fetched"
    places = [settings.place(str(p), "--data") for p in several(given)]
    return [download(p, cache) if is_remote(p) else Path(p) for p in places]


def format_for(given: Format | None, paths: Sequence[Path], fields: Fields | None = None) -> Format:
    """The format as given, with the fields that were named, else what the paths look like.

    Raises ConfError for fields of another format than rows.
    """
    if not fields:
        return looks_like(paths) if given is None else given
    if given not in (None, "rows"):
        raise ConfError(
            f"--fields: expected with --format rows, found {given!r}, whose fields have fixed names"
        )
    if isinstance(fields, str):
        return RowFormat(parse(fields))
    return RowFormat(checked({r: (f,) if isinstance(f, str) else tuple(f) for r, f in fields.items()}))


_LOOKED_AT = 1000  # files of a folder, to see what it holds
_DOCUMENTS = (".pdf", ".docx", ".html", ".htm", ".txt", ".md")


def ingested_as(given: Format | None, paths: Sequence[Path], fields: Fields | None) -> Format:
    """The same of what is ingested: `files`, where all paths are folders that look like folders of documents.
    No file of rows, of CRAG's or of BEIR's lies in them directly, and somewhere in them lies a document. PDF
    and docx directly inside decide it."""

    def documents(folder: Path) -> bool:
        direct = [f.name.lower() for f in itertools.islice(folder.iterdir(), _LOOKED_AT) if f.is_file()]
        if any(name.endswith((".pdf", ".docx")) for name in direct):
            return True
        if any(row_files.kind_of(Path(name)) or ".tar" in name or ".jsonl" in name for name in direct):
            return False
        every = itertools.islice(folder.rglob("*"), _LOOKED_AT)
        return any(f.name.lower().endswith(_DOCUMENTS) for f in every)

    alone = given is None and not fields and all(path.is_dir() and documents(path) for path in paths)
    return "files" if alone and paths else format_for(given, paths, fields)


def run_folder(given: str | Path | None, settings: Settings, store: str, recipe: str) -> Path:
    """The folder of a run, absolute: as given, else one that no run has, under $RAYPIPE_HOME.

    For a folder of an object store it is one under $RAYPIPE_HOME, which `deliver` copies there.
    """
    if given is None:
        return unused(settings.home / "runs" / Path(store).name / recipe, time.localtime())
    place = settings.place(str(given), "--out")
    return settings.home / "sent" / digest(place)[:16] if is_remote(place) else Path(place)


def unused(runs: Path, now: time.struct_time) -> Path:
    """A folder for one more run of a recipe, named by the time: no run replaces an earlier one."""
    name = time.strftime("%Y-%m-%d-%H%M%S", now)
    taken = {p.name for p in runs.iterdir()} if runs.is_dir() else set()
    names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
    return runs / next(n for n in names if n not in taken)


SWEEP = "sweep.json"  # of a sweep's folder: what came of it


def deliver(given: str | Path | None, folder: Path) -> None:
    """Copies the folder of a finished run or sweep to the object store that `given` names, records last."""
    if given and is_remote(str(given)):
        upload(folder, str(given), last=[RunFolder(folder).record.name, SWEEP])
        print(f"sent to {given}", file=sys.stderr)
