"""Operators, which compute the rows of a part (the rows of one task), and a sink, which stores them.

An operator is a record, which any process can receive. Its `open` loads models and tables and returns a
function that computes one block after another. A task's work is a list of operators and a sink. On Ray each
operator may run in its own processes (`runs.cluster.graph`); `in_turn` runs all of them in one process. A
batch that raises is split until the failing rows are found. If the rows are not proven to blame, their task
is handed back: returned unfinished. Does not depend on Ray. Between operators a block is an Arrow table:

    part             string: name of the part; all rows of a block are of one part
    note             string: a `Note` as JSON on the first row, else null
    source, or id    key of the row: a source's digest, or a question's id

The operators add the other columns: `corpus_operators` and `answer_operators` list them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from raypipe.core.arrow import DIGEST, id_column, id_texts
from raypipe.core.errors import Unavailable, WorkerBroken
from raypipe.core.protocols import CorpusStep, Step
from raypipe.models.kit import LocalKit, compute_once
from raypipe.recipes.executor import StageCounters
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import asked_models
from raypipe.runs.pipeline.counters import summed
from raypipe.runs.pipeline.dead_letters import Compute, Failed, Suspects, Unproven, bisected, faults_table
from raypipe.runs.pipeline.tasks import HandedBack, RunTask, Share, Task, TaskResult, WorkerConfig
from raypipe.store import write_part

Key: TypeAlias = Literal["source", "id"]

SKIPPED = "skipped"  # `Note.ended` of a part that was not begun, since the run was about to end


@dataclass(frozen=True, slots=True)
class Note:
    """State of a part, which operators pass on with its rows."""

    ids: int  # rows of the task
    by: Mapping[str, Share] = field(default_factory=dict)  # pool -> work of its operators so far
    suspects: Suspects | None = None  # rows that may be to blame for a hand-back; None: not handed back yet
    trial: bool = False  # True: tests whether the rows can be computed; caches model replies, stores no rows
    back: HandedBack | None = None  # set by an operator that hands the part back: later operators skip it
    ended: str = ""  # reason why later operators skip the part: SKIPPED, or an error as JSON
    failed: tuple[Failed, ...] = ()  # rows of the part that failed so far

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
    """Rows of a part, and its note."""

    part: str
    note: Note
    key: Key
    rows: pa.Table  # the key column, and the columns of the last operator

    @classmethod
    def of_task(cls, task: Task, key: Key) -> PartRows:
        """Makes the first block of a task, which must have its ids (`Task.with_ids`)."""
        failed = tuple((i, asdict(x.fault), x.attempts, "") for i, x in task.failed.items())
        left = (i for i in task.ids if i not in task.failed)
        ids = id_column(left, DIGEST if key == "source" else pa.string())
        note = Note(len(task.ids), suspects=task.suspects, trial=task.trial, failed=failed)
        return cls(task.name, note, key, pa.table({key: ids}))

    @classmethod
    def of(cls, table: pa.Table) -> PartRows:
        part, note = table["part"][0].as_py(), NOTE.validate_json(table["note"][0].as_py())
        key: Key = "source" if "source" in table.column_names else "id"
        return cls(part, note, key, table.filter(pc.is_valid(table[key])).drop(["part", "note"]))

    def table(self) -> pa.Table:
        """Returns the block as an Arrow table. If it has no rows, a row with a null key carries the note."""
        rows = self.rows if self.rows.num_rows else pa.Table.from_pylist([{}], schema=self.rows.schema)
        notes = [self.note.text(), *[None] * (rows.num_rows - 1)]
        head = [pa.array([self.part] * rows.num_rows), pa.array(notes, pa.string())]
        return pa.table([*head, *rows.columns], names=["part", "note", *rows.column_names])

    @property
    def ids(self) -> tuple[str, ...]:
        """Distinct keys of the rows, in order."""
        return tuple(id_texts(pc.unique(self.rows[self.key])))

    def with_earlier_cost(self, back: HandedBack) -> HandedBack:
        """Adds the cost of the earlier operators (calls and seconds, no rows) to a handed-back task."""
        cost = summed(*(share.counts for share in self.note.by.values()))
        for count in cost.values():
            count.in_vain(StageCounters())
        return replace(back, counts=summed(cost, back.counts))

    def over(self, back: HandedBack | None = None, ended: str = "") -> PartRows:
        """Returns this block without its rows, so that later operators skip it. Its note tells why: `back` is
        the task handed back, or `ended` is the reason."""
        note = replace(self.note, back=back and self.with_earlier_cost(back), ended=ended, failed=())
        return replace(self, note=note, rows=self.rows.slice(0, 0))


def retried(worker: WorkerConfig, do: Callable[[Task], tuple[int, int]], process: str = "") -> RunTask:
    """Returns a function that runs a task by `do`, which returns the numbers of rows and of faults. If the
    store is still unavailable after TRIES tries, the function hands the task back."""

    async def run_task(task: Task) -> TaskResult | HandedBack:
        start = time.perf_counter()
        try:
            rows, faults = await worker.tried(lambda: do(task))
        except Unavailable as e:
            return handed_back(task.name, e)
        share = Share({}, time.perf_counter() - start, process)
        return TaskResult(task.name, task.rows, rows, faults, {"parse": share})

    return run_task


def handed_back(
    part: str, e: Unavailable, counts: Mapping[str, StageCounters] | None = None, witnessed: bool = False
) -> HandedBack:
    """Makes the hand-back of a task for the error `e`. Unproven keeps the worker, since rows may be to blame.
    Another WorkerBroken replaces the worker. Any other error stops the run. `counts` has the cost of the
    attempt, by stage. `witnessed` True: rows of other tasks passed on the worker."""
    counts = counts or {}
    for count in counts.values():  # the next worker counts the rows
        count.in_vain(StageCounters())
    if isinstance(e, Unproven):
        return HandedBack(part, str(e), "keep", Suspects(e.rows, witnessed), counts)
    then: Literal["replace", "stop"] = "replace" if isinstance(e, WorkerBroken) else "stop"
    return HandedBack(part, str(e), then, Suspects(witnessed=witnessed), counts)


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


@dataclass(frozen=True, slots=True)
class BlockWork:
    """Work of an operator on one block."""

    compute: Compute
    digest_of: Callable[[str, str], str]
    """(id of a failed row, stage of its fault) -> the table, or the key of the answer, that lacks the row."""
    keep: Callable[[pa.Table], pa.Table] = lambda rows: rows
    """Stores computed rows, and returns the rows for the next operator. Called again while the store is
    unavailable, and never for a trial."""


def block_function(
    pool: str,
    worker: WorkerConfig,
    recipe: Recipe,
    kit: LocalKit,
    counts: dict[str, StageCounters],
    begin: Callable[[PartRows], BlockWork],
) -> Operate:
    """Returns the function that computes blocks in this process, for an operator of `pool`. `begin` returns
    the work on a block, which counts in `counts` (stage -> counters)."""
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
                work = begin(block)
                witnessed = passed > 0 or trial
                done, broken = await bisected(work.compute, ids, counts, check, backoff, suspects, witnessed)
                lost = [(id, fault, 1, "") for _, some in done for id, fault in some]
                lost += [(id, asdict(x.fault), x.attempts, "") for id, x in broken.items()]
                failed = tuple(  # the digest is "" for rows of `lost`, and for those that came with the task
                    (id, fault, n, of or work.digest_of(id, fault["step"]))
                    for id, fault, n, of in (*block.note.failed, *lost)
                )
                made = pa.concat_tables([rows for rows, _ in done], promote_options="default")
                rows = made if trial else await worker.tried(lambda: work.keep(made))
            except Unavailable as e:
                return block.over(handed_back(block.part, e, taken(), passed > 0))
            passed += len(ids) - len(lost)
            share = Share(taken(), kit.spent() - start, kit.process)
        note = replace(block.note.with_share(pool, share), failed=failed)
        return replace(block, note=note, rows=rows)

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


async def sink_function(
    worker: WorkerConfig,
    run: str,
    pool: str,
    process: str,
    tables: Callable[[pa.Table], Iterable[tuple[str, pa.Table]]],
) -> Sink:
    """Returns a sink: a function that stores a block and returns its part's outcome. It stores faults, then
    the rows of each table that `tables` makes of the block's rows. It stores nothing of a trial. Tries again
    while the store is unavailable."""
    store = await worker.open_store()

    async def write(block: PartRows) -> Outcome:
        if block.note.back is not None:
            return block.note.back
        start = time.perf_counter()

        def written() -> TaskResult:
            part, trial = block.part, block.note.trial
            note = block.note.with_share(pool, Share({}, time.perf_counter() - start, process))
            rows = 0 if trial else block.rows.num_rows
            result = TaskResult(part, note.ids, rows, len(note.failed), note.by)
            if not trial:
                write_part(store, "faults", run, part, faults_table(note.failed, run), {})
                for table, some in tables(block.rows):
                    write_part(store, table, run, part, some, result.facts())
            return result

        try:
            return await worker.tried(written)
        except Unavailable as e:
            return block.with_earlier_cost(handed_back(block.part, e))

    return write


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
