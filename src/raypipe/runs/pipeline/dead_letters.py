"""Failed rows: `bisected` finds them in a batch that raises, and decides whether they are to blame.

A row passes if it is computed without a raise and without a transient fault. A row that raises is blamed only
if another row passed on the worker, and if a probe (a small request) shows that the models of the stage that
raised still compute there. A row that raises for lack of memory becomes pending. If all rows of a task of
several rows fail, none is blamed, and another worker gets the task. `runs.cluster.running` finds rows that
kill their worker; `evaluation.fault_budget` decides whether too many rows failed.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pyarrow as pa

from raypipe.core.arrow import id_texts
from raypipe.core.backoff import Backoff, until_available
from raypipe.core.errors import OutOfMemory, RaypipeError, WorkerBroken
from raypipe.core.records import Fault
from raypipe.recipes.executor import StageCounters, StageError
from raypipe.store.tables import FAULTS

FailedRows: TypeAlias = list[tuple[str, dict[str, Any]]]
"""Failed rows: (id, fault as a dictionary of its fields)."""

Failed: TypeAlias = tuple[str, dict[str, Any], int, str]
"""A row of the table `faults`: (id, fault, attempts, digest of the table or answer that it failed in)."""

Computed: TypeAlias = tuple[pa.Table, FailedRows]
"""Rows for the table, and failed rows."""

Compute: TypeAlias = Callable[[tuple[str, ...]], Awaitable[Computed]]
"""Ids -> rows for the table, and failed rows. By the law of batches, a split of the ids changes nothing."""

Probe: TypeAlias = Callable[[str], Awaitable[None]]
"""Calls the models of a stage in this process. Raises WorkerBroken if one of them does not compute."""


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row that raised an exception or ended the worker that computed it."""

    fault: Fault
    attempts: int


class Unproven(WorkerBroken):
    """Error if no row passed after rows that raised: either the rows or the worker may be to blame."""

    def __init__(self, message: str, rows: tuple[str, ...]) -> None:
        super().__init__(message, rows)
        self.rows = rows

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Suspects:
    """Rows that may be to blame for a task's failure, as the worker that handed the task back found."""

    rows: tuple[str, ...] = ()  # ids that raised there, and after which none passed; to be tried first
    witnessed: bool = False  # True: rows of other tasks had passed on that worker before


@dataclass(slots=True)
class _Tried:
    """Results so far of the rows of one task."""

    done: list[Computed] = field(default_factory=list)
    broken: dict[str, FailedRow] = field(default_factory=dict)  # id -> row that raised alone
    stages: set[str] = field(default_factory=set)  # stages that raised, except for lack of memory
    passed: int = 0  # rows that did not raise and have no transient fault
    since: list[str] = field(default_factory=list)  # ids that raised alone after the last row that passed


