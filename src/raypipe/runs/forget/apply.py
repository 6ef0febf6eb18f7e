"""Does what a forget decided. Each step may be done again: a forget that was killed is finished by the same
command, and no other command changes the tables of the store before it has ended.

The order: tombstones, so that nothing of it comes in again; releases that rest on it end, and endpoints see
that; then the rows of each place go, with every older version and file that has them.
"""

from __future__ import annotations

import time

from raypipe.runs.forget.find import ForgetDecision, named_versions
from raypipe.runs.pipeline.ingest_log import outdate
from raypipe.runs.pipeline.tombstones import write_tombstone
from raypipe.runs.release import end_releases
from raypipe.store import Store, StoreError, read_now
from raypipe.store.memo.disk import note_loss
from raypipe.store.sources import merge_sizes
from raypipe.store.tables import OF_MEMO
from raypipe.store.text_places import holding, in_small_files, take_out_of_tables

FOLLOW_S = 3.0
"""Between the end of releases and the removal of their tables: an endpoint that is asked reads the pointer
each second (`release_follower.POLL_S`), and answers what came before that within some more."""


def check_readers(store: Store, decision: ForgetDecision) -> None:
    """Raises StoreError where a living process reads what would go and follows no release."""
    for table, read in holding(store, decision.gone, _read(store)).items():
        if read:
            raise StoreError(
                f"{store.uri}: an endpoint or `ask` over a recipe reads table {table} at version "
                f"{min(read)}, which would go. End it first; one over `live` follows by itself"
            )


def _read(store: Store) -> dict[str, set[int]]:
    return {table: versions for table, versions in read_now(store.files).items() if store.has(table)}


def apply(store: Store, decision: ForgetDecision, follow_s: float = FOLLOW_S) -> None:
    """Takes it out of the store. Run folders are another step."""
    for stone in decision.tombstones:
        write_tombstone(store, stone)
    if end_releases(store, decision.releases):
        time.sleep(follow_s)
    for table in (t for t in decision.gone.keyed if t.startswith(OF_MEMO)):
        note_loss(store, table, decision.tombstones[0].id)
    take_out_of_tables(store, decision.gone, named_versions(store))
    for note in decision.notes:
        outdate(store, note)
    in_small_files(store, decision.gone, write=True)
    merge_sizes(store)
