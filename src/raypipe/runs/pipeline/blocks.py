"""The rows of a part between two operators: Arrow columns, and the note on its first row.

    part                        string: the part, one completion record; a block has the rows of one part
    note                        string: null but on the first row; what `Note` says, as JSON
    source, or id               string: the key of a row: a source of the corpus half, or a question
    fault, attempts, digest     of a row that failed and has nothing else: the fault, how often it was tried,
                                and the table or answer that it failed for

The other columns are those of the operators: `corpus_operators` and `answer_operators` list them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.arrow import FAULT
from raypipe.recipes.executor import StageCounters
from raypipe.runs.pipeline.dead_letters import Failed, Suspects
from raypipe.runs.pipeline.tasks import HandedBack, Task, TaskResult

Key: TypeAlias = Literal["source", "id"]

SKIPPED = "skipped"  # a part that was not begun: the run was to end

_HEAD = {"part": pa.string(), "note": pa.string()}
_TAIL = {"fault": FAULT, "attempts": pa.int64(), "digest": pa.string()}


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one pool in a part."""

    counts: Mapping[str, StageCounters]  # by stage
    seconds: float
    worker: str = ""  # node, process and GPUs; "": this process


@dataclass(frozen=True, slots=True)
class Note:
    """Facts of a part on its way through the operators."""

    ids: int  # rows of the task
    by: Mapping[str, Share] = field(default_factory=dict)  # pool -> what its operators did
    suspects: Suspects | None = None  # what a worker knows that could not do the part; None: no worker had it
    trial: bool = False  # True: only to see whether it can be done; nothing is stored but what models said
    back: HandedBack | None = None  # an operator could not do it: those behind it do nothing
    ended: str = ""  # why those behind do nothing: SKIPPED, or an error as JSON

    @property
    def over(self) -> bool:
        return bool(self.ended) or self.back is not None

    def with_share(self, pool: str, counts: Mapping[str, StageCounters], seconds: float, worker: str) -> Note:
        """With what an operator of a pool did, or the sink for it."""
        before = self.by.get(pool, Share({}, 0.0, worker))
        after = Share(summed(before.counts, counts), before.seconds + seconds, before.worker)
        return replace(self, by={**self.by, pool: after})

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Note:
        tree = json.loads(text)
        by = {pool: share_of(share) for pool, share in tree["by"].items()}
        known = tree["suspects"] and _suspects(tree["suspects"])
        back = tree["back"] and back_of(tree["back"])
        return cls(tree["ids"], by, known, tree["trial"], back, tree["ended"])


@dataclass(frozen=True, slots=True)
class PartRows:
    """The rows of a part, and those that failed."""

    part: str
    note: Note
    key: Key
    rows: pa.Table  # the key, and the columns of the last operator
    failed: Sequence[Failed] = ()

    @classmethod
    def of_task(cls, task: Task, key: Key) -> PartRows:
        """A task that has its ids (`Task.with_ids`)."""
        lost = [(i, asdict(x.fault), x.attempts, "") for i, x in task.failed.items()]
        ids = pa.array([i for i in task.ids if i not in task.failed], pa.string())
        note = Note(len(task.ids), suspects=task.suspects, trial=task.trial)
        return cls(task.name, note, key, pa.table({key: ids}), lost)

    @classmethod
    def of(cls, table: pa.Table) -> PartRows:
        part, note = table["part"][0].as_py(), Note.of(table["note"][0].as_py())
        key: Key = "source" if "source" in table.column_names else "id"
        table, lost = table.filter(pc.is_valid(table[key])), list[Failed]()
        if "digest" in table.column_names:
            for row in table.filter(pc.is_valid(table["digest"])).to_pylist():
                lost.append((row[key], row["fault"], row["attempts"], row["digest"]))
            table = table.filter(pc.is_null(table["digest"]))
        names = [n for n in table.column_names if n not in _HEAD and n not in _TAIL]
        return cls(part, note, key, table.select(names), lost)

    def table(self) -> pa.Table:
        """All of it as rows, of which a part has one at least: with a null key if there is no other."""
        rows = self.rows
        if self.failed:
            ids, faults, attempts, digests = zip(*self.failed, strict=True)
            columns = [pa.array(ids, pa.string())]
            columns += [
                pa.array(c, t) for c, t in zip((faults, attempts, digests), _TAIL.values(), strict=True)
            ]
            lost = pa.table(columns, names=[self.key, *_TAIL])
            rows = pa.concat_tables([rows, lost], promote_options="default")
        if not rows.num_rows:
            rows = pa.Table.from_pylist([{}], schema=rows.schema)
        head = [pa.array([self.part] * rows.num_rows), pa.array([self.note.text()], pa.string())]
        head[1] = pa.concat_arrays([head[1], pa.nulls(rows.num_rows - 1, pa.string())])
        return pa.table([*head, *rows.columns], names=[*_HEAD, *rows.column_names])

    @property
    def ids(self) -> tuple[str, ...]:
        """The keys of its rows, each once, in order."""
        return tuple(pc.unique(self.rows[self.key]).to_pylist())

    def vain(self, back: HandedBack) -> HandedBack:
        """With what the operators before it spent in vain."""
        cost = summed(*(share.counts for share in self.note.by.values()))
        for count in cost.values():
            count.in_vain(StageCounters())
        return replace(back, counts=summed(cost, back.counts))

    def handed_back(self, back: HandedBack) -> PartRows:
        return self._over(replace(self.note, back=self.vain(back)))

    def ended(self, why: str) -> PartRows:
        return self._over(replace(self.note, ended=why))

    def _over(self, note: Note) -> PartRows:
        return replace(self, note=note, rows=self.rows.slice(0, 0), failed=())


