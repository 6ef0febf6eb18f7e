"""Finished runs, from their headers: in folders, here or of an object store, and those that a store knows.

A header is a run's record; one that was read is kept as long as its file is the same. Reads no results.
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

DEPTH = 4  # of folders that are looked into: $RAYPIPE_HOME/runs/STORE/RECIPE/TIME, and repeats in them
MOST = 500  # of a store's runs, the latest first


@dataclass(frozen=True, slots=True)
class RunHeader:
    """A finished run."""

    run: str  # its id
    recipe: str  # its name
    finished: float  # seconds since the epoch
    questions: int
    kind: str  # of the data
    measure: str  # that its report begins with
    mean: float | None  # of this measure; None: nothing was scored
    store: str  # URI
    folder: str | None  # None: no folder here has it, only its store
    right: int | None  # questions answered right; None: documents were asked for
    scored: int  # questions behind the mean
    live: bool  # it is the release that its store's endpoint answers by


@dataclass(frozen=True, slots=True)
class RemoteRuns:
    """Runs in an object store: their records are copied at once, all else of a run when it is opened."""

    uri: str  # of a run's folder, or of one that holds such
    cache: Path  # folder of the copies

    def headers(self) -> Path:
        """The folder of the copies, with all records. Raises DataError."""
        name = RunFolder(Path()).record.name
        return download(self.uri, self.cache, lambda below: below.rpartition("/")[2] == name)

    def fetch(self, run: Path) -> None:
        """Copies a run whole; `run`: its folder below that of the copies. Raises DataError."""
        folder = "" if run == Path() else f"{run.as_posix()}/"
        download(self.uri, self.cache, lambda below: below.startswith(folder))


class RunList:
    """The runs in some folders, and of a store."""

    def __init__(self, places: Sequence[Path | RemoteRuns], store: Store | None) -> None:
        """`places`: folders of runs, or folders that hold such; `store`: its runs are listed, too. Raises
        DataError for an object store that cannot be read."""
        self._places = tuple(p.headers() if isinstance(p, RemoteRuns) else p for p in places)
        both = zip(self._places, places, strict=True)
        self._remote = {copies: p for copies, p in both if isinstance(p, RemoteRuns)}
        self._store, self._whole = store, set[str]()
        self._read: dict[Path, tuple[tuple[int, int], Run]] = {}

    def given(self) -> list[str]:
        """Ids of the runs in the folders, in the order in which these were given."""
        return list(self._by_place()[0])

    def whole(self, run: str) -> tuple[RunFolder, Run] | None:
        """A run with all its files here; None: no folder has it. Raises DataError where an object store that
        has it cannot be read."""
        found = self._by_place()[0].get(run)
        if found is not None and run not in self._whole:
            for place, remote in self._remote.items():
                if found[0].path.is_relative_to(place):
                    remote.fetch(found[0].path.relative_to(place))
            self._whole.add(run)
        return found

    def listed(self) -> tuple[list[RunHeader], int]:
        """All runs, the latest first, and the number of records that cannot be read."""
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
        listed = (header(m, folder, m.run in live) for m, folder in found)
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


def header(m: Run, folder: str | None, live: bool) -> RunHeader:
    lead = m.measure(m.lead)
    mean, measure = lead.mean if lead else m.score.score if m.score else None, m.lead or "score"
    of, right, scored = (m.run, m.title, m.finished), m.answers.get("right"), lead.scored if lead else 0
    return RunHeader(*of, m.questions, m.kind, measure, mean, m.store, folder, right, scored, live)
