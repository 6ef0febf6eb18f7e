"""Prune: removal of all that no release, no recipe and no citation names.

`release.Roots` has all runs and releases of a store, and the roots among them: what must remain.

A table is removed if a run or release names it, no root does, and no living process reads it. A table that no
finished run or release names remains, since an unfinished run may need it. Memo tables with replies of
language models remain, too, since they were paid for: only `--replies MODEL` removes them. All other tables
can be computed again from the sources. Also removed are answers of recipes without a root, records of old
runs (`Roots.older`), sources that nothing cites, and faults that do not matter any more (`old_faults`).

An adapter is removed if an older run or release names it and no root does. Cached replies of a graph's server
are removed after their refresh period, since no run looks them up again. Checkpoints of a training, and
incomplete adapters, are removed if no process works on the training and their newest file is older than
`kept`. Tagged versions always stay readable. After a kill, the next prune removes what is left.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from raypipe.core.arrow import id_texts
from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError
from raypipe.runs import release
from raypipe.runs.pipeline.counters import forget_runs
from raypipe.runs.pipeline.ingest_log import driving
from raypipe.runs.pipeline.ingest_staging import cited_sources
from raypipe.runs.record import Run, answer_keys, remove, remove_keys_without_record
from raypipe.store import Store, StoreError, adapters, housekeeping, read_now, sweep
from raypipe.store.files import INGESTED, TRAININGS
from raypipe.store.ids import filters
from raypipe.store.memo.disk import note_loss
from raypipe.store.memo.memo import expired
from raypipe.store.sources import merge_sizes
from raypipe.store.tables import OF_MEMO, OF_SOURCES


@dataclass(frozen=True, slots=True)
class Removal:
    """A thing that a prune removes, or would remove in a dry run."""

    # work, run, release, tag, table, answers, replies, faults, sources, parts, adapter or training
    kind: str
    name: str
    rows: int  # tables of a release or tag, questions of a run, runs of parts; 0: not counted


def prune(
    store: Store,
    dry_run: bool,
    clock: Callable[[], float] = time.time,
    kept: timedelta = housekeeping.KEPT,
    abandoned: Sequence[str] = (),
    replies: Sequence[str] = (),
) -> list[Removal]:
    """Lists all that nothing names and, unless `dry_run`, removes it. Then compacts tables, and removes
    versions older than `kept` that no process reads, no root run names and no tag protects. A dry run gives
    up no work, but it finishes killed ingests (`driving`). `abandoned` are names of unfinished work to give
    up; the beginning of a name suffices. `replies` are names of language models whose replies are removed.

    Raises StoreError if another driver works on the store or, except in a dry run, unfinished work remains.
    Raises ConfError if a name in `abandoned` matches no work or several, and as `replies_given_up` does."""
    with store.lease("driver", "prune"):
        work = [matching(housekeeping.unfinished(store), name) for name in abandoned]
        if not dry_run:
            forget_runs(store, [run for name in work if (run := housekeeping.abandon(store, name))])
        with driving(store, "prune"), store.lease("release", "prune"):
            if not dry_run and (unfinished := housekeeping.unfinished(store)):
                listed = f"{len(unfinished)} pieces of work are unfinished ({', '.join(unfinished[:3])})"
                mend = f"give it up: `raypipe prune --abandon {unfinished[0]}`"
                raise StoreError(
                    f"{store.uri}: {listed}, and may need what would be deleted. Run "
                    f"the same command again to its end, or {mend}"
                )
            now, roots = clock(), release.roots(store)
            removals = list(_removals(store, roots, now, kept, replies))
            if not dry_run:
                _remove(store, roots, removals, now, kept)
    return [*(Removal("work", name, 0) for name in work), *removals]


def matching(names: Sequence[str], begin: str) -> str:
    """Returns the only name that begins with `begin`. Raises ConfError if none or several do."""
    matches = [name for name in names if name.startswith(begin)]
    if len(matches) != 1:
        listed = ", ".join(matches or names) or "nothing is unfinished"
        expected = "expected the name (or its beginning) of one unfinished work"
        raise ConfError(f"--abandon {begin!r}: {expected}; {listed}")
    return matches[0]


def _is_named_by_digest(name: str) -> bool:
    """Returns whether `name` is a table's name that ends in a digest, such as `texts-...`. Tables without a
    digest, such as `questions`, always remain. An answer's key, a digest without "-", is no such name."""
    return "-" in name


