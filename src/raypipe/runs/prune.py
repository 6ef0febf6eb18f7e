"""Prune: removal of all that no release, no recipe and no citation names.

It keeps the tables that releases in the history, the last finished run of each recipe, or an endpoint uses.
It also keeps tables that no finished run ever named, since an unfinished run may need them. An adapter goes
once none of the kept runs and releases names it.

Anything else of an older run can be computed again from the sources, except replies of language models. Those
were paid for, and go only if the user names the model. Replies of a graph's server go once their period is
over, since no run requests them again. Checkpoints of a training go if no process works on it and it is older
than versions are kept. Tagged versions always stay readable.

Each removal can be repeated: after a kill, the next prune removes the rest.
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
from raypipe.store import Store, StoreError, adapters, keep, read_now, sweep
from raypipe.store.files import INGESTED
from raypipe.store.ids import filters
from raypipe.store.memo.disk import note_loss
from raypipe.store.memo.memo import expired
from raypipe.store.sources import merge_sizes
from raypipe.store.tables import OF_MEMO, OF_SOURCES

KINDS = (
    "work",
    "run",
    "release",
    "tag",
    "table",
    "answers",
    "replies",
    "faults",
    "sources",
    "parts",
    "adapter",
    "training",
)


@dataclass(frozen=True, slots=True)
class Removal:
    """A thing that a prune removes, or would remove in a dry run."""

    kind: str  # one of KINDS
    name: str
    rows: int


def prune(
    store: Store,
    dry_run: bool,
    clock: Callable[[], float] = time.time,
    kept: timedelta = keep.KEPT,
    abandoned: Sequence[str] = (),
    replies: Sequence[str] = (),
) -> list[Removal]:
    """Lists all that nothing names and, unless `dry_run`, removes it. Then compacts tables, and removes
    versions older than `kept` that no process reads and no tag protects. `abandoned`: names of unfinished
    work to give up, or their beginnings; `replies`: names of language models whose replies go.

    Raises StoreError if another driver works on the store, StoreError if unfinished work remains, and
    ConfError if a name matches nothing.
    """
    with store.lease("driver", "prune"):
        work = [matching(keep.unfinished(store), name) for name in abandoned]
        if not dry_run:
            forget_runs(store, [run for name in work if (run := keep.abandon(store, name))])
        with driving(store, "prune"), store.lease("release", "prune"):
            if not dry_run and (left := keep.unfinished(store)):
                raise StoreError(
                    f"{store.uri}: {len(left)} pieces of work are unfinished ({', '.join(left[:3])}), and "
                    "may need what would be deleted. Run the same command again to its end, or give it up: "
                    f"`raypipe prune --abandon {left[0]}`"
                )
            now, kept_by = clock(), release.roots(store)
            found = list(_found(store, kept_by, now, kept, replies))
            if not dry_run:
                _remove(store, kept_by, found, now, kept)
    return [*(Removal("work", name, 0) for name in work), *found]


def matching(names: Sequence[str], begin: str) -> str:
    """Returns the only name that begins with `begin`. Raises ConfError if none or several do."""
    found = [name for name in names if name.startswith(begin)]
    if len(found) != 1:
        listed = ", ".join(found or names) or "nothing is unfinished"
        raise ConfError(
            f"--abandon {begin!r}: expected the name (or its beginning) of one unfinished work; {listed}"
        )
    return found[0]


def _found(
    store: Store, kept: release.Roots, now: float, young: timedelta, replies: Collection[str]
) -> Iterator[Removal]:
    ids, kept_ids = {r.id for r in kept.releases}, {r.id for r in kept.released}
    yield from (Removal("release", r.id, len(r.tables)) for r in kept.releases if r.id not in kept_ids)
    here = keep.tables(store)
    orphans = Counter(name for table in here for name in keep.tagged(store, table) if name not in ids)
    yield from (Removal("tag", name, n) for name, n in sorted(orphans.items()))
    paid = {table for table, _ in release.replies_named(kept.runs, kept.releases)} - replies_given_up(
        kept, replies
    )
    gone = [t for t in here if "-" in t and t in kept.ever_named - kept.named - paid]
    yield from (Removal("table", table, store.count(table)) for table in gone)
    digests = (
        {r.digest for r in kept.runs} - {r.digest for r in kept.last} - {r.digest for r in kept.released}
    )
    for digest in sorted(digests):
        if rows := store.count("answers", f"recipe = X'{digest}'"):
            yield Removal("answers", digest, rows)
    for table in sorted(release.request_tables(kept.runs, kept.releases) & set(here) - set(gone)):
        if over := _ended(store, table, now):
            yield Removal("replies", table, len(over))
    if sources := uncited(store):
        yield Removal("sources", "cited by no question and no document", len(sources))
    left = {t for t in here if t not in gone}
    older = [r for r in kept.older() if not (release.tables_named([r], []) & left) - kept.named]
    yield from (Removal("run", r.run, r.questions) for r in older)
    if faults := old_faults(store, left, older):
        yield Removal("faults", "of rows that were done since, or that nothing asks for", len(faults))
    trainings, parts_of_adapters = adapters.abandoned_trainings(store.files, now, young.total_seconds())
    # Adapters that some run or release names, but no root.
    ended = release.adapters_named(kept.runs, kept.releases) - release.adapters_named(
        kept.last, kept.released
    )
    known = {n: adapters.adapter_recipe(store.files, n) for n in adapters.adapter_names(store.files)}
    given_up = [n for n, made in known.items() if str(made.get("adapter", "")) in ended]
    yield from (Removal("adapter", n, 0) for n in (*given_up, *parts_of_adapters))
    yield from (Removal("training", name, 0) for name in trainings)
    if parts := keep.staged(store):
        yield Removal("parts", "of runs that were killed", len(parts))


def replies_given_up(found: release.Roots, models: Collection[str]) -> set[str]:
    """Returns the memo tables with the replies of some language models, given by name. Raises ConfError if no
    run names a model, and ConfError if a root names it."""
    named = defaultdict[str, set[str]](set)
    for table, name in release.replies_named(found.runs, found.releases):
        named[name].add(table)
    tables = set[str]()
    for name in models:
        if name not in named:
            raise ConfError(f"--replies {name!r}: no finished run names it; {did_you_mean(name, named)}")
        if not (free := named[name] - found.named):
            raise ConfError(
                f"--replies {name!r}: expected a model that is no longer in use; a release or the last run "
                "of a recipe names it, and would call it again"
            )
        tables |= free
    return tables


def _ended(store: Store, table: str, now: float) -> list[str]:
    """Returns the keys of expired replies, which no run requests."""
    keys = store.scan(table, columns=["key"], filter="key LIKE '%@%'")["key"].to_pylist()
    return [k for k in keys if expired(k, now)]


def uncited(store: Store) -> list[str]:
    """Lists sources that no stored question or document cites; none if a question searches the whole
    store."""
    cited = set(id_texts(store.scan("documents", ["source"])["source"]))
    for batch in store.batches("questions", ["citations"]):
        column = batch["citations"]
        if column.null_count:
            return []
        cited |= cited_sources(column)
    ids = store.scan("sources", ["id"])["id"]
    return [s for s in id_texts(ids) if s not in cited]


def _remove(
    store: Store, kept: release.Roots, found: Sequence[Removal], now: float, young: timedelta
) -> None:
    names = {kind: [r.name for r in found if r.kind == kind] for kind in KINDS}
    for name in names["release"]:
        release.forget(store, name)
    for name in names["tag"]:
        for table in keep.tables(store):
            keep.untag(store, table, name)
    for table in names["table"]:
        if table.startswith(OF_MEMO):
            note_loss(store, table, "pruned")  # first: a kill after it only makes plans looser
        keep.drop(store, table)
    for table in names["replies"]:
        store.forget(table, "key", _ended(store, table, now))
    if names["answers"]:
        store.forget("answers", "recipe", names["answers"])
    if names["sources"]:
        gone = uncited(store)
        for table in (t for t in keep.tables(store) if t.startswith(OF_SOURCES)):
            store.forget(table, "source", gone)
        store.forget("sources", "id", gone)  # last: after a kill the next prune finds the rest by them
    for name in names["adapter"]:
        adapters.remove_adapter(store.files, name)
    for training in names["training"]:
        with adapters.training_lease(store.files, training, "prune"):
            adapters.remove_training(store.files, training)
    older = [r for r in kept.runs if r.run in names["run"]]
    for where in filters("_rowid", old_faults(store, set(keep.tables(store)), older)):
        store.dataset("faults").delete(where)
    for run in older:
        remove(store, run.run)
    remove_keys_without_record(store)
    merge_sizes(store)
    keep.free(store)
    read = read_now(store.files)
    sweep(store.files)
    for table in keep.tables(store):  # now remove old versions, and files that no version names
        keep.compact(store, table)
        store.index(table)
        named = {r.tables[table] for r in kept.last if table in r.tables}  # may still be promoted
        keep.clean(store, table, named | read.get(table, set()), young)
        keep.free_table(store, table)


READS = ("ingest", "files")  # values of `run` in faults of files, which belong to no run


def old_faults(store: Store, tables: Collection[str], gone: Iterable[Run]) -> list[int]:
    """Returns the row ids of faults that do not matter any more. A source's fault matters while its table
    stays and lacks the source. A question's fault matters while its answer is missing and its run stays. A
    line's fault matters while the note of its file exists. `tables`: those that stay; `gone`: runs that
    go."""
    rows = store.scan("faults", columns=["id", "digest", "run"], with_row_id=True).to_pylist()
    if not rows:
        return []
    notes = {name.partition(".")[0] for name in store.files.names(INGESTED)}
    forgotten = {k.key for r in gone for k in answer_keys(store, r.run).values()}
    asked = {r["digest"] for r in rows if "-" not in r["digest"] and r["run"] not in READS}
    forgotten |= asked - set(store.missing("answers", "key", sorted(asked)))
    of_table: dict[str, set[str]] = {}
    for r in rows:
        if "-" in r["digest"]:
            of_table.setdefault(r["digest"], set()).add(r["id"])
    pending = {t: set(store.missing(t, "source", sorted(ids))) for t, ids in of_table.items() if t in tables}

    def old(id: str, digest: str, run: str) -> bool:
        if run in READS:
            return digest not in notes
        return id not in pending.get(digest, ()) if "-" in digest else digest in forgotten

    return [r["_rowid"] for r in rows if old(r["id"], r["digest"], r["run"])]
