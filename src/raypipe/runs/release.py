"""Releases: promoted runs, the live one among them; and roots, which protect tables and runs from a prune.

A release is a file that never changes: the whole recipe, and the table versions that it searches, each
protected by a tag. `live` is a small file, replaced atomically after everything else is in place, so a reader
sees either the old or the new release.

A prune removes tables that a run or release names, but keeps every table that a root names, tables of the
memo (the cache) included. Roots are the last run of each recipe file (the last without --set, if there is
one), the releases of the history, the releases rolled back since the last promotion, and tables that a
process is reading. The number in a record's file name tells which run is the last; clocks play no part.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raypipe.core.errors import ConfError
from raypipe.core.protocols import Model
from raypipe.metrics.kinds import MeasureSummary
from raypipe.metrics.verdict_rules import CragScore
from raypipe.recipes.recipe import Recipe, titled
from raypipe.recipes.serialize import description, fields_of, references_in
from raypipe.runs.changes import LOOKED_BACK
from raypipe.runs.gates import MIN_SCORED, Gate, GateFailed, check, scored_of
from raypipe.runs.pipeline.recipe_tables import searched_at
from raypipe.runs.record import Run, answer_keys, recent
from raypipe.runs.stage_records import ModelRecord, models_of
from raypipe.store import Store, StoreError, read_now
from raypipe.store.files import LIVE, RELEASES
from raypipe.store.housekeeping import tables, tag, untag
from raypipe.store.index import IndexSpec
from raypipe.store.memo.memo import request_replies_of
from raypipe.store.segments import read_record, write_record
from raypipe.store.tables import check_run

FORMAT = 1
MEND = "Restore its content, or remove the file and promote a run"


@dataclass(frozen=True, slots=True)
class Release:
    """A promoted run."""

    format: int
    id: str
    run: str
    name: str  # name of the recipe
    digest: str  # digest of the recipe
    recipe: Mapping[str, Any]  # recipes.serialize.to_plain
    tables: Mapping[str, int]  # name -> version, each tagged with the id
    score: CragScore | None  # by the run's rule; None: no rule scores the run
    gates: tuple[str, ...]  # texts of the passed gates
    promoted: float  # seconds since the epoch
    lead: MeasureSummary | None = None  # the measure that the run's report begins with
    seen: int = 0  # scored questions of the run that a fit or adapter of its recipe has seen

    @property
    def title(self) -> str:
        """The recipe's name, with its --set values."""
        return titled(self.name, self.recipe.get("sets", ()))

    @property
    def models(self) -> tuple[ModelRecord, ...]:
        """Models of the recipe, without entries that stand for no model."""
        named = (Model(**fields) for fields in fields_of(self.recipe, Model))
        return models_of(m for m in named if not m.absent)

    def opened(self, store: Store) -> tuple[Recipe, IndexSpec]:
        """Returns the recipe, to read but not to run, and its tables at the searched versions. Raises
        ConfError if this raypipe would compute the recipe differently."""
        recipe = description(self.recipe)
        return recipe, searched_at(store.uri, recipe, self.tables)


@dataclass(frozen=True, slots=True)
class _Pointer:
    """Contents of the `live` file."""

    live: str  # id of the live release
    history: tuple[str, ...]  # ids that `rollback` steps back through, `live` last


