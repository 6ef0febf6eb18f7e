"""Releases: which finished run answers live questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypipe.api.results import Result
from raypipe.api.session import Place, Session
from raypipe.core.errors import ConfError
from raypipe.evaluation.compare import check_gate
from raypipe.evaluation.scored_run import scored_run, stored_run
from raypipe.runs import prune as pruning
from raypipe.runs import release
from raypipe.runs.gates import MIN_SCORED, Gate, gate, relative_gate
from raypipe.runs.prune import Removal
from raypipe.runs.record import Run, find, read
from raypipe.runs.release import Release, ReleaseLine, summary
from raypipe.store import Store
from raypipe.store.keep import DiskBytes, disk_bytes

if TYPE_CHECKING:
    from raypipe.evaluation.scored_run import ScoredRun
    from raypipe.runs.gates import RelativeGate


@dataclass(frozen=True, slots=True, repr=False)
class ReleaseResult(Result):
    """A release; one row."""

    release: Release
    store: str  # URI of the store in which it is live

    def rows(self) -> Sequence[ReleaseLine]:
        return (summary(self.release, self.release.id),)

    def record(self) -> Mapping[str, Any]:
        return {**asdict(self.rows()[0]), "store": self.store}


@dataclass(frozen=True, slots=True, repr=False)
class ReleasesResult(Result, rows="releases"):
    """The releases of a store, oldest first; a row for each."""

    releases: tuple[ReleaseLine, ...]
    live: str  # id; "": nothing is live


@dataclass(frozen=True, slots=True, repr=False)
class PruneResult(Result, rows="removed"):
    """Everything that was deleted, or would be; a row for each."""

    dry_run: bool
    removed: tuple[Removal, ...]
    disk: DiskBytes  # of the store's tables; now, so after a prune what is left


def promote(
    run: str | Path,
    gates: Sequence[str] = (),
    store: Place = None,
    min_scored: float | None = None,
    session: Session | None = None,
    against: str | Path | None = None,
) -> ReleaseResult:
    """Makes a finished run the live release, if it passes the gates.

    `run` is the folder of an eval; a gate is a bound on one of its numbers: `score>=0.1`. A gate on a share
    is passed only where at least `min_scored` of the questions, 0..1, are scored; None: 0.95. `store` is
    where the run's tables are now; None: where they were when it ran.

    The gates `better`, `not-worse` and `not-worse:M` hold the run against the live release's, or against the
    run in the folder `against`, over the questions of both. Raises GateFailed; then the live release stays.
    """
    record, opened = finished(run, store, session)
    relative, bounds = _gates_of(gates)
    if against is not None and not relative:
        raise ConfError(
            "--against: it is what the gates better and not-worse compare with, found neither. Name one, "
            "such as --gate better"
        )
    now = release.live(opened) if relative and against is None else None
    for g in relative:
        check_gate(g, scored_run(Path(run), record.rule), _other(g, opened, now, against))
    least = MIN_SCORED if min_scored is None else min_scored
    made = release.promote(opened, record, bounds, least, [g.text for g in relative], now)
    return ReleaseResult(made, opened.uri)


def finished(run: str | Path, store: Place, session: Session | None) -> tuple[Run, Store]:
    """The record of a finished run, and its store: where it is now; None: where it was when it ran."""
    record = read(Path(run))
    return record, (session or Session()).store(record.store if store is None else store)


def _gates_of(texts: Sequence[str]) -> tuple[list[RelativeGate], list[Gate]]:
    """The gates that hold a run against another, and the bounds on its own numbers."""
    found = [(text, relative_gate(text)) for text in texts]
    return [g for _, g in found if g], [gate(text) for text, g in found if g is None]


def _other(
    gate: RelativeGate, store: Store, live: release.Release | None, against: str | Path | None
) -> ScoredRun:
    """Returns the run that a gate holds another one against: that of a folder, or that which is live."""
    if against is not None:
        return scored_run(Path(against), "official")
    if live is None:
        raise ConfError(f"gate {gate.text}: nothing is live to compare with; name a run with --against DIR")
    record = find(store, live.run)
    if record is None:
        raise ConfError(
            f"gate {gate.text}: {store.uri} has no record of run {live.run}, which is live; name its "
            "folder with --against DIR"
        )
    return stored_run(store, record)


def rollback(store: Place = None, session: Session | None = None) -> ReleaseResult:
    """Makes the release before the live one live again. Raises ConfError where there is none."""
    opened = (session or Session()).store(store)
    return ReleaseResult(release.rollback(opened), opened.uri)


def releases(store: Place = None, session: Session | None = None) -> ReleasesResult:
    """Lists the releases of a store, oldest first."""
    opened = (session or Session()).store(store)
    now = release.live(opened)
    live = now.id if now else ""
    return ReleasesResult(tuple(summary(r, live) for r in release.releases(opened)), live)


def prune(
    store: Place = None,
    dry_run: bool = False,
    abandon: Sequence[str] = (),
    replies: Sequence[str] = (),
    session: Session | None = None,
) -> PruneResult:
    """Deletes tables that nothing references, and what killed commands left. `dry_run` only lists it.

    `abandon`: names of unfinished work to give up, as the refusal of a prune lists them; `replies`: names of
    language models that nothing asks any more, whose replies go, too.
    """
    opened = (session or Session()).store(store)
    found = pruning.prune(opened, dry_run, abandoned=abandon, replies=replies)
    return PruneResult(dry_run, tuple(found), disk_bytes(opened))