def _removals(
    store: Store, roots: release.Roots, now: float, min_age: timedelta, replies: Collection[str]
) -> Iterator[Removal]:
    every: list[Run | release.Release] = [*roots.runs, *roots.releases]
    kept: list[Run | release.Release] = [*roots.root_runs, *roots.root_releases]
    ids, kept_ids = ({r.id for r in releases} for releases in (roots.releases, roots.root_releases))
    yield from (Removal("release", r.id, len(r.tables)) for r in roots.releases if r.id not in kept_ids)
    tables = housekeeping.tables(store)
    orphans = Counter(
        name for table in tables for name in housekeeping.tagged(store, table) if name not in ids
    )
    yield from (Removal("tag", name, n) for name, n in sorted(orphans.items()))
    paid = {table for table, _ in release.replies_named(every)} - replies_given_up(roots, replies)
    unnamed = roots.ever_named - roots.named - paid
    dropped = [t for t in tables if _is_named_by_digest(t) and t in unnamed]
    yield from (Removal("table", table, store.count(table)) for table in dropped)
    for digest in sorted({r.digest for r in roots.runs} - {r.digest for r in kept}):
        if rows := store.count("answers", f"recipe = X'{digest}'"):
            yield Removal("answers", digest, rows)
    for table in sorted(release.request_tables(every) & set(tables) - set(dropped)):
        if over := _expired(store, table, now):
            yield Removal("replies", table, len(over))
    if sources := uncited(store):
        yield Removal("sources", "cited by no question and no document", len(sources))
    remaining = {t for t in tables if t not in dropped}
    older = [r for r in roots.older() if not (release.tables_named([r]) & remaining) - roots.named]
    yield from (Removal("run", r.run, r.questions) for r in older)
    if faults := old_faults(store, remaining, older):
        yield Removal("faults", "of rows that were done since, or that nothing asks for", len(faults))
    trainings, parts_of_adapters = adapters.abandoned_trainings(store.files, now, min_age.total_seconds())
    ended = release.adapters_named(every) - release.adapters_named(kept)
    made = {n: adapters.adapter_recipe(store.files, n) for n in adapters.adapter_names(store.files)}
    given_up = [n for n, recipe in made.items() if str(recipe.get("adapter", "")) in ended]
    yield from (Removal("adapter", n, 0) for n in (*given_up, *parts_of_adapters))
    yield from (Removal("training", name, 0) for name in trainings)
    if parts := housekeeping.staged(store):
        yield Removal("parts", "of runs that were killed", len(parts))


def replies_given_up(found: release.Roots, models: Collection[str]) -> set[str]:
    """Returns the memo tables with replies of these language models, except tables that a root names or a
    process reads. Raises ConfError if no run or release names a model, or if no table is left for a model."""
    named = defaultdict[str, set[str]](set)
    for table, name in release.replies_named([*found.runs, *found.releases]):
        named[name].add(table)
    tables = set[str]()
    for name in models:
        if name not in named:
            raise ConfError(f"--replies {name!r}: no finished run names it; {did_you_mean(name, named)}")
        if not (unnamed := named[name] - found.named):
            used = "a release or the last run of a recipe names it, and would call it again"
            raise ConfError(f"--replies {name!r}: expected a model that is no longer in use; {used}")
        tables |= unnamed
    return tables


def _expired(store: Store, table: str, now: float) -> list[str]:
    """Returns the keys of expired replies, which no run looks up."""
    # "@" in a key precedes the refresh period of the reply (`memo.request_key`).
    keys = store.scan(table, columns=["key"], filter="key LIKE '%@%'")["key"].to_pylist()
    return [k for k in keys if expired(k, now)]


