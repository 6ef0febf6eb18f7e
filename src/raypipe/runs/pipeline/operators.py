"""Operators: what one step of the work on a table does with the rows of a part, and a sink that stores them.

An operator is a frozen record that any process can be handed; `open` makes it ready once, then it takes block
after block. Work is some operators and a sink, in their order: on Ray each may have processes of its own
(`runs.cluster.graph`), `in_turn` does them one after the other in one process. A batch that raises is cut
down to the row; trouble that is no row's fault hands the task back. Knows nothing of Ray, nor of which tasks
there are. Between two operators the rows of a part are Arrow columns, with a note on the first row:

    part                        string: the part, one completion record; a block has the rows of one part
    note                        string: null but on the first row; what `Note` says, as JSON
    source, or id               string: the key of a row: a source of the corpus half, or a question
    fault, attempts, digest     of a row that failed and has nothing else: the fault, how often it was tried,
                                and the table or answer that it failed for

The other columns are those of the operators: `corpus_operators` and `answer_operators` list them.
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
from raypipe.models.kit import LocalKit, compute_once
from raypipe.recipes.executor import StageCounters
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import asked_models
from raypipe.runs.pipeline.dead_letters import Compute, Failed, Suspects, Unproven, bisected
from raypipe.runs.pipeline.tasks import HandedBack, RunTask, Share, Task, TaskResult, WorkerConfig, summed

Key: TypeAlias = Literal["source", "id"]
KEY_TYPES: Mapping[Key, pa.DataType] = {"source": DIGEST, "id": pa.string()}

SKIPPED = "skipped"  # a part that was not begun: the run was to end

_HEAD = {"part": pa.string(), "note": pa.string()}
_TAIL = {"fault": FAULT, "attempts": pa.int64(), "digest": pa.string()}


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

    def with_share(self, pool: str, more: Share) -> Note:
        """With what an operator of a pool did, or the sink for it."""
        before = self.by.get(pool, Share({}, 0.0, more.worker))
        counts, seconds = summed(before.counts, more.counts), before.seconds + more.seconds
        return replace(self, by={**self.by, pool: Share(counts, seconds, before.worker)})

    def text(self) -> str:
        return NOTE.dump_json(self).decode()


NOTE = TypeAdapter(Note)


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
        """All of it as rows, of which a part has one at least: with a null key if there is no other."""
        rows = self.rows
        if self.failed:
            ids, faults, attempts, digests = zip(*self.failed, strict=True)
            columns = [id_column(ids, KEY_TYPES[self.key])]
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
        return tuple(id_texts(pc.unique(self.rows[self.key])))

    def vain(self, back: HandedBack) -> HandedBack:
        """With what the operators before it spent in vain."""
        cost = summed(*(share.counts for share in self.note.by.values()))
        for count in cost.values():
            count.in_vain(StageCounters())
        return replace(back, counts=summed(cost, back.counts))

    def over(self, back: HandedBack | None = None, ended: str = "") -> PartRows:
        """Without rows: those behind do nothing (`Note`)."""
        note = replace(self.note, back=back and self.vain(back), ended=ended)
        return replace(self, note=note, rows=self.rows.slice(0, 0), failed=())


def retried(worker: WorkerConfig, do: Callable[[Task], tuple[int, int]], process: str = "") -> RunTask:
    """Does a task that calls no model, again where the store is unavailable. `do` returns rows and faults."""

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
    """A task that comes back: what is broken is the worker, or the run is to stop."""
    then: Literal["replace", "stop"] = "replace" if isinstance(e, WorkerBroken) else "stop"
    return HandedBack(part, str(e), then, suspects or Suspects(), counts or {})


def in_order(rows: pa.Table, column: str, ids: tuple[str, ...]) -> pa.Table:
    """The rows in the order of the ids; ids without a row have none."""
    place = {id: i for i, id in enumerate(id_texts(rows[column]))}
    return rows.take(pa.array([place[id] for id in ids if id in place], pa.int64()))


Operate: TypeAlias = Callable[[PartRows], Awaitable[PartRows]]
Outcome: TypeAlias = TaskResult | HandedBack
Sink: TypeAlias = Callable[[PartRows], Awaitable[Outcome]]


class Operator(Protocol):
    @property
    def name(self) -> str:
        """The verb that Ray's dashboard shows: parse, split, tokenize, embed, rank, rerank, generate."""
        ...

    @property
    def pool(self) -> Literal["parse", "embed", "answer"]:
        """The pool of the cluster file whose needs it has."""
        ...

    @property
    def in_hand(self) -> int:
        """Rows that its processes have in hand at a time, so that others that compute for it are kept busy;
        0: it computes itself, one block at a time in a process."""
        ...

    async def open(self, kit: LocalKit) -> Operate:
        """Returns what does one block at a time. Opened again for each further one that is in hand."""
        ...


@runtime_checkable
class StagedWork(Protocol):
    """The work on some tables in several operators."""

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
    """The work of an operator over blocks, opened in one process. `counts`: by stage; they grow while it
    computes. `digest_of`: id of a row, step of its fault -> what names the work, in `faults`. `take` gets a
    block before its rows are computed; `keep` stores what was made of them, again where the store is
    unavailable, and returns what goes on."""
    steps = {s.name: s.step for s in (*recipe.corpus, *recipe.question)}
    passed = 0  # rows that passed in this process

    async def probe(stage: str) -> None:
        """Sends one small request to each model of a stage, counted like any other, past the memo."""
        for model in asked_models(steps[stage]):
            calls = counts[stage].calls
            by_kind = {"embedder": calls.vectors, "reranker": calls.scores, "generator": calls.replies}
            by_kind[model.kind].computed += 1
            try:
                await compute_once(kit, model)
            except Exception as e:
                raise WorkerBroken(f"model {model.name!r} computes nothing here any more: {e}") from e

    async def unprobed(stage: str) -> None:
        """A row that is tried alone is judged with the others of its task."""

    def taken() -> dict[str, StageCounters]:
        return {name: count.take() for name, count in counts.items()}

    async def operate(block: PartRows) -> PartRows:
        nonlocal passed
        if block.note.over:
            return block
        ids, trial, suspects = block.ids, block.note.trial, block.note.suspects
        with kit.spent.piece():
            start, backoff = kit.spent(), worker.backoff()
            try:
                take(block)
                done, broken = await bisected(
                    compute, ids, counts, unprobed if trial else probe, backoff, suspects, passed > 0 or trial
                )
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


def _back(part: str, e: Unavailable, counts: Mapping[str, StageCounters], witnessed: bool) -> HandedBack:
    """A task that comes back through no fault of its rows. `witnessed`: others passed here."""
    for count in counts.values():  # another worker counts the rows
        count.in_vain(StageCounters())
    if isinstance(e, Unproven):
        return HandedBack(part, str(e), "keep", Suspects(e.rows, witnessed), counts)
    return unable(part, e, Suspects(witnessed=witnessed), counts)


def storing(
    worker: WorkerConfig, pool: str, process: str, write: Callable[[PartRows, Mapping[str, Any]], None]
) -> Sink:
    """Returns what stores a block and says what came of its part. `write` stores rows and faults under the
    facts of their completion record; again where the store is unavailable."""

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
    """The operators of some work and its sink, one after the other in this process. `operators` None: its
    own."""
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
