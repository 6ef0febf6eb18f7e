"""Releases: which finished run answers live questions, switched at once and back, and what is still named.

A release is a file that never changes: the whole recipe, and the tables with the versions that it searches,
each protected by a tag. `live` is one small file, replaced atomically after everything else is in place, so a
reader sees one release or the other. Roots are named explicitly: releases by their ids, recipes by the files
that they were read from; everything else may go. Which run of a recipe is the last one follows from the
numbers of records; clocks play no part. Knows records and the store; runs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raypipe.core.digests import model_identity
from raypipe.core.errors import ConfError
from raypipe.core.protocols import Model
from raypipe.metrics.crag import CragScore
from raypipe.metrics.kinds import MeasureSummary
from raypipe.recipes.recipe import Recipe, titled
from raypipe.recipes.serialize import description, fields_of, references_in
from raypipe.runs.changes import LOOKED_BACK
from raypipe.runs.gates import MIN_SCORED, Gate, GateFailed, check, scored_of
from raypipe.runs.pipeline.recipe_tables import searched_at
from raypipe.runs.record import Run, answer_keys, recent
from raypipe.store import Store, StoreError, read_now
from raypipe.store.files import LIVE, RELEASES
from raypipe.store.index import IndexSpec
from raypipe.store.keep import tables, tag, untag
from raypipe.store.memo.memo import replies_of, request_replies_of
from raypipe.store.segments import read_record, write_record
from raypipe.store.tables import check_run

FORMAT = 1
MEND = "Put back what stood there, or remove the file and promote a run"


@dataclass(frozen=True, slots=True)
class Release:
    """A promoted run."""

    format: int
    id: str
    run: str
    name: str  # of the recipe
    digest: str  # of the recipe
    recipe: Mapping[str, Any]  # recipes.serialize.to_plain
    tables: Mapping[str, int]  # name -> version, each tagged with the id
    score: CragScore | None  # by the rule of the run; None: it has none
    gates: tuple[str, ...]  # that it passed
    promoted: float  # seconds since the epoch
    lead: MeasureSummary | None = None  # the measure that the run's report begins with
    seen: int = 0  # scored questions of the run that a fit or adapter of its recipe has seen

    @property
    def title(self) -> str:
        """The recipe's name, with what --set gave."""
        return titled(self.name, self.recipe.get("sets", ()))

    def opened(self, store: Store) -> tuple[Recipe, IndexSpec]:
        """Returns its recipe, to be read and not run, and its tables at the versions that it searches.

        Raises ConfError for a recipe that this raypipe would compute otherwise.
        """
        recipe = description(self.recipe)
        return recipe, searched_at(store.uri, recipe, self.tables)


@dataclass(frozen=True, slots=True)
class _Pointer:
    """Which release is live."""

    live: str  # id
    history: tuple[str, ...]  # ids that `rollback` goes back through, `live` last


def promote(
    store: Store,
    record: Run,
    gates: Sequence[Gate],
    min_scored: float = MIN_SCORED,
    passed: Sequence[str] = (),
    against: Release | None = None,
) -> Release:
    """Makes a finished run the live one. The same run again changes nothing.

    `passed` are gates of another kind, which it has passed already; `against` is the live release that they
    held it against, if they did.

    Raises GateFailed, ConfError for an oracle run, and StoreError if a table that the run searched is not
    there at its version; then live is as it was.
    """
    if record.oracle:
        why = f"is an oracle run: golds stood in the place of its {record.oracle}"
        if record.oracle == "labels":
            why = "made training labels: golds stand in one of its stages"
        raise ConfError(
            f"run {record.run} {why}, so it cannot answer live questions. Promote a run of the recipe itself"
        )
    keys = answer_keys(store, record.run) if gates else {}
    check(record, gates, min_scored, sorted(q for q, k in keys.items() if k.verdict == "unscored"))
    with store.lease("release", f"promote {record.run}"):
        before = live(store)
        if before is not None and before.run == record.run:
            return before
        if against is not None and (before is None or before.id != against.id):
            raise GateFailed(
                f"gates {', '.join(passed)}: run {record.run} was held against release {against.id}, and "
                f"meanwhile {before.id if before else 'no release'} is live. It stays; promote again"
            )
        number = max((int(n[1:].partition("-")[0]) for n in _ids(store)), default=0) + 1
        id = check_run(f"r{number:04d}-{record.run[:8]}")
        release = Release(
            FORMAT,
            id,
            record.run,
            record.recipe["name"],
            record.digest,
            record.recipe,
            record.tables,
            record.score,
            (*(g.text for g in gates), *passed),
            time.time(),
            record.measure(record.lead),
            record.seen,
        )
        release.opened(store)
        for table, version in record.tables.items():
            tag(store, table, id, version)
        write_record(store, f"{RELEASES}/{id}.json", release)
        _point(store, (*history(store), id))
    return release


