"""Operators, which compute the rows of a part (the rows of one task), and a sink, which stores them.

An operator is a record, which any process can receive. Its `open` loads models and tables and returns a
function that computes one block after another. A task's work is a list of operators and a sink. On Ray each
operator may run in its own processes (`runs.cluster.graph`); `in_turn` runs all of them in one process. A
batch that raises is split until the failing rows are found. If the rows are not proven to blame, their task
is handed back: returned unfinished. Does not depend on Ray. Between operators a block is an Arrow table:

    part                        string: name of the part; all rows of a block are of one part
    note                        string: a `Note` as JSON on the first row, else null
    source, or id               string: key of the row, which is a source, or a question
    fault, attempts, digest     for a failed row, which has no other columns: its fault, the number of
                                attempts, and the table or answer that it failed for

The operators add the other columns: `corpus_operators` and `answer_operators` list them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from raypipe.core.arrow import DIGEST, FAULT, id_column, id_texts, with_id_texts
from raypipe.core.errors import Unavailable, WorkerBroken
from raypipe.core.protocols import CorpusStep, Step
from raypipe.models.kit import LocalKit, compute_once
from raypipe.recipes.executor import StageCounters
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import asked_models
from raypipe.runs.pipeline.dead_letters import Compute, Failed, Suspects, Unproven, bisected
from raypipe.runs.pipeline.tasks import HandedBack, RunTask, Share, Task, TaskResult, WorkerConfig, summed

Key: TypeAlias = Literal["source", "id"]
KEY_TYPES: Mapping[Key, pa.DataType] = {"source": DIGEST, "id": pa.string()}

SKIPPED = "skipped"  # `Note.ended` of a part that was not begun, since the run was about to end

_HEAD = {"part": pa.string(), "note": pa.string()}
_TAIL = {"fault": FAULT, "attempts": pa.int64(), "digest": pa.string()}


@dataclass(frozen=True, slots=True)
class Note:
    """State of a part, which operators pass on with its rows."""

    ids: int  # rows of the task
    by: Mapping[str, Share] = field(default_factory=dict)  # pool -> work of its operators so far
    suspects: Suspects | None = None  # rows that may be to blame for a hand-back; None: not handed back yet
    trial: bool = False  # True: tests whether the rows can be computed; caches model replies, stores no rows
    back: HandedBack | None = None  # set by an operator that hands the part back: later operators skip it
    ended: str = ""  # reason why later operators skip the part: SKIPPED, or an error as JSON

    @property
    def over(self) -> bool:
        return bool(self.ended) or self.back is not None

    def with_share(self, pool: str, more: Share) -> Note:
        """Returns the note with further work added to a pool's share."""
        before = self.by.get(pool, Share({}, 0.0, more.worker))
        counts, seconds = summed(before.counts, more.counts), before.seconds + more.seconds
        return replace(self, by={**self.by, pool: Share(counts, seconds, before.worker)})

    def text(self) -> str:
        return NOTE.dump_json(self).decode()


NOTE = TypeAdapter(Note)


@dataclass(frozen=True, slots=True)
class PartRows:
    """Rows of a part, and its failed rows."""

    part: str
    note: Note
    key: Key
    rows: pa.Table  # the key column, and the columns of the last operator
    failed: Sequence[Failed] = ()

    @classmethod
    def of_task(cls, task: Task, key: Key) -> PartRows:
        """Makes the first block of a task, which must have its ids (`Task.with_ids`)."""
        lost = [(i, asdict(x.fault), x.attempts, "") for i, x in task.failed.items()]
        ids = id_column((i for i in task.ids if i not in task.failed), KEY_TYPES[key])
        note = Note(len(task.ids), suspects=task.suspects, trial=task.trial)
        return cls(task.name, note, key, pa.table({key: ids}), lost)

    @classmethod
    def of(cls, table: pa.Table) -> PartRows:
        part, note = table["part"][0].as_py(), NOTE.validate_json(table["note"][0].as_py())
        key: Key = "source" if "source" in table.column_names else "id"
        table, lost = table.filter(pc.is_valid(table[key])), list[Failed]()
        if "digest" in table.column_names:
            for row in table.filter(pc.is_valid(table["digest"])).to_pylist():
                lost.append((with_id_texts(row[key]), row["fault"], row["attempts"], row["digest"]))
            table = table.filter(pc.is_null(table["digest"]))
        names = [n for n in table.column_names if n not in _HEAD and n not in _TAIL]
        return cls(part, note, key, table.select(names), lost)

    def table(self) -> pa.Table:
        """Returns the block as an Arrow table. If it has no rows, a row with a null key carries the note."""
        rows = self.rows
        if self.failed:
            ids, *others = zip(*self.failed, strict=True)
            columns = [id_column(ids, KEY_TYPES[self.key]), *map(pa.array, others, _TAIL.values())]
            lost = pa.table(columns, names=[self.key, *_TAIL])
            rows = pa.concat_tables([rows, lost], promote_options="default")
        if not rows.num_rows:
            rows = pa.Table.from_pylist([{}], schema=rows.schema)
        more = [None] * (rows.num_rows - 1)
        head = [pa.array([self.part] * rows.num_rows), pa.array([self.note.text(), *more], pa.string())]
        return pa.table([*head, *rows.columns], names=[*_HEAD, *rows.column_names])

    @property
    def ids(self) -> tuple[str, ...]:
        """Distinct keys of the rows, in order."""
        return tuple(id_texts(pc.unique(self.rows[self.key])))

    def vain(self, back: HandedBack) -> HandedBack:
        """Adds the cost of the earlier operators (calls and seconds, no rows) to a handed-back task."""
        cost = summed(*(share.counts for share in self.note.by.values()))
        for count in cost.values():
            count.in_vain(StageCounters())
        return replace(back, counts=summed(cost, back.counts))

    def over(self, back: HandedBack | None = None, ended: str = "") -> PartRows:
        """Returns this block without its rows, so that later operators skip it. Its note tells why: `back` is
        the task handed back, or `ended` is the reason."""
        note = replace(self.note, back=back and self.vain(back), ended=ended)
        return replace(self, note=note, rows=self.rows.slice(0, 0), failed=())


