"""Takes pages, documents or questions out of a store and of the folders of its runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from raypipe.api.results import Result
from raypipe.api.session import Place, Session
from raypipe.core.errors import ConfError
from raypipe.evaluation.forgotten import adapters_of, in_folders, trained_on
from raypipe.runs.forget import Forgetting, Target, check_readers, find, find_target, named_versions, resting
from raypipe.runs.pipeline.ingest_log import outdate, reads_with
from raypipe.runs.pipeline.ingest_staging import write_tombstone
from raypipe.runs.release import end_releases
from raypipe.store import Store, StoreError
from raypipe.store.files import FORGETTING
from raypipe.store.keep import unfinished
from raypipe.store.memo.disk import merge_memo, note_loss
from raypipe.store.segments import read_record, write_record
from raypipe.store.sources import merge_sizes
from raypipe.store.tables import OF_MEMO
from raypipe.store.text_places import FoundText, Gone, in_small_files, in_tables

FOLLOW_S = 3.0
"""Between the end of releases and the removal of their tables: an endpoint that is asked reads the pointer
each second (`release_follower.POLL_S`), and answers what came before that within some more."""


@dataclass(frozen=True, slots=True, repr=False)
class ForgetResult(Result, rows="holdings"):
    """Everything that holds some things or rests on them, and what became of it; a row for each."""

    store: str  # URI
    targets: tuple[Target, ...]
    reason: str  # that their tombstones give
    dry_run: bool
    finished: bool  # True: a forget that was killed was finished
    holdings: tuple[FoundText, ...]


def forget(
    names: str | Sequence[str],
    store: Place = None,
    dry_run: bool = True,
    reason: str = "",
    runs: Sequence[str | Path] = (),
    session: Session | None = None,
) -> ForgetResult:
    """Lists what holds pages, documents or questions, or rests on them; removes it unless `dry_run`.

    `names`: urls that questions cite, paths or ids of documents, ids of sources or questions. `reason`: what
    their tombstones say where they are ingested again. `runs`: folders of runs and of training labels, or
    folders over them; those under $RAYPIPE_HOME are looked through in any case. A forget that was killed is
    finished by the same call; one that has ended may be made again. Raises DataError for a name that the
    store does not have.
    """
    session = session or Session()
    opened = session.store(store)
    given = tuple(dict.fromkeys([names] if isinstance(names, str) else names))
    if not given or not all(name.strip() for name in given):
        raise ConfError("forget: expected a url, a path, or an id of a source or question, found none")
    for folder in map(Path, runs):
        if not folder.is_dir():
            raise ConfError(f"--runs {folder}: expected the folder of a run, or one over several; found none")
    places = [session.settings.home / "runs", *(Path(p).absolute() for p in runs)]
    places = [*(p for p in places if p.is_dir()), *trained_on(opened)]
    if dry_run:
        targets = tuple(find_target(opened, name) for name in given)
        found = tuple(_Removal(opened, targets, places).holdings(write=False))
        return ForgetResult(opened.uri, targets, reason, dry_run, False, found)
    with opened.lease("driver", "forget", forgetting=True):
        return _forget(opened, given, reason, places)


def _forget(store: Store, given: tuple[str, ...], reason: str, places: list[Path]) -> ForgetResult:
    """Removes it in the order in which a command that was killed can be made again: tombstones, so that
    nothing of it comes in again; releases that rest on it, and endpoints see that; then what is found by
    other rows before these: adapters before the labels that they were trained on, both before answers."""
    begun = _begun(store, given)
    if left := unfinished(store):
        raise StoreError(
            f"{store.uri}: {len(left)} pieces of work are unfinished ({', '.join(left[:3])}), and may "
            "hold what goes. Run the same command again to its end, or `raypipe prune --abandon NAME`"
        )
    with store.lease("release", "forget"):
        if begun is None and not reason.strip():
            raise ConfError(
                "forget: expected a reason, which the tombstone gives to whom it refuses; "
                "name one: --reason 'licence ended'"
            )
        merge_memo(store)
        doing = begun or Forgetting(
            given, reason, tuple(find_target(store, name) for name in given), tuple(map(str, places))
        )
        removal = _Removal(store, doing.targets, list(map(Path, doing.places)))
        place = f"{FORGETTING}/{doing.targets[0].tombstone}.json"
        if begun is None:
            check_readers(store, removal.gone)
            write_record(store, place, doing)
        for target in doing.targets:
            write_tombstone(store, target.buried(doing.reason))
        found = tuple(removal.holdings(write=True))
        merge_sizes(store)
        store.files.remove(place)
    return ForgetResult(store.uri, doing.targets, doing.reason, False, begun is not None, found)


def _begun(store: Store, given: tuple[str, ...]) -> Forgetting | None:
    """The forget of these names that has not ended. Raises StoreError for one of others."""
    for name in store.files.names(FORGETTING):
        found = read_record(store, f"{FORGETTING}/{name}", Forgetting, "Put back what stood there")
        if found is not None and found.given == given:
            return found
    store.require_forgotten()
    return None


class _Removal:
    """All that some targets name or that rests on them, at its places."""

    def __init__(self, store: Store, targets: Sequence[Target], places: Sequence[Path]) -> None:
        self._store, self._places, self._named = store, places, named_versions(store)
        gone = find(store, targets, self._named)
        adapters = adapters_of(store, gone, places)
        self.gone: Gone = replace(gone, adapters=tuple(adapters))
        self._releases = resting(store, self.gone, self._named, set(adapters.values()))

    def holdings(self, write: bool) -> Iterator[FoundText]:
        """Yields each place with what it holds. With `write` that is taken out."""
        store, gone = self._store, self.gone
        for note in reads_with(store, {*gone.questions, *gone.cited}, bool(gone.documents)):
            yield FoundText(f"note {note}", 0, "its files are read again when they are given again")
            if write:
                outdate(store, note)
        for id in self._releases:
            yield FoundText(f"release {id}", 0, "ends; the one before it answers, or none")
        if write and end_releases(store, self._releases):
            time.sleep(FOLLOW_S)
        for table in (t for t in gone.keyed if write and t.startswith(OF_MEMO)):
            note_loss(store, table, "forget")
        yield from in_small_files(store, gone, write)
        yield from in_folders(store, gone, self._places, write)
        yield from in_tables(store, gone, self._named, write)