def summed(*counted: Mapping[str, StageCounters]) -> dict[str, StageCounters]:
    """Counts by stage, added up."""
    out: dict[str, StageCounters] = {}
    for counts in counted:
        for name, count in counts.items():
            out.setdefault(name, StageCounters()).add(count)
    return out


def share_of(tree: Mapping[str, Any]) -> Share:
    return Share(_counts(tree["counts"]), tree["seconds"], tree["worker"])


def back_of(tree: Mapping[str, Any]) -> HandedBack:
    return HandedBack(
        tree["name"], tree["reason"], tree["then"], _suspects(tree["suspects"]), _counts(tree["counts"])
    )


def facts_of(by: Mapping[str, Share], ids: int, rows: int, faults: int) -> dict[str, Any]:
    """What a completion record says of a part; `tasks.stage_counts` and `result_of` read it."""
    counts = {name: asdict(count) for name, count in summed(*(s.counts for s in by.values())).items()}
    shares = {pool: asdict(share) for pool, share in by.items()}
    return {"counts": counts, "by": shares, "ids": ids, "rows": rows, "faults": faults}


def result_of(part: str, facts: Mapping[str, Any]) -> TaskResult:
    """What came of a part, from the facts of its completion record."""
    *before, (_, last) = [(pool, share_of(share)) for pool, share in facts["by"].items()]
    first = None
    for _, share in before:
        first = TaskResult(part, facts["ids"], 0, 0, share.counts, share.worker, share.seconds)
    return TaskResult(
        part, facts["ids"], facts["rows"], facts["faults"], last.counts, last.worker, last.seconds, first
    )


def outcome_text(outcome: TaskResult | HandedBack) -> str:
    """What came of a part, as JSON."""
    return json.dumps({"result" if isinstance(outcome, TaskResult) else "back": asdict(outcome)})


def ended_text(why: str) -> str:
    """The same of a part that did not come to its end (`Note.ended`)."""
    return json.dumps({"ended": why})


def outcome_of(text: str) -> TaskResult | HandedBack | str:
    """What `outcome_text` or `ended_text` made a text of."""
    [(kind, tree)] = json.loads(text).items()
    return tree if kind == "ended" else back_of(tree) if kind == "back" else _result(tree)


def _result(tree: Mapping[str, Any]) -> TaskResult:
    before = tree["before"] and _result(tree["before"])
    return TaskResult(**{**tree, "counts": _counts(tree["counts"]), "before": before})


def _counts(tree: Mapping[str, Any]) -> dict[str, StageCounters]:
    return {name: StageCounters.of(count) for name, count in tree.items()}


def _suspects(tree: Mapping[str, Any]) -> Suspects:
    return Suspects(tuple(tree["rows"]), tree["witnessed"])
