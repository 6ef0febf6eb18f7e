"""Takes pages, documents or questions out of a store and of the folders of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from raypipe.api.results import Result
from raypipe.api.session import Place, Session
from raypipe.core.errors import ConfError
from raypipe.evaluation.forgotten import take_out, with_folders
from raypipe.runs.forget.apply import apply, check_readers
from raypipe.runs.forget.find import ForgetDecision, begun, end, find, save
from raypipe.runs.forget.target import find_target
from raypipe.store import Store, StoreError
from raypipe.store.keep import unfinished
from raypipe.store.memo.disk import merge_memo
from raypipe.store.text_places import FoundText, in_small_files, in_tables


@dataclass(frozen=True, slots=True)
class Forgotten:
    """One thing that was named."""

    kind: str  # url, document, source or question
    name: str  # the url, or its id
    tombstone: str  # id


@dataclass(frozen=True, slots=True)
class ForgetResult(Result):
    """What holds some things or rests on them, and what became of each; a row for each."""

    SCHEMA = "place rows:int64 does"
    ROWS = "holdings"
    store: str  # URI
    targets: tuple[Forgotten, ...]
    reason: str  # that their tombstones give
    dry_run: bool
    finished: bool  # True: a forget that was killed was finished
    holdings: tuple[FoundText, ...]


def forget(
    names: str | Sequence[str], store: Place = None, dry_run: bool = True, reason: str = "",
    runs: Sequence[str | Path] = (), session: Session | None = None,
) -> ForgetResult:  # fmt: skip
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
    places = [p for p in places if p.is_dir()]
    finished = False
    if dry_run:
        decision, holdings = _decided(opened, given, reason, places)
    else:
        decision, holdings, finished = _forget(opened, given, reason, places)
    targets = tuple(Forgotten(t.kind, t.name, t.tombstone) for t in decision.targets)
    said = decision.tombstones[0].reason
    return ForgetResult(opened.uri, targets, said, dry_run, finished, tuple(holdings))


def _decided(
    store: Store, given: Sequence[str], reason: str, places: list[Path]
) -> tuple[ForgetDecision, list[FoundText]]:
    """What goes, and what holds it."""
    decision = find(store, [find_target(store, name) for name in given], given, reason)
    decision, of_folders = with_folders(store, decision, places)
    return decision, [*_found(store, decision), *of_folders]


def _found(store: Store, decision: ForgetDecision) -> Iterator[FoundText]:
    yield from in_tables(store, decision.gone)
    yield from in_small_files(store, decision.gone, write=False)
    for note in decision.notes:
        yield FoundText(f"note {note}", 1, "its files are read again when they are given again")
    for id in decision.releases:
        yield FoundText(
            f"release {id}", 0, "ends; the one before it answers, or none until a run is promoted"
        )


def _forget(
    store: Store, given: tuple[str, ...], reason: str, places: list[Path]
) -> tuple[ForgetDecision, list[FoundText], bool]:
    """What was decided and what held it; and whether a killed command had begun it."""
    with store.lease("driver", "forget", forgetting=True):
        decision, holdings = begun(store, given), list[FoundText]()
        finished = decision is not None
        if left := unfinished(store):
            raise StoreError(
                f"{store.uri}: {len(left)} pieces of work are unfinished ({', '.join(left[:3])}), and may "
                "hold what goes. Run the same command again to its end, or `raypipe prune --abandon NAME`"
            )
        with store.lease("release", "forget"):
            if decision is None:
                if not reason.strip():
                    raise ConfError(
                        "forget: expected a reason, which the tombstone gives to whom it refuses; "
                        "name one: --reason 'licence ended'"
                    )
                merge_memo(store)
                decision, holdings = _decided(store, given, reason, places)
                check_readers(store, decision)
                save(store, decision)
            apply(store, decision)
            take_out(store, decision)
            end(store, decision)
    return decision, holdings, finished
