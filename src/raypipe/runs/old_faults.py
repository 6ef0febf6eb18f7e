"""Rows of the table `faults` that say nothing any more.

A fault counts while its row is neither done nor given up: of a source, while the table that it names lacks
the source; of a question, while a run that is kept asks for its answer; of a line, while the note of its file
is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from raypipe.runs.manifest import Manifest, answer_keys
from raypipe.store import Store
from raypipe.store.layout import INGESTED
from raypipe.store.lookups import filters

READS = ("ingest", "files")  # in the place of a run, of faults of files


def old_faults(store: Store, tables: Collection[str], gone: Iterable[Manifest]) -> list[int]:
    """Row ids of old faults. `tables`: of the store, but for those that go; `gone`: runs that go."""
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


def forget_faults(store: Store, row_ids: list[int]) -> None:
    """Deletes rows of the table of faults."""
    for where in filters("_rowid", row_ids):
        store.dataset("faults").delete(where)