def retried(worker: WorkerConfig, do: Callable[[Task], tuple[int, int]], process: str = "") -> RunTask:
    """Returns a function that runs a task by `do`, which returns the numbers of rows and of faults. If the
    store is still unavailable after TRIES tries, the function hands the task back."""

    async def run_task(task: Task) -> TaskResult | HandedBack:
        start = time.perf_counter()
        try:
            rows, faults = await worker.tried(lambda: do(task))
        except Unavailable as e:
            return unable(task.name, e)
        share = Share({}, time.perf_counter() - start, process)
        return TaskResult(task.name, task.rows, rows, faults, {"parse": share})

    return run_task


def unable(
    part: str,
    e: Unavailable,
    suspects: Suspects | None = None,
    counts: Mapping[str, StageCounters] | None = None,
) -> HandedBack:
    """Makes the hand-back of a task. If `e` is WorkerBroken, the worker is replaced; else the run stops."""
    then: Literal["replace", "stop"] = "replace" if isinstance(e, WorkerBroken) else "stop"
    return HandedBack(part, str(e), then, suspects or Suspects(), counts or {})


def ordered(rows: pa.Table, column: str, ids: tuple[str, ...]) -> pa.Table:
    """Sorts rows into the order of the ids. Ids without a row are left out."""
    place = {id: i for i, id in enumerate(id_texts(rows[column]))}
    return rows.take(pa.array([place[id] for id in ids if id in place], pa.int64()))


Operate: TypeAlias = Callable[[PartRows], Awaitable[PartRows]]
Outcome: TypeAlias = TaskResult | HandedBack
Sink: TypeAlias = Callable[[PartRows], Awaitable[Outcome]]


class Operator(Protocol):
    @property
    def name(self) -> str:
        """Name in Ray's dashboard: parse, split, tokenize, embed, rank, rerank or generate."""

    @property
    def pool(self) -> Literal["parse", "embed", "answer"]:
        """Pool of the cluster file that its processes belong to."""

    @property
    def in_hand(self) -> int:
        """Rows in flight, over all processes of the operator, that keep its engines or services busy. If 0,
        each process computes by itself, one block at a time."""

    async def open(self, kit: LocalKit) -> Operate:
        """Returns a function that computes blocks in turn. Each further block in flight needs another one."""


@runtime_checkable
class StagedWork(Protocol):
    """Work on some tables, as a list of operators and a sink."""

    @property
    def worker(self) -> WorkerConfig: ...

    @property
    def key(self) -> Key: ...

    def operators(self) -> Sequence[Operator]: ...

    async def open_sink(self, process: str) -> Sink: ...


