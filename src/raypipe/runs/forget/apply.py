"""Does what a forget decided. Each step may be done again: a forget that was killed is finished by the same
command, and no other command changes the tables of the store before it has ended.

The order: the tombstone, so that nothing comes in again; tables, version by version; releases, which then
answer from the versions without it; then the old versions go, and with them every file that held a byte.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.plain import json_lines
from raypipe.runs.forget.mentions import Mentions
from raypipe.runs.forget.records import ForgetDecision, save
from raypipe.runs.forget.target import Target
from raypipe.runs.pipeline.ingest_log import outdate
from raypipe.runs.pipeline.tombstones import write_tombstone
from raypipe.runs.release import forget as forget_release
from raypipe.runs.release import history, repoint, succeed
from raypipe.runs.roots import roots
from raypipe.store import Store, StoreError, read_now
from raypipe.store.adapters import remove_adapter
from raypipe.store.files import Files
from raypipe.store.keep import tag, tagged, untag
from raypipe.store.layout import (
    ANSWER_KEYS,
    CAPTURED,
    FEEDBACK,
    FOLDERS,
    INGESTED,
    MANIFESTS,
    RELEASES,
)
from raypipe.store.memo.disk import note_loss
from raypipe.store.rewrite import Change, Rows, held, keep_only, rewrite, untag_made, versions
from raypipe.store.sources import merge_sizes
from raypipe.store.tables import OF_MEMO

FOLLOW_S = 3.0
"""Between the switch to releases without it and the removal of the old versions: an endpoint that is asked
reads the pointer each second (`release_follower.POLL_S`), and opens tables in less than a second."""


def check_readers(store: Store, decision: ForgetDecision) -> None:
    """Raises StoreError where a living process reads what would go and follows no release."""
    for table, read in read_now(store.files).items():
        gone = {*decision.pinned.get(table, ()), decision.newest.get(table, -1)}
        if read & gone:
            raise StoreError(
                f"{store.uri}: an endpoint or `ask` over a recipe reads table {table} at version "
                f"{min(read & gone)}, which would go. End it first; one over `live` follows by itself"
            )


def decide(store: Store, decision: ForgetDecision) -> None:
    """Writes the decision down, and the tombstone: from here on nothing of it comes in again."""
    save(store, decision)
    write_tombstone(store, decision.tombstone)


def apply(store: Store, decision: ForgetDecision, follow_s: float = FOLLOW_S) -> ForgetDecision:
    """Takes it out of the store; the decision with what was made. Run folders are another step."""
    write_tombstone(store, decision.tombstone)  # a kill may have come between the two
    if decision.made is None:
        decision = _rewrite(store, decision)
        save(store, decision)
    if _releases(store, decision):
        time.sleep(follow_s)
    _manifests(store.files, decision)
    assert decision.made is not None
    for table, versions_ in decision.made.items():
        _clean(store, decision, table, versions_)
    for adapter in decision.adapters:  # weights cannot be taken apart: an adapter goes whole
        remove_adapter(store.files, adapter)
    _notes(store, decision)
    _take_out_lines(store.files, decision)
    merge_sizes(store)
    return decision


def _edits(decision: ForgetDecision) -> list[Rows]:
    cited = [Rows("questions", "id", decision.cited)] if decision.cited else []
    return [*decision.rows, *cited]


def _rewrite(store: Store, decision: ForgetDecision) -> ForgetDecision:
    done: dict[str, Mapping[str, int]] = {}
    for some in _edits(decision):
        if some.table.startswith(OF_MEMO):
            note_loss(store, some.table, decision.id)
        change = None
        if some.table == "questions" and decision.cited:
            change = _uncite(decision)
        found = rewrite(
            store, some, decision.id, decision.newest[some.table], decision.pinned.get(some.table, ()), change
        )
        done[some.table] = {str(old): new for old, new in found.items()}
    return replace(decision, made=done)


def _uncite(decision: ForgetDecision) -> Change:
    cited = set(decision.cited)

    def change(batch: pa.RecordBatch) -> pa.RecordBatch:
        if cited.isdisjoint(batch["id"].to_pylist()):
            return batch
        questions = arrow.question.records(pa.Table.from_batches([batch]))
        left = arrow.question.table(decision.uncited(q) if q.id in cited else q for q in questions)
        return pa.RecordBatch.from_struct_array(left.to_struct_array().combine_chunks())

    return change


def _releases(store: Store, decision: ForgetDecision) -> bool:
    """Puts releases without it in the place of those that hold it; whether what answers has changed."""
    assert decision.made is not None
    before = history(store)
    names: dict[str, str | None] = {}
    there = {n.removesuffix(".json") for n in store.files.names(RELEASES)}
    for id in decision.releases:
        if id in decision.ended:
            names[id] = None
            continue
        if id not in there:  # ended before a kill
            continue
        successor, searched = succeed(store, id, decision.made)
        for table, version in searched.items():
            tag(store, table, successor, version)
        names[id] = successor
    repoint(store, names)
    for id in decision.releases:
        forget_release(store, id)
    return before != history(store)


def _manifests(files: Files, decision: ForgetDecision) -> None:
    """Runs name the versions without it, so that they can still be promoted."""
    assert decision.made is not None
    for name in files.names(MANIFESTS):
        place = f"{MANIFESTS}/{name}"
        tree = json.loads(files.read(place) or b"null")
        if tree and (text := moved(tree, decision)) is not None:
            files.write(place, text.encode())


def moved(manifest: Mapping[str, object], decision: ForgetDecision) -> str | None:
    """The JSON of a manifest that names the versions without it; None where it names none that went."""
    tables: dict[str, int] = dict(manifest["tables"])  # type: ignore[call-overload]
    now = {t: (decision.made or {}).get(t, {}).get(str(v), v) for t, v in tables.items()}
    if now == tables:
        return None
    return json.dumps({**manifest, "tables": now}, allow_nan=False, indent=1) + "\n"


def _clean(store: Store, decision: ForgetDecision, table: str, made_: Mapping[str, int]) -> None:
    """Removes every version that held it, and the files of these versions."""
    [some] = [r for r in _edits(decision) if r.table == table]
    for name, version in tagged(store, table).items():
        if str(version) in made_:  # of a release that is gone, or of a killed promote
            untag(store, table, name)
    named = {r.tables[table] for r in roots(store).last if table in r.tables} & set(versions(store, table))
    clean = {v for v in named if v in made_.values() or not held(store, some, v)}
    untag_made(store, table, decision.id)
    keep_only(store, table, clean)


def _notes(store: Store, decision: ForgetDecision) -> None:
    """Small files: notes of reads, states of folders, keys of the answers of runs."""
    for note in decision.notes:
        outdate(store, note)
    gone, sources = set(decision.target.questions), set(decision.target.sources)
    for name in store.files.names(INGESTED) if gone else ():
        place = f"{INGESTED}/{name}"
        tree = json.loads(store.files.read(place) or b"{}")
        if not gone.isdisjoint(tree.get("questions", ())):
            left = [q for q in tree["questions"] if q not in gone]
            replaced = [{**r, "ids": [i for i in r["ids"] if i not in gone]} for r in tree["replaced"]]
            store.files.write(place, json.dumps({**tree, "questions": left, "replaced": replaced}).encode())
    documents = set(decision.target.documents)
    for name in store.files.names(FOLDERS):
        place = f"{FOLDERS}/{name}"
        tree = json.loads(store.files.read(place) or b"{}")
        kept = {
            n: f
            for n, f in tree.get("files", {}).items()
            if f["document"] not in documents and f["source"] not in sources
        }
        if kept != tree.get("files"):
            store.files.write(place, json.dumps({**tree, "files": kept}).encode())
    for place in (f"{ANSWER_KEYS}/{n}" for n in store.files.names(ANSWER_KEYS) if gone):
        table = arrow.rows_of(store.files.read(place) or b"")
        kept_rows = table.filter(pc.invert(pc.is_in(table["question"], value_set=pa.array(sorted(gone)))))
        if kept_rows.num_rows < table.num_rows:
            store.files.write(place, arrow.file_of(kept_rows))


def require_gone(store: Store, decision: ForgetDecision) -> None:
    """Raises StoreError where a version of a table still has a row that should be gone."""
    for some in decision.rows:
        for version in versions(store, some.table):
            if rows := held(store, some, version):
                raise StoreError(
                    f"{store.uri}: table {some.table} has {rows} such rows at version {version}. Run the "
                    "same command again"
                )


def held_segments(files: Files, target: Target, told: Mentions) -> dict[str, int]:
    """File of the store -> its lines that name it, or say what it alone says."""
    return {name: len(gone) for name, _, gone in _holding(files, target, told)}


Lines = list[dict[str, Any]]


def _holding(files: Files, target: Target, told: Mentions) -> Iterator[tuple[str, Lines, Lines]]:
    """Yields each file with such lines: its name, the lines that stay, and those that go. A line goes whole:
    it is one answer."""
    named = {*target.sources, *target.questions, *target.urls}
    for name in (f"{CAPTURED}/{n}" for n in files.names(CAPTURED)):
        lines = _lines(files.read(name))
        if gone := [line for line in lines if told.within(line, named)]:
            yield name, [line for line in lines if line not in gone], gone


def _take_out_lines(files: Files, decision: ForgetDecision) -> None:
    """Takes these lines out of all files, and the feedback about them. The same again changes nothing."""
    for name, left, gone in _holding(files, decision.target, decision.mentions):
        answers = {str(line.get("answer_id")) for line in gone}
        for place in (f"{FEEDBACK}/{n}" for n in files.names(FEEDBACK)):  # first: by these it is found
            said = _lines(files.read(place))
            others = [line for line in said if line.get("answer_id") not in answers]
            if len(others) < len(said):
                _write_lines(files, place, others)
        _write_lines(files, name, left)


def _write_lines(files: Files, name: str, lines: Lines) -> None:
    if not lines:
        files.remove(name)
        return
    files.write(name, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())


def _lines(raw: bytes | None) -> Lines:
    """Objects of a file, one a line."""
    return [x for x in json_lines((raw or b"").decode("utf-8", "replace")) if isinstance(x, dict)]
