"""What no release, no recipe and no citation names any more, found and removed.

Kept: what the releases of the history name, what the last finished run of each recipe names, what an endpoint
reads, and whatever no finished run ever named, since an unfinished one may need it. Everything else that an
older run made can be made again from the sources. Of what a graph's server replied, that goes whose period is
over: no run asks for it again. Tagged versions stay readable whatever is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import pyarrow.compute as pc

from raypipe.core.digests import model_identity
from raypipe.memo.keys import expired
from raypipe.memo.memo import graph_replies_of
from raypipe.pipeline.ingest_log import driving
from raypipe.recipes.serialize import description, graph_versions
from raypipe.runs.manifest import Manifest, recent
from raypipe.runs.release import Release, forget, history, releases
from raypipe.store import Store, StoreError, read_now, sweep
from raypipe.store.keep import KEPT, clean, compact, delete_rows, drop, tables, unfinished, untag

EVERY_RUN = 1_000_000  # more than a store has
SOURCE_TABLES = ("texts-", "passages-", "vectors-")


@dataclass(frozen=True, slots=True)
class Removal:
    """One thing that goes, or would go."""

    kind: str  # release, table, answers, replies, sources
    name: str
    rows: int


def prune(
    store: Store, dry_run: bool, clock: Callable[[], float] = time.time, kept: timedelta = KEPT
) -> list[Removal]:
    """Finds what nothing references and, unless `dry_run`, removes it; then versions older than `kept`
    that no process reads and no tag protects, and compacts what is left. Raises StoreError while another
    driver works on the store, or has left work unfinished."""
    with driving(store, "prune"):
        if not dry_run and (left := unfinished(store)):
            raise StoreError(
                f"{store.uri}: {len(left)} pieces of work are unfinished ({', '.join(left[:3])}), and may "
                "need what would go. Run the same command again to its end, then prune"
            )
        now = clock()
        found = list(_found(store, now))
        if not dry_run:
            _remove(store, found, now, kept)
    return found


def _found(store: Store, now: float) -> Iterator[Removal]:
    runs = recent(store, EVERY_RUN)
    kept_ids = history(store)
    every = releases(store)
    yield from (Removal("release", r.id, len(r.tables)) for r in every if r.id not in kept_ids)
    kept = _last_of_each(runs)
    released = [r for r in every if r.id in kept_ids]
    named, named_once = _names(kept, released) | read_now(store.files).keys(), _names(runs, every)
    graphs = _graph_tables(runs, every)
    for table in tables(store):
        if "-" in table and table in named_once and table not in named:
            yield Removal("table", table, store.count(table))
    digests = {r.digest for r in runs} - {r.digest for r in kept} - {r.digest for r in released}
    for digest in sorted(digests):
        rows = store.dataset("answers").count_rows(f"recipe = '{digest}'")
        if rows:
            yield Removal("answers", digest, rows)
    for table in tables(store):
        if table not in graphs or table in named_once - named:
            continue
        if ended := _ended(store, table, now):
            yield Removal("replies", table, len(ended))
    if gone := uncited(store):
        yield Removal("sources", "cited by no question and no document", len(gone))


def _last_of_each(runs: Sequence[Manifest]) -> list[Manifest]:
    """The last run of each recipe, by its name; `runs` has the latest first."""
    return list({r.recipe["name"]: r for r in reversed(runs)}.values())


def _names(runs: Sequence[Manifest], released: Sequence[Release]) -> set[str]:
    """Tables that these runs and releases name: of their corpus, and the memo of their models."""
    found = {t for r in runs for t in r.tables} | {t for r in released for t in r.tables}
    identities = {m.identity for r in runs for m in r.models}
    identities |= {model_identity(m) for r in released for m in description(r.recipe).models()}
    kinds = ("embeddings", "scores", "replies")
    found |= {f"{kind}-{identity}" for kind in kinds for identity in identities}
    return found | _graph_tables(runs, released)


def _graph_tables(runs: Sequence[Manifest], released: Sequence[Release]) -> set[str]:
    """The memo of what servers of graphs replied to these runs and releases."""
    recipes = [*(r.recipe for r in runs), *(r.recipe for r in released)]
    versions = set().union(*map(graph_versions, recipes))
    return {graph_replies_of(v).name for v in versions}


def _ended(store: Store, table: str, now: float) -> list[str]:
    """Keys of expired replies, which no run asks for."""
    keys = store.dataset(table).to_table(columns=["key"], filter="key LIKE '%@%'")["key"].to_pylist()
    return [k for k in keys if expired(k, now)]


def uncited(store: Store) -> list[str]:
    """Sources that no stored question and no document names. None, while a question searches everything."""
    cited: set[str] = set(store.dataset("documents").to_table(["source"])["source"].to_pylist())
    for batch in store.dataset("questions").to_batches(columns=["citations"]):
        column = batch["citations"]
        if column.null_count:
            return []
        for name in ("page", "snippet", "name"):
            cited |= set(pc.struct_field(pc.list_flatten(column), name).unique().to_pylist())
    ids = store.dataset("sources").to_table(["id"])["id"].to_pylist()
    return [s for s in ids if s not in cited]


def _remove(store: Store, found: Sequence[Removal], now: float, young: timedelta) -> None:
    gone = uncited(store) if any(r.kind == "sources" for r in found) else []
    for r in found:
        if r.kind == "release":
            for table in tables(store):
                untag(store, table, r.name)
            forget(store, r.name)
    for r in found:
        if r.kind == "table":
            drop(store, r.name)
        elif r.kind == "answers":
            delete_rows(store, "answers", "recipe", [r.name])
        elif r.kind == "replies":
            delete_rows(store, r.name, "key", _ended(store, r.name, now))
        elif r.kind == "sources":
            delete_rows(store, "sources", "id", gone)
            for table in tables(store):
                if table.startswith(SOURCE_TABLES):
                    delete_rows(store, table, "source", gone)
    kept = _last_of_each(recent(store, EVERY_RUN))  # may be promoted yet, at the versions that they name
    read = read_now(store.files)
    sweep(store.files)
    for table in tables(store):
        compact(store, table)
        store.index(table)
        named = {r.tables[table] for r in kept if table in r.tables}
        clean(store, table, named | read.get(table, set()), young)
