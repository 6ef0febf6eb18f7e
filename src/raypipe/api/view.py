"""The viewer of finished runs: their list, and a server for a browser on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from raypipe.api.results import Result
from raypipe.api.session import Place, Session, Settings
from raypipe.core.errors import ConfError, RaypipeError
from raypipe.core.textfile import require_file
from raypipe.evaluation.view.run_list import RemoteRuns, RunHeader, RunList
from raypipe.evaluation.view.viewer import Viewer, ViewServer
from raypipe.readers.object_store import is_remote


@dataclass(frozen=True, slots=True, repr=False)
class RunsResult(Result, rows="runs"):
    """Finished runs, the latest first; a row for each; `folder` is null where only its store knows it."""

    runs: tuple[RunHeader, ...]
    unread: int = 0  # records of other formats, left out


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


def left_out(unread: int) -> str:
    """Returns what is said after the number of runs."""
    return f", {unread} of other formats left out" if unread else ""


def serve_view(
    dirs: Sequence[str | Path],
    store: Place,
    labels: str | Path | None,
    port: int,
    say: Callable[[str], None],
    session: Session,
) -> None:
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