def rollback(store: Store) -> Release:
    """Makes the release before the live one live again. Raises ConfError if there is none, or its file is
    gone; then live is as it was."""
    with store.lease("release", "rollback"):
        ids = history(store)
        if len(ids) < 2:
            raise ConfError(f"{store.uri}: no earlier release to go back to; `raypipe releases` lists them")
        before = release_of(store, ids[-2])
        _point(store, ids[:-1])
    return before


def live(store: Store) -> Release | None:
    """The release that answers; None before the first."""
    return release_of(store, ids[-1]) if (ids := history(store)) else None


def live_now(store: Store) -> Release:
    """As `live`. Raises ConfError before the first."""
    if (found := live(store)) is None:
        raise ConfError(f"{store.uri}: nothing is live; `raypipe promote DIR` releases a finished eval")
    return found


def releases(store: Store) -> list[Release]:
    """Every release that is kept, oldest first, those that were rolled back included."""
    return [release_of(store, id) for id in _ids(store)]


def history(store: Store) -> tuple[str, ...]:
    """Ids of the releases that `rollback` goes back through, the live one last."""
    found = read_record(store, f"{RELEASES}/{LIVE}.json", _Pointer, MEND)
    return found.history if found else ()


def forget(store: Store, id: str) -> None:
    """Removes a release that is not in the history: its file, which was written last, and then its tags."""
    store.files.remove(f"{RELEASES}/{id}.json")
    for table in tables(store):
        untag(store, table, id)


def end_releases(store: Store, ids: Collection[str]) -> bool:
    """Ends releases, and then removes them: the one before them answers, or none. Returns whether what
    answers has changed. The same again changes nothing."""
    before = history(store)
    after = tuple(id for id in before if id not in ids)
    if not after:
        store.files.remove(f"{RELEASES}/{LIVE}.json")
    elif after != before:
        _point(store, after)
    for id in ids:
        forget(store, id)
    return before[-1:] != after[-1:]


def _ids(store: Store) -> list[str]:
    return [id for n in store.files.names(RELEASES) if (id := n.removesuffix(".json")) != LIVE]


def _point(store: Store, history: tuple[str, ...]) -> None:
    write_record(store, f"{RELEASES}/{LIVE}.json", _Pointer(history[-1], history))


def release_of(store: Store, id: str) -> Release:
    """A release by its id. Raises ConfError for one that is not there."""
    name = f"{RELEASES}/{check_run(id)}.json"
    found = read_record(store, name, Release, MEND)
    if found is None:
        raise ConfError(f"{store.uri}/{name} is gone: promote a run again")
    if found.format != FORMAT:
        raise StoreError(
            f"{store.uri}/{name}: release of format {found.format}, this raypipe reads {FORMAT}: promote "
            "a run again"
        )
    return found


@dataclass(frozen=True, slots=True)
class ReleaseLine:
    """A release in a list."""

    id: str
    live: bool
    run: str
    recipe: str  # its name
    digest: str  # of the recipe
    score: float | None  # by the rule of the run; None: it has none
    scored: int  # questions behind it
    questions: int  # with a gold
    measure: MeasureSummary | None  # that the run's report begins with
    seen: int  # scored questions that a fit or adapter of its recipe has seen
    gates: tuple[str, ...]  # that it passed
    promoted: float  # seconds since the epoch