def uncited(store: Store) -> list[str]:
    """Lists sources that no question or document cites. Lists none if a question searches the whole store."""
    cited = set(id_texts(store.scan("documents", ["source"])["source"]))
    for batch in store.batches("questions", ["citations"]):
        column = batch["citations"]
        if column.null_count:
            return []
        cited |= cited_sources(column)
    return [s for s in id_texts(store.scan("sources", ["id"])["id"]) if s not in cited]


def _remove(
    store: Store, roots: release.Roots, removals: Sequence[Removal], now: float, min_age: timedelta
) -> None:
    names = defaultdict[str, list[str]](list)
    for removal in removals:
        names[removal.kind].append(removal.name)
    for name in names["release"]:
        release.forget(store, name)
    for name in names["tag"]:
        for table in housekeeping.tables(store):
            housekeeping.untag(store, table, name)
    for table in names["table"]:
        if table.startswith(OF_MEMO):
            note_loss(store, table, "pruned")  # first: a kill after it only makes plans looser
        housekeeping.drop(store, table)
    for table in names["replies"]:
        store.forget(table, "key", _expired(store, table, now))
    if names["answers"]:
        store.forget("answers", "recipe", names["answers"])
    if names["sources"]:
        uncited_ids = uncited(store)
        for table in (t for t in housekeeping.tables(store) if t.startswith(OF_SOURCES)):
            store.forget(table, "source", uncited_ids)
        store.forget("sources", "id", uncited_ids)  # last: after a kill the next prune finds the rest by them
    for name in names["adapter"]:
        adapters.remove_adapter(store.files, name)
    for training in names["training"]:
        with adapters.training_lease(store.files, training, "prune"):
            store.files.remove_folder(f"{TRAININGS}/{training}")
    older = [r for r in roots.runs if r.run in names["run"]]
    for where in filters("_rowid", old_faults(store, set(housekeeping.tables(store)), older)):
        store.dataset("faults").delete(where)
    for run in older:
        remove(store, run.run)
    remove_keys_without_record(store)
    merge_sizes(store)
    housekeeping.free(store)
    read = read_now(store.files)
    sweep(store.files)
    for table in housekeeping.tables(store):  # now remove old versions, and files that no version names
        housekeeping.compact(store, table)
        store.index(table)
        named = {r.tables[table] for r in roots.root_runs if table in r.tables}  # may still be promoted
        housekeeping.clean(store, table, named | read.get(table, set()), min_age)
        housekeeping.free_table(store, table)


READS = ("ingest", "files")  # values of `run` in faults of files, which belong to no run


def old_faults(store: Store, tables: Collection[str], gone: Iterable[Run]) -> list[int]:
    """Returns the row ids of faults that do not matter any more. A fault's `digest` and `run` tell its kind.

    If `digest` is a table's name, such as `texts-...`, a source failed. The fault matters while the table is
    in `tables` (remaining tables) and lacks the source. If `digest` is an answer's key, a question failed.
    The fault matters while the answer is missing and no run in `gone` (runs to be removed) has the key. If
    `run` is in READS, a line or file could not be read. The fault matters while the files' note exists."""
    rows = store.scan("faults", columns=["id", "digest", "run"], with_row_id=True).to_pylist()
    if not rows:
        return []
    notes = {name.partition(".")[0] for name in store.files.names(INGESTED)}
    forgotten = {k.key for r in gone for k in answer_keys(store, r.run).values()}
    asked = {r["digest"] for r in rows if not _is_named_by_digest(r["digest"]) and r["run"] not in READS}
    forgotten |= asked - set(store.missing("answers", "key", sorted(asked)))
    of_table = defaultdict[str, set[str]](set)
    for r in rows:
        if _is_named_by_digest(r["digest"]):
            of_table[r["digest"]].add(r["id"])
    pending = {t: set(store.missing(t, "source", sorted(ids))) for t, ids in of_table.items() if t in tables}

    def old(id: str, digest: str, run: str) -> bool:
        if run in READS:
            return digest not in notes
        return id not in pending.get(digest, ()) if _is_named_by_digest(digest) else digest in forgotten

    return [r["_rowid"] for r in rows if old(r["id"], r["digest"], r["run"])]
