"""Looks at finished runs in a browser: as one file, or served on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from raypipe.api.paths import inputs
from raypipe.api.results import Result
from raypipe.api.session import Place, Session, Settings
from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError, RaypipeError
from raypipe.evaluation.report.report import RunFolder
from raypipe.evaluation.view.pages import ShownParts, open_pair, pair_page, run_page
from raypipe.evaluation.view.rows import Part
from raypipe.evaluation.view.run_list import RemoteRuns, RunHeader, RunList
from raypipe.evaluation.view.viewer import Viewer, ViewServer, known_before
from raypipe.metrics.textfile import require_file, write_text
from raypipe.readers.object_store import is_remote
from raypipe.runs.manifest import read


@dataclass(frozen=True, slots=True)
class RunsResult(Result):
    """Finished runs, the latest first; a row for each; `folder` is null where only its store knows it."""

    SCHEMA = "run recipe finished:float64 questions:int64 kind measure mean:float64 store folder"
    ROWS = "runs"
    HIDDEN = "unread"
    runs: tuple[RunHeader, ...]
    unread: int = 0  # manifests of other formats, left out; not in the JSON


@dataclass(frozen=True, slots=True)
class ViewFile(Result):
    """A page that was written; one row."""

    file: str
    bytes: int
    runs: tuple[str, ...]  # ids
    without: tuple[Part, ...]  # what it leaves out on purpose


def list_runs(
    dirs: Sequence[str | Path] = (), store: Place = None, session: Session | None = None
) -> RunsResult:
    """Lists finished runs from their headers: those in `dirs`, folders of runs or folders that hold such. Of
    no folder: those under $RAYPIPE_HOME, and those that `store` knows."""
    headers, unread = _runs(dirs, store, session or Session()).listed()
    return RunsResult(tuple(headers), unread)


def _runs(dirs: Sequence[str | Path], store: Place, session: Session) -> RunList:
    if dirs:
        places = [_place(d, session.settings) for d in dirs]
        return RunList(places, session.store(store) if store is not None else None)
    try:
        known = session.store(store)
    except RaypipeError:
        if store is not None:
            raise
        known = None  # nothing was made here yet: the list is empty and says so
    return RunList([session.settings.home / "runs"], known)


def _place(given: str | Path, settings: Settings) -> Path | RemoteRuns:
    place = settings.place(str(given), "view")
    if is_remote(place):
        return RemoteRuns(place, settings.home / "fetched")
    if not Path(place).is_dir():
        raise ConfError(f"{place} is no folder. Name the --out folder of a finished eval")
    return Path(place)


def write_view(
    runs: Sequence[str | Path], out: str | Path, without: Sequence[str] = (), session: Session | None = None
) -> ViewFile:
    """Writes the page of a run, or of two that are compared, as one file that needs nothing else.

    `without` leaves out `prompts`, or `pages` (texts of pages, and the prompts, which hold them), for a file
    to share; replies and answers stay and may quote pages. Raises ConfError
    for more than two runs and for unknown parts, DataError for a folder of no finished run.
    """
    session = session or Session()
    known: tuple[Part, ...] = get_args(Part)
    for name in without:
        if name not in known:
            raise ConfError(f"--without {name}: a page has no such part; {did_you_mean(name, known)}")
    parts = tuple(p for p in known if p in without)
    if len(runs) not in (1, 2):
        raise ConfError(f"view --out: expected one run or two, found {len(runs)}")
    require_file(out, "--out")
    found = [(RunFolder(p), read(p)) for p in inputs(runs, session.settings)]
    shown = ShownParts(without=parts)
    if len(found) == 1:
        [(folder, manifest)] = found
        page, _ = run_page(folder, manifest, known_before(manifest), shown)
    else:
        pair = open_pair(*found)
        try:
            page, _ = pair_page(pair, shown)
        finally:
            pair.close()
    write_text(Path(out), page)
    return ViewFile(str(out), os.path.getsize(out), tuple(m.run for _, m in found), parts)


def left_out(unread: int) -> str:
    """What is said after the number of runs."""
    return f", {unread} of other formats left out" if unread else ""


def serve_view(
    dirs: Sequence[str | Path], store: Place, labels: str | Path | None, port: int,
    say: Callable[[str], None], session: Session,
) -> None:  # fmt: skip
    """Serves runs to a browser on this machine until the process is interrupted. `labels`: the file that
    people's marks are written to; None: labels.jsonl in each run's folder. Raises ConfError for folders
    without a run, and for a port that is taken."""
    if labels is not None:
        require_file(labels, "--labels")
    runs = _runs(dirs, store, session)
    headers, unread = runs.listed()
    if dirs and not headers:
        raise ConfError(
            f"{', '.join(map(str, dirs))}: expected finished evals, found none{left_out(unread)}. `raypipe "
            "view` shows those under $RAYPIPE_HOME"
        )
    viewer = Viewer(runs, None if labels is None else Path(labels))
    try:
        server = ViewServer(viewer, port)
    except OSError as e:
        raise ConfError(f"--port {port}: cannot listen there: {e}. Choose another port") from e
    with server:
        say(f"{len(headers)} runs{left_out(unread)}; {server.address}/ shows them; Ctrl-C ends it")
        if dirs and len(ids := runs.given()) in (1, 2):
            say(f"{server.address}/{'run' if len(ids) == 1 else 'pair'}/{'/'.join(ids)}/")
        server.serve_forever()