def step(
    operator: Operator,
    worker: WorkerConfig,
    recipe: Recipe,
    kit: LocalKit,
    counts: dict[str, StageCounters],
    compute: Compute,
    digest_of: Callable[[str, str], str],
    take: Callable[[PartRows], None] = lambda block: None,
    keep: Callable[[PartRows, pa.Table], pa.Table] = lambda block, rows: rows,
) -> Operate:
    """Returns the function that computes blocks for an operator in this process.

    `compute` computes rows, and counts in `counts` (stage -> counters). `digest_of` takes the id of a failed
    row and the stage of its fault. It returns the table or the key of the answer that lacks the row, for the
    table `faults`. `take` gets each block before its rows are computed. `keep` stores computed rows and
    returns the rows for the next operator; it is called again while the store is unavailable."""
    steps = {s.name: s.step for s in (*recipe.corpus, *recipe.question)}
    passed = 0  # rows that passed in this process so far

    async def probe(stage: str) -> None:
        await _probe(kit, steps[stage], counts[stage])

    def taken() -> dict[str, StageCounters]:
        return {name: count.take() for name, count in counts.items()}

    async def operate(block: PartRows) -> PartRows:
        nonlocal passed
        if block.note.over:
            return block
        ids, trial, suspects = block.ids, block.note.trial, block.note.suspects
        # A row of a trial is judged together with the other rows of its task, so without a probe.
        check = None if trial else probe
        with kit.spent.piece():
            start, backoff = kit.spent(), worker.backoff()
            try:
                take(block)
                witnessed = passed > 0 or trial
                done, broken = await bisected(compute, ids, counts, check, backoff, suspects, witnessed)
                failed = [(id, fault, 1) for _, some in done for id, fault in some]
                failed += [(id, asdict(x.fault), x.attempts) for id, x in broken.items()]
                lost = [(id, fault, n, digest_of(id, fault["step"])) for id, fault, n in failed]
                made = pa.concat_tables([rows for rows, _ in done], promote_options="default")
                rows = made if trial else await worker.tried(lambda: keep(block, made))
            except Unavailable as e:
                return block.over(_back(block.part, e, taken(), passed > 0))
            passed += len(ids) - len(lost)
            share = Share(taken(), kit.spent() - start, kit.process)
        note = block.note.with_share(operator.pool, share)
        return replace(block, note=note, rows=rows, failed=[*block.failed, *lost])

    return operate


async def _probe(kit: LocalKit, step: Step | CorpusStep, count: StageCounters) -> None:
    """Sends one small request to each model of a step, without the memo. Counts each request as a call.
    Raises WorkerBroken if a model fails."""
    calls = count.calls
    by_kind = {"embedder": calls.vectors, "reranker": calls.scores, "generator": calls.replies}
    for model in asked_models(step):
        by_kind[model.kind].computed += 1
        try:
            await compute_once(kit, model)
        except Exception as e:
            why = f"model {model.name!r} fails on this worker even for a small request: {e}"
            raise WorkerBroken(why) from e


def _back(part: str, e: Unavailable, counts: Mapping[str, StageCounters], witnessed: bool) -> HandedBack:
    """Makes the hand-back of a task for the error `e`. `witnessed` True: rows of other tasks passed here."""
    for count in counts.values():  # the next worker counts the rows
        count.in_vain(StageCounters())
    if isinstance(e, Unproven):
        return HandedBack(part, str(e), "keep", Suspects(e.rows, witnessed), counts)
    return unable(part, e, Suspects(witnessed=witnessed), counts)


def storing(
    worker: WorkerConfig, pool: str, process: str, write: Callable[[PartRows, Mapping[str, Any]], None]
) -> Sink:
    """Returns a sink: a function that stores a block and returns its part's outcome. `write` stores rows,
    faults and counts of a part. It is called again while the store is unavailable, and never for a trial."""

    async def store(block: PartRows) -> Outcome:
        if block.note.back is not None:
            return block.note.back
        start = time.perf_counter()

        def stored() -> TaskResult:
            note = block.note.with_share(pool, Share({}, time.perf_counter() - start, process))
            rows = 0 if note.trial else block.rows.num_rows
            result = TaskResult(block.part, note.ids, rows, len(block.failed), note.by)
            if not note.trial:
                write(block, result.facts())
            return result

        try:
            return await worker.tried(stored)
        except Unavailable as e:
            return block.vain(unable(block.part, e))

    return store


async def in_turn(
    work: StagedWork, kit: LocalKit | None, operators: Sequence[Operator] | None = None
) -> RunTask:
    """Returns a function that runs a task in this process, by `operators`; None: all those of the work."""
    kit, worker = kit or work.worker.kit(None), work.worker
    store = await worker.open_store()
    steps = [await operator.open(kit) for operator in operators or work.operators()]
    sink = await work.open_sink(kit.process)

    async def run_task(task: Task) -> Outcome:
        block = PartRows.of_task(await worker.tried(lambda: task.with_ids(store)), work.key)
        for operate in steps:
            block = await operate(block)
        return await sink(block)

    return run_task