def summary(release: Release, live_id: str) -> ReleaseLine:
    """A release as `releases` lists it. `live_id`: of the live one."""
    score, lead = release.score, release.lead
    scored, questions = scored_of(score) if score else (lead.scored, lead.of) if lead else (0, 0)
    return ReleaseLine(
        release.id,
        release.id == live_id,
        release.run,
        release.title,
        release.digest,
        score.score if score else None,
        scored,
        questions,
        lead,
        release.seen,
        release.gates,
        release.promoted,
    )


EVERY_RUN = 1_000_000  # more than a store has


@dataclass(frozen=True, slots=True)
class Roots:
    """The finished runs of a store, and which of them are kept."""

    runs: tuple[Run, ...]  # finished, the latest first
    last: tuple[Run, ...]  # of each recipe
    releases: tuple[Release, ...]  # every one
    released: tuple[Release, ...]  # that `rollback` goes back through, and those that it went back from
    named: frozenset[str]  # tables that a root names
    named_once: frozenset[str]  # tables that any run or release ever named

    def older(self) -> list[Run]:
        """Runs that no root is, and that no plan and no comparison looks back to."""
        kept = {r.run for r in (*self.last, *self.runs[:LOOKED_BACK])} | {r.run for r in self.released}
        return [r for r in self.runs if r.run not in kept]


def roots(store: Store) -> Roots:
    runs, every = recent(store, EVERY_RUN), releases(store)
    ids = history(store)
    # what is newer than the live one was rolled back, and may be promoted again; the next promote ends that
    newer = [r.id for r in every].index(ids[-1]) + 1 if ids else len(every)
    released = [r for i, r in enumerate(every) if r.id in ids or i >= newer]
    last = last_of_each(runs)
    return Roots(
        tuple(runs),
        tuple(last),
        tuple(every),
        tuple(released),
        frozenset(tables_named(last, released) | read_now(store.files).keys()),
        frozenset(tables_named(runs, every)),
    )


def last_of_each(runs: Sequence[Run]) -> list[Run]:
    """The last run of each recipe, by the recipe's file; `runs` has the latest first. A run with --set counts
    where no run of the file as it is has finished."""
    ordered = sorted(reversed(runs), key=lambda r: not r.recipe.get("sets"))
    return list({r.recipe.get("file") or r.recipe["name"]: r for r in ordered}.values())


def tables_named(runs: Iterable[Run], released: Iterable[Release]) -> set[str]:
    """Tables that these runs and releases name: of their corpus, and the memo of their models and graphs."""
    runs, released = list(runs), list(released)
    found = {t for r in runs for t in r.tables} | {t for r in released for t in r.tables}
    identities = {m.identity for r in runs for m in r.models}
    identities |= {model_identity(m) for m in _models(released)}
    found |= {f"{kind}-{identity}" for kind in ("embeddings", "scores") for identity in identities}
    found |= {table for table, _ in replies_named(runs, released)}
    return found | request_tables(runs, released)


def replies_named(runs: Iterable[Run], released: Iterable[Release]) -> set[tuple[str, str]]:
    """Memo table of a language model's replies, and the name of the model, of each that these name."""
    records = [m for r in runs for m in r.models if m.kind == "generator"]
    found = {(m.replies or f"replies-{m.identity}", m.name) for m in records}
    return found | {(replies_of(m).name, m.name) for m in _models(released) if m.kind == "generator"}


def _models(released: Iterable[Release]) -> list[Model]:
    found = [Model(**fields) for r in released for fields in fields_of(r.recipe, Model)]
    return [m for m in found if not m.absent]


def adapters_named(runs: Iterable[Run], released: Iterable[Release]) -> set[str]:
    """Identities of the adapters of the models that these runs and releases name."""
    models = (m for recipe in _recipes(runs, released) for m in fields_of(recipe, Model))
    return {identity for m in models for _, identity in m["adapters"]}


def _recipes(runs: Iterable[Run], released: Iterable[Release]) -> list[Mapping[str, Any]]:
    return [*(r.recipe for r in runs), *(r.recipe for r in released)]


def request_tables(runs: Iterable[Run], released: Iterable[Release]) -> set[str]:
    """The memo of what servers, such as a graph's, replied to these runs and releases."""
    references = (ref for recipe in _recipes(runs, released) for ref in references_in(recipe))
    return {request_replies_of(ref["version"]).name for ref in references}
