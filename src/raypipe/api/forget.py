"""Takes a page, a document or a question out of a store and of the folders of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from raypipe.api.results import Result
from raypipe.api.session import Place, Session
from raypipe.core.errors import ConfError
from raypipe.evaluation import forgotten
from raypipe.runs.forget import apply, records
from raypipe.runs.forget.find import find
from raypipe.runs.forget.records import ForgetDecision, Holding
from raypipe.runs.forget.target import find_target
from raypipe.runs.roots import releases_naming
from raypipe.store import Store, StoreError
from raypipe.store.adapters import trained_on
from raypipe.store.keep import unfinished
from raypipe.store.memo.disk import merge_memo


@dataclass(frozen=True, slots=True)
class ForgetResult(Result):
    """What holds a thing or rests on it, and what became of each; a row for each."""

    SCHEMA = "kind name rows:int64 does"
    ROWS = "holdings"
    store: str  # URI
    target: str  # url, document, source or question
    name: str  # the url, or its id
    reason: str  # that its tombstone gives
    tombstone: str  # id
    dry_run: bool
    finished: bool  # True: a forget that was killed was finished
    holdings: tuple[Holding, ...]


def forget(
    name: str, store: Place = None, dry_run: bool = True, reason: str = "", runs: Sequence[str | Path] = (),
    session: Session | None = None,
) -> ForgetResult:  # fmt: skip
    """Lists what holds a page, a document or a question, or rests on it; removes it unless `dry_run`.

    `name`: a url that questions cite, the path or id of a document, or the id of a source or question.
    `reason`: what its tombstone says where it is ingested again. `runs`: folders of runs and of training
    labels, or folders over them; those under $RAYPIPE_HOME are looked through in any case. A forget that was
    killed is finished by the same call. Raises DataError for a name that the store does not have.
    """
    session = session or Session()
    opened = session.store(store)
    if not name.strip():
        raise ConfError("forget: expected a url, a path, or an id of a source or question, found none")
    if not dry_run and not reason.strip() and records.begun(opened, name) is None:
        raise ConfError(
            "forget: expected a reason, which the tombstone gives to whom it refuses; "
            "name one: --reason 'licence ended'"
        )
    for folder in map(Path, runs):
        if not folder.is_dir():
            raise ConfError(f"--runs {folder}: expected the folder of a run, or one over several; found none")
    places = [session.settings.home / "runs", *(Path(p).absolute() for p in runs)]
    places = [p for p in places if p.is_dir()]
    if dry_run:
        (decision, holdings), finished = _found(opened, name, reason, places), False
    else:
        decision, holdings, finished = _forget(opened, name, reason, places)
    target, stone = decision.target, decision.tombstone
    what = opened.uri, target.kind, target.name, stone.reason, stone.id
    return ForgetResult(*what, dry_run, finished, tuple(holdings))


def _found(store: Store, name: str, reason: str, places: list[Path]) -> tuple[ForgetDecision, list[Holding]]:
    decision, holdings = find(store, find_target(store, name), name, reason)
    folders = []
    for folder in forgotten.run_folders(places, store):
        rows, files = forgotten.resting(folder, decision), forgotten.held_files(folder, decision)
        if rows or files:
            folders.append(folder)
            does = "rows lose their answer, prompts and passages; the page is written again"
            if not forgotten.is_whole(folder):
                does = "was left by a killed eval: its files go, and the same eval writes them again"
            holdings.append(Holding("run", str(folder), len(rows), does))
    decision = replace(decision, folders=tuple(map(str, folders)))
    return _with_labels(store, decision, holdings, places), holdings


def _with_labels(
    store: Store, decision: ForgetDecision, holdings: list[Holding], places: list[Path]
) -> ForgetDecision:
    """The decision with folders of labels that hold it, adapters that were trained on them, and releases that
    these adapters answer: they end, since weights cannot be taken apart."""
    digests: dict[str, str] = {}
    for kind, folders in forgotten.FOLDERS.items():
        for folder in folders.find(places):
            digest, rows = folders.held(folder, decision)
            if rows:
                digests[digest] = str(folder)
                holdings.append(Holding(kind, str(folder), rows, "rows go"))
    adapters = trained_on(store.files, digests)
    for name in adapters:
        holdings.append(Holding("adapter", name, 0, "was trained on such labels, and goes"))
    ended = releases_naming(store, set(adapters.values()))
    for id in ended:
        holdings[:] = [h for h in holdings if (h.kind, h.name) != ("release", id)]
        holdings.append(Holding("release", id, 0, "ends, with none in its place: its adapter goes"))
    releases = tuple(dict.fromkeys((*decision.releases, *ended)))
    return replace(
        decision, labels=tuple(digests.values()), adapters=tuple(adapters), releases=releases, ended=ended
    )


def _forget(
    store: Store, name: str, reason: str, places: list[Path]
) -> tuple[ForgetDecision, list[Holding], bool]:
    """What was decided and what held it; and whether a killed command had begun it."""
    with store.lease("driver", "forget", forgetting=True):
        decision = records.begun(store, name)
        holdings: list[Holding] = []
        finished = decision is not None
        _require_idle(store, decision)
        with store.lease("release", "forget"):
            if decision is None:
                merge_memo(store)
                decision, holdings = _found(store, name, reason, places)
                apply.check_readers(store, decision)
                apply.decide(store, decision)
            decision = apply.apply(store, decision)
            for folder in filter(Path.is_dir, map(Path, decision.folders)):
                forgotten.take_out(store, folder, decision)
            for folders in forgotten.FOLDERS.values():
                for folder in folders.find(list(filter(Path.is_dir, map(Path, decision.labels)))):
                    folders.take_out(folder, decision)
            apply.require_gone(store, decision)
            records.end(store, decision)
    return decision, holdings, finished


def _require_idle(store: Store, decision: ForgetDecision | None) -> None:
    """Raises StoreError while another command has left work unfinished: its parts may hold what goes."""
    if others := [g for g in records.unfinished_forgets(store) if decision is None or g != decision.given]:
        raise StoreError(
            f"{store.uri}: a forget of {others[0]!r} was begun and has not ended. Run it again to its end: "
            f"`raypipe forget {others[0]!r} --yes`"
        )
    if left := unfinished(store):
        raise StoreError(
            f"{store.uri}: {len(left)} pieces of work are unfinished ({', '.join(left[:3])}), and may hold "
            "what goes. Run the same command again to its end, or `raypipe prune --abandon NAME`"
        )
