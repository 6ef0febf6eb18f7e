"""List of finished runs for `raypipe view`, from local folders, an object store, and a raypipe store.

Only the records of runs are read, not their results. A folder's record is read again only if it changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from raypipe.core.errors import RaypipeError
from raypipe.readers.object_store import download
from raypipe.runs import release as releases
from raypipe.runs.record import Run, read, readable
from raypipe.runs.run_parts import RunFolder
from raypipe.store import Store

DEPTH = 4  # levels of searched folders: $RAYPIPE_HOME/runs/STORE/RECIPE/TIME, and repeats in them
MOST = 500  # most runs listed of a store, the latest first


@dataclass(frozen=True, slots=True)
class RunHeader:
    """Key facts of a finished run for the list."""

    run: str  # id of the run
    recipe: str  # name of the recipe
    finished: float  # seconds since the epoch
    questions: int
    kind: str  # kind of the data
    measure: str  # leading measure of its report
    mean: float | None  # mean of the leading measure; None: nothing was scored
    store: str  # URI of its store
    folder: str | None  # None: it is only in the store, in none of the folders
    right: int | None  # questions answered right; None: the recipe ranks documents
    scored: int  # questions that the mean covers
    live: bool  # True: the live release of its store is this run


@dataclass(frozen=True, slots=True)
class RemoteRuns:
    """Runs in an object store. Records are copied for the list, the other files when a run is opened."""

    uri: str  # address of a run's folder, or of a folder of runs
    cache: Path  # local folder of the copies

    def headers(self) -> Path:
        """Copies all records to `cache`, and returns this folder. Raises DataError if they cannot be read."""
        name = RunFolder(Path()).record.name
        return download(self.uri, self.cache, lambda below: below.rpartition("/")[2] == name)

    def fetch(self, run: Path) -> None:
        """Copies all files of a run. `run` is its folder in `cache`. Raises DataError if this fails."""
        folder = "" if run == Path() else f"{run.as_posix()}/"
        download(self.uri, self.cache, lambda below: below.startswith(folder))


class RunList:
    """List of the runs in some folders and in a store."""

    def __init__(self, places: Sequence[Path | RemoteRuns], store: Store | None) -> None:
        """Copies the records of remote runs. `places` are folders of runs, or folders that contain such
        folders. Runs of a given `store` are listed, too. Raises DataError if records cannot be read."""
        self._places = tuple(p.headers() if isinstance(p, RemoteRuns) else p for p in places)
        both = zip(self._places, places, strict=True)
        self._remote = {copies: p for copies, p in both if isinstance(p, RemoteRuns)}
        self._store, self._whole = store, set[str]()
        self._read: dict[Path, tuple[tuple[int, int], Run]] = {}

    def given(self) -> list[str]:
        """Returns the ids of the runs in the folders, in the order of the folders."""
        return list(self._by_place()[0])

    def whole(self, run: str) -> tuple[RunFolder, Run] | None:
        """Returns a run, after copying its files here if they are remote. Returns None if no folder has the
        run. Raises DataError if its files cannot be read."""
        found = self._by_place()[0].get(run)
        if found is not None and run not in self._whole:
            for place, remote in self._remote.items():
                if found[0].path.is_relative_to(place):
                    remote.fetch(found[0].path.relative_to(place))
            self._whole.add(run)
        return found

    def listed(self) -> tuple[list[RunHeader], int]:
        """Returns the headers of the runs, the latest first, and the number of unreadable records. If the
        store has more than MOST runs, only its latest MOST are listed."""
        here, unread = self._by_place()
        found: list[tuple[Run, str | None]] = [(m, str(f.path)) for f, m in here.values()]
        if self._store is not None:
            known, unread_there = readable(self._store, MOST)
            found += [(m, None) for m in known if m.run not in here]
            unread += unread_there
        live = set[str]()
        for uri in {m.store for m, _ in found}:
            with suppress(RaypipeError):  # a store that is not here
                live |= {r.run for r in [releases.live(Store.open(uri))] if r is not None}
        listed = []
        for m, folder in found:
            lead = m.measure(m.lead)
            mean, measure = lead.mean if lead else m.score.score if m.score else None, m.lead or "score"
            right, scored = m.answers.get("right"), lead.scored if lead else 0
            of = m.run, m.title, m.finished, m.questions, m.kind, measure, mean, m.store, folder
            listed.append(RunHeader(*of, right, scored, m.run in live))
        return sorted(listed, key=lambda h: -h.finished), unread

    def _by_place(self) -> tuple[dict[str, tuple[RunFolder, Run]], int]:
        unread = 0
        runs: dict[str, tuple[RunFolder, Run]] = {}
        for place in self._places:
            name = RunFolder(place).record.name
            for path in sorted(p for depth in range(DEPTH + 1) for p in place.glob("*/" * depth + name)):
                try:
                    stat = path.stat()
                    sign = stat.st_mtime_ns, stat.st_size
                    if self._read.get(path, (None,))[0] != sign:
                        self._read[path] = sign, read(path.parent)
                    record = self._read[path][1]
                except RaypipeError:
                    unread += 1
                    continue
                runs.setdefault(record.run, (RunFolder(path.parent), record))
        return runs, unread
