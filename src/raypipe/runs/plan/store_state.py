"""What a store holds of the work that a recipe would do: chunks, answers, and what a killed run has left.

Read for plans; changes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.arrow import SPANS
from raypipe.core.records import FAULT
from raypipe.pipeline.answer_sources import answer_key
from raypipe.store import Store, begun, committed, done_parts
from raypipe.store.corpus_sum import rows_id
from raypipe.store.database import rows
from raypipe.store.parts import staged
from raypipe.store.source_ids import SourceIds


def left(store: Store, what: str, table: str, missing: Sequence[str]) -> list[str]:
    """Ids of the parts that a killed run did not do, then the missing ids that it did not mean to do."""
    run = begun(store, what)
    if run is None:
        return list(missing)
    if store.has(table) and committed(store, table, run.name) is not None:
        undone: list[str] = []
    else:
        here = done_parts(store, table, run.name)
        undone = [i for part, ids in run.parts.items() if part not in here for i in ids]
    meant = {i for ids in run.parts.values() for i in ids}
    return [*undone, *(i for i in missing if i not in meant)]


def left_answers(store: Store, work_id: str, keys: Mapping[str, str], missing: Sequence[str]) -> list[str]:
    """Ids of the questions in the parts that a killed run did not do, then of those missing that its other
    parts do not answer from the present evidence. `keys`: key of its answer -> question id."""
    run = begun(store, work_id)
    if run is None or committed(store, "answers", run.name) is not None:
        return list(missing)
    here = done_parts(store, "answers", run.name)
    undone = [i for part, ids in run.parts.items() if part not in here for i in ids]
    done = {keys.get(k) for k in staged(store, "answers", run.name, here, "key")}
    return [*undone, *(i for i in missing if i not in done and i not in set(undone))]


class Chunks:
    """How many chunks each source has in a table of passages, read once."""

    def __init__(self, store: Store, table: str, without: set[str]) -> None:
        self.longest = 0  # characters of the longest passage
        found = [pa.table({"source": pa.array([], pa.string()), "chunks": pa.array([], pa.int64())})]
        for batch in store.batches(table, SPANS, 1 << 20) if store.has(table) else ():
            real = batch.filter(pc.greater(batch["end"], batch["start"]))
            if not real.num_rows:
                continue
            counts = pc.value_counts(real["source"])
            found.append(pa.table({"source": counts.field("values"), "chunks": counts.field("counts")}))
            length = pc.max(pc.subtract(real["parent_end"], real["parent_start"])).as_py()
            self.longest = max(self.longest, length)
        rows = pa.concat_tables(found).group_by("source").aggregate([("chunks", "sum")])
        if without:
            rows = rows.filter(pc.invert(pc.is_in(rows["source"], pa.array(sorted(without), pa.string()))))
        self._rows, self._at = rows, rows_id(store.dataset(table)) if len(rows) else ""

    @functools.cached_property
    def _counts(self) -> dict[str, int]:
        return dict(zip(*(self._rows[c].to_pylist() for c in ("source", "chunks_sum")), strict=True))

    def of(self, source: str) -> int:
        return self._counts.get(source, 0)

    def having(self, sources: Sequence[str]) -> Sequence[str]:
        """Those of some sources that have chunks."""
        if isinstance(sources, SourceIds):
            return sources.among(self._rows["source"], self._at)
        return [s for s in sources if self.of(s)]

    def total(self, sources: Sequence[str]) -> int:
        """Chunks of some sources, each of them once."""
        if isinstance(sources, SourceIds):
            mine = pc.is_in(self._rows["source"], sources.ids)
            return int(pc.sum(self._rows["chunks_sum"].filter(mine)).as_py() or 0)
        return sum(map(self.of, sources))


class StoredAnswers:
    """Which of some questions have a stored answer by which recipe, from the evidence they have now."""

    def __init__(self, store: Store, evidence: Mapping[str, tuple[str, str]]) -> None:
        """`evidence`: question id -> its row key, and what is absent (`AnswerSources`)."""
        self._store, self._evidence = store, evidence
        self._found: dict[str, tuple[set[str], set[str]]] = {}

    def by(self, recipe: str, any_fault: bool = False) -> set[str]:
        """Ids of those answered; unless `any_fault`, without a fault that kept a stage from its row, and
        without a reply that broke, since such a one may not be cached."""
        if recipe not in self._found:
            keys = {answer_key(recipe, id, *of): id for id, of in self._evidence.items()}
            table = rows(self._store.dataset("answers"), "key", list(keys), ["key", "faults", "replies"])
            fine = table.filter(pc.equal(pc.list_value_length(table["faults"]), 0))
            fine = fine.filter(pc.invert(_broken(fine["replies"])))
            found = [{keys[k] for k in t["key"].to_pylist()} for t in (table, fine)]
            self._found[recipe] = (found[0], found[1])
        return self._found[recipe][0 if any_fault else 1]


def _broken(replies: pa.ChunkedArray) -> pa.Array:
    """(rows,) bool: which rows of a column of replies have one whose label is fault."""
    column = pa.concat_arrays(replies.chunks) if replies.num_chunks else pa.array([], replies.type)
    broke = pc.equal(pc.struct_field(column.items, "label"), FAULT).to_numpy(zero_copy_only=False)
    before = np.concatenate([[0], np.cumsum(broke)])
    offsets = column.offsets.to_numpy()
    return pa.array(before[offsets[1:]] > before[offsets[:-1]])