def promote(
    store: Store,
    record: Run,
    gates: Sequence[Gate],
    min_scored: float = MIN_SCORED,
    passed: Sequence[str] = (),
    against: Release | None = None,
) -> Release:
    """Makes a finished run the live release, unless it is live already. After an error, the live release is
    the same as before. `gates` are bounds on the run's own numbers. `passed` are the texts of gates that
    compared the run with the release `against`, and that it has met.

    Raises GateFailed if a gate fails, or if `against` is given but is not the live release. Raises ConfError
    for a run in which golds replaced a stage, for a gate on an unknown metric, and for a recipe that this
    raypipe would compute differently. Raises StoreError if a searched table version is missing."""
    if record.oracle:
        why = f"is an oracle run: golds replaced its {record.oracle}"
        if record.oracle == "labels":
            why = "made training labels: one of its stages returns golds"
        do = "so it cannot answer live questions. Promote a run of the recipe itself"
        raise ConfError(f"run {record.run} {why}, {do}")
    keys = answer_keys(store, record.run) if gates else {}
    check(record, gates, min_scored, sorted(q for q, k in keys.items() if k.verdict == "unscored"))
    with store.lease("release", f"promote {record.run}"):
        before = live(store)
        if before is not None and before.run == record.run:
            return before
        if against is not None and (before is None or before.id != against.id):
            raise GateFailed(
                f"gates {', '.join(passed)}: run {record.run} was compared with release {against.id}, but "
                f"now {before.id if before else 'no release'} is live. live stays as it is; promote again"
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
    """Makes the previous release of the history live again. Raises ConfError if there is none."""
    with store.lease("release", "rollback"):
        ids = history(store)
        if len(ids) < 2:
            raise ConfError(f"{store.uri}: no earlier release to go back to; `raypipe releases` lists them")
        before = _release(store, ids[-2])
        _point(store, ids[:-1])
    return before


def live(store: Store) -> Release | None:
    """Returns the live release; None if the history is empty, as before the first promotion."""
    return _release(store, ids[-1]) if (ids := history(store)) else None


def live_now(store: Store) -> Release:
    """Returns the live release. Raises ConfError if no release is live."""
    if (found := live(store)) is None:
        raise ConfError(f"{store.uri}: nothing is live; `raypipe promote DIR` releases a finished eval")
    return found


def releases(store: Store) -> list[Release]:
    """Lists all stored releases, oldest first, including releases that were rolled back."""
    return [_release(store, id) for id in _ids(store)]


def history(store: Store) -> tuple[str, ...]:
    """Returns the ids of the releases that `rollback` steps back through, the live one last."""
    found = read_record(store, f"{RELEASES}/{LIVE}.json", _Pointer, MEND)
    return found.history if found else ()


def forget(store: Store, id: str) -> None:
    """Removes a release that is not in the history: its file, then the tags on its table versions."""
    store.files.remove(f"{RELEASES}/{id}.json")
    for table in tables(store):
        untag(store, table, id)


def end_releases(store: Store, ids: Collection[str]) -> bool:
    """Removes releases, also from the history. The newest remaining release of the history becomes live; if
    none remains, no release is live. Returns whether the live release changed."""
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


def _release(store: Store, id: str) -> Release:
    """Reads a release by its id. Raises ConfError if it is missing, and StoreError for another format."""
    name = f"{RELEASES}/{check_run(id)}.json"
    if (release := read_record(store, name, Release, MEND)) is None:
        raise ConfError(f"{store.uri}/{name} is missing: promote a run again")
    if release.format != FORMAT:
        formats = f"release of format {release.format}, this raypipe reads {FORMAT}"
        raise StoreError(f"{store.uri}/{name}: {formats}: promote a run again")
    return release


@dataclass(frozen=True, slots=True)
class ReleaseLine:
    """A release in the list of releases."""

    id: str
    live: bool
    run: str
    recipe: str  # name of the recipe
    digest: str  # digest of the recipe
    score: float | None  # by the run's rule; None: no rule scores the run
    scored: int  # scored questions
    questions: int  # questions with a gold, scored or not
    measure: MeasureSummary | None  # the measure that the run's report begins with
    seen: int  # scored questions that a fit or adapter of its recipe has seen
    gates: tuple[str, ...]  # texts of the passed gates
    promoted: float  # seconds since the epoch


def summary(release: Release, live_id: str) -> ReleaseLine:
    """Returns a release as a line of the list. `live_id` is the id of the live release."""
    score, lead = release.score, release.lead
    scored, questions = scored_of(score) if score else (lead.scored, lead.of) if lead else (0, 0)
    same = {name: getattr(release, name) for name in ("id", "run", "digest", "seen", "gates", "promoted")}
    return ReleaseLine(
        live=release.id == live_id,
        recipe=release.title,
        score=score.score if score else None,
        scored=scored,
        questions=questions,
        measure=lead,
        **same,
    )


EVERY_RUN = 1_000_000  # more runs than a store has


@dataclass(frozen=True, slots=True)
class Roots:
    """All finished runs and releases of a store, and those among them that a prune keeps: the roots."""

    runs: Sequence[Run]  # all finished runs, newest first
    root_runs: Sequence[Run]  # the last run of each recipe file, preferably without --set: `last_of_each`
    releases: Sequence[Release]  # all stored releases, oldest first
    root_releases: Sequence[Release]  # releases in the history, or rolled back since the last promotion
    named: set[str]  # tables that a root names, or that a living process reads
    ever_named: set[str]  # tables that any run or release names, root or not

    def older(self) -> list[Run]:
        """Lists runs that are not needed: they are no roots, no root release names them, and they are not
        among the last LOOKED_BACK."""
        kept = {r.run for r in (*self.root_runs, *self.runs[:LOOKED_BACK])}
        kept |= {r.run for r in self.root_releases}
        return [r for r in self.runs if r.run not in kept]


def roots(store: Store) -> Roots:
    """Finds the roots of a store."""
    runs, every, ids = recent(store, EVERY_RUN), releases(store), history(store)
    # Releases newer than the live one were rolled back. They are kept until the next promote.
    newer = [r.id for r in every].index(ids[-1]) + 1 if ids else len(every)
    root_releases = [r for i, r in enumerate(every) if r.id in ids or i >= newer]
    root_runs = last_of_each(runs)
    named = tables_named([*root_runs, *root_releases]) | read_now(store.files).keys()
    return Roots(runs, root_runs, every, root_releases, named, tables_named([*runs, *every]))


def last_of_each(runs: Sequence[Run]) -> list[Run]:
    """Returns each recipe file's last run, without --set if there is one. `runs` has the newest first."""
    ordered = sorted(reversed(runs), key=lambda r: not r.recipe.get("sets"))
    return list({r.recipe.get("file") or r.recipe["name"]: r for r in ordered}.values())


def tables_named(named_by: Sequence[Run | Release]) -> set[str]:
    """Returns the tables that runs and releases read, and the memo tables of their models and graphs."""
    found = {table for r in named_by for table in r.tables}
    identities = {m.identity for r in named_by for m in r.models}
    found |= {f"{kind}-{identity}" for kind in ("embeddings", "scores") for identity in identities}
    found |= {table for table, _ in replies_named(named_by)}
    return found | request_tables(named_by)


def replies_named(named_by: Sequence[Run | Release]) -> set[tuple[str, str]]:
    """Returns (memo table, model name) for each language model that runs and releases name."""
    models = (m for r in named_by for m in r.models if m.kind == "generator")
    return {(m.replies or f"replies-{m.identity}", m.name) for m in models}


def adapters_named(named_by: Sequence[Run | Release]) -> set[str]:
    """Returns the identities of the adapters of the models that runs and releases name."""
    models = (m for r in named_by for m in fields_of(r.recipe, Model))
    return {identity for m in models for _, identity in m["adapters"]}


def request_tables(named_by: Sequence[Run | Release]) -> set[str]:
    """Returns the memo tables with replies of the servers, such as a graph's, that runs and releases name."""
    references = (ref for r in named_by for ref in references_in(r.recipe))
    return {request_replies_of(ref["version"]).name for ref in references}
