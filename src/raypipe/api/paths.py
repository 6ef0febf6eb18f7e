"""Local paths of data, copied from an object store if necessary, and folders for output."""

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

Data: TypeAlias = str | Path | Sequence[str | Path]  # a file, folder or URI, or several


def several(data: Data) -> Sequence[str | Path]:
    """Returns data as a sequence; a single path becomes a list of one."""
    return [data] if isinstance(data, str | Path) else data


def inputs(given: Data, settings: Settings) -> list[Path]:
    """Returns absolute paths of data; copies data of an object store under $RAYPIPE_HOME."""
    cache = settings.home / "fetched"
    places = [settings.place(str(p), "--data") for p in several(given)]
    return [download(p, cache) if is_remote(p) else Path(p) for p in places]


def format_for(given: Format | None, paths: Sequence[Path], fields: Fields | None = None) -> Format:
    """Returns the format `given`, or else the format that the paths appear to have. With `fields`, returns
    the format of rows with these fields, and raises ConfError if another format is given."""
    if not fields:
        return looks_like(paths) if given is None else given
    if given not in (None, "rows"):
        raise ConfError(f"--fields: expected with --format rows, found {given!r} with fixed names")
    if isinstance(fields, str):
        return RowFormat(parse(fields))
    return RowFormat(checked({r: (f,) if isinstance(f, str) else tuple(f) for r, f in fields.items()}))


_LOOKED_AT = 1000  # most entries of a folder that are looked at
_DOCUMENTS = (".pdf", ".docx", ".html", ".htm", ".txt", ".md")


def ingested_as(given: Format | None, paths: Sequence[Path], fields: Fields | None) -> Format:
    """Returns the format in which `ingest` reads paths. It is `files` if all paths are folders of documents
    and neither format nor fields are given. Otherwise it is the format of `format_for`.

    A folder of documents has a PDF or docx directly in it. Or it has a document at any depth, and no file of
    rows, of CRAG or of BEIR directly in it. Only the first _LOOKED_AT entries are looked at."""

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
    """Returns the absolute path of a run's folder: `given`, or for None an unused path under $RAYPIPE_HOME.
    If `given` is in an object store, it is a folder under $RAYPIPE_HOME, which `deliver` copies there."""
    if given is None:
        return unused(settings.home / "runs" / Path(store).name / recipe, time.localtime())
    place = settings.place(str(given), "--out")
    return settings.home / "sent" / digest(place)[:16] if is_remote(place) else Path(place)


def unused(runs: Path, now: time.struct_time) -> Path:
    """Returns an unused path in the folder `runs` for a new run, named by the time."""
    name = time.strftime("%Y-%m-%d-%H%M%S", now)
    taken = {p.name for p in runs.iterdir()} if runs.is_dir() else set()
    names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
    return runs / next(n for n in names if n not in taken)


SWEEP = "sweep.json"  # the result in a sweep's folder


def deliver(given: str | Path | None, folder: Path) -> None:
    """Copies a run's or sweep's folder to `given` if that is in an object store. The record is sent last."""
    if given and is_remote(str(given)):
        upload(folder, str(given), last=[RunFolder(folder).record.name, SWEEP])
        print(f"sent to {given}", file=sys.stderr)