async def bisected(
    compute: Compute,
    ids: tuple[str, ...],
    counts: Mapping[str, StageCounters],
    probe: Probe | None,
    backoff: Backoff,
    suspects: Suspects | None,
    witnessed: bool,
) -> tuple[list[Computed], dict[str, FailedRow]]:
    """Computes all ids and isolates the rows that raise. Returns the results, and these rows by id.

    A batch of n ids that raises is split into batches of sqrt(n) ids. If one of these raises, it is split
    into single rows. So a row is alone in its third attempt at the latest; a row that raises alone is
    isolated. `probe` calls the models of a stage; None: no model is called. `witnessed` True: rows of other
    tasks passed on this worker before. `suspects` are from the worker that handed the task back; None: no
    worker did.

    Raises WorkerBroken if the rows are not proven to blame, and any RaypipeError, because no row causes one.
    Unavailable stores and services are tried again after the waits of `backoff`."""
    tried = _Tried()
    first = tuple(i for i in suspects.rows if i in ids) if suspects else ()
    waiting: list[tuple[tuple[str, ...], int]] = [((i,), 3) for i in first]
    if rest := tuple(i for i in ids if i not in first):
        waiting.append((rest, 1))
    while waiting:
        some, attempt = waiting.pop(0)
        try:
            tried_now = functools.partial(_counted, compute, some, counts)
            made: Computed = await until_available(tried_now, backoff)
        except RaypipeError:
            raise
        except Exception as e:
            if len(some) > 1:
                size = math.isqrt(len(some)) if attempt == 1 else 1
                cut = [(some[at : at + size], attempt + 1) for at in range(0, len(some), size)]
                waiting = cut + waiting  # tried next, so that other rows pass or fail after those that raised
                continue
            stage = e.stage if isinstance(e, StageError) else next(iter(counts))
            cause = e.__cause__ if isinstance(e, StageError) and e.__cause__ else e
            counts[stage].faults += 1
            memory = isinstance(cause, MemoryError | OutOfMemory)  # another process may be the cause: pending
            if not memory:
                tried.stages.add(stage)
            detail = f"expected a result, the stage raised {type(cause).__name__}: {cause}"
            fault = Fault(stage, "memory" if memory else "raised", detail, transient=memory)
            tried.broken[some[0]] = FailedRow(fault, attempt)
            tried.since.append(some[0])
        else:
            tried.done.append(made)
            passing = len(some) - sum(fault["transient"] for _, fault in made[1])
            if passing:
                tried.passed += passing
                tried.since.clear()
    if tried.broken:
        await _judge(tried, len(ids), probe, suspects, witnessed)
    if not tried.done:
        tried.done.append(await compute(()))
    return tried.done, tried.broken


async def _counted(compute: Compute, ids: tuple[str, ...], counts: Mapping[str, StageCounters]) -> Computed:
    """Computes the ids. If that raises, rolls back the row counts; computed calls and seconds remain."""
    before = copy.deepcopy(dict(counts))
    try:
        return await compute(ids)
    except Exception:
        for name, count in counts.items():
            count.in_vain(before[name])
        raise


async def _judge(
    tried: _Tried, rows: int, probe: Probe | None, suspects: Suspects | None, witnessed: bool
) -> None:
    """Raises WorkerBroken or Unproven unless the rows that raised are proven to blame. A task's only row
    becomes pending if it raised on two workers and no other row had passed on either worker."""
    why = next(iter(tried.broken.values())).fault
    reason = f"{why.step}: {why.detail}"
    if not tried.passed and rows > 1:
        raise WorkerBroken(f"all {rows} rows of a task fail, so no row is blamed; the first: {reason}")
    if not tried.passed and not witnessed and not (suspects and suspects.witnessed):
        if suspects is None:
            raise Unproven(f"the only row of a task fails: {reason}", tuple(tried.broken))
        for id, row in tried.broken.items():
            detail = f"{row.fault.detail}; its task has no other row, so the worker may be to blame"
            tried.broken[id] = replace(row, fault=replace(row.fault, detail=detail, transient=True))
        return
    if len(tried.since) > 1 and suspects is None:
        raise Unproven(f"the last {len(tried.since)} rows of a task all fail: {reason}", tuple(tried.since))
    for stage in sorted(tried.stages):
        if probe is not None:
            await probe(stage)


def failed_rows(table: pa.Table) -> FailedRows:
    """Returns the first fault of each source that has faults in a corpus table."""
    rows = zip(id_texts(table["source"]), table["fault"].to_pylist(), strict=True)
    return list(dict([(source, fault) for source, fault in rows if fault][::-1]).items())


def faults_table(rows: Sequence[Failed], run: str) -> pa.Table:
    """Makes rows of the table `faults` under the name of a run."""
    out = [{"id": id, **fault, "attempts": n, "digest": of, "run": run} for id, fault, n, of in rows]
    return pa.Table.from_pylist(out, schema=FAULTS)


def final_last(faults: pa.Table) -> list[dict[str, Any]]:
    """Sorts faults so that final faults come last. A dictionary by id then keeps the final fault."""
    rows: list[dict[str, Any]] = faults.to_pylist()
    return sorted(rows, key=lambda r: not r["transient"])
