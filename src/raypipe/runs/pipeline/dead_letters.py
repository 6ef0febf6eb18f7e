"""Failed rows: finds them in a batch that raises, says whose fault it is, and makes the rows of `faults`.

A row is blamed only if another row of its task passed on the same worker, and if the models of the stage that
raised still compute there, which a probe shows. Rows none of which passes are never to blame: another worker
gets them. Knows faults and batches; knows no recipe and no worker. A row that kills its worker is found by
`runs.cluster.running`; whether too many rows failed is decided by `evaluation.fault_budget`.
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
from raypipe.core.calls import Backoff, until_available
from raypipe.core.errors import OutOfMemory, RaypipeError, WorkerBroken
from raypipe.core.records import Fault
from raypipe.recipes.executor import StageCounters, StageError
from raypipe.store.tables import FAULTS

FailedRows: TypeAlias = list[tuple[str, dict[str, Any]]]
"""Rows that failed: id, fault as `dataclasses.asdict` makes it."""

Failed: TypeAlias = tuple[str, dict[str, Any], int, str]
"""A row of the table `faults`: id, fault, attempts, and what names the work that it failed in."""

Compute: TypeAlias = Callable[[tuple[str, ...]], Awaitable[tuple[pa.Table, FailedRows]]]
"""Ids -> rows for the table, and those that failed. By the law of batches any cut of the ids gives the same
rows."""

Probe: TypeAlias = Callable[[str], Awaitable[None]]
"""Returns if the models of a stage compute in this process. Raises WorkerBroken."""


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row that broke the code or the worker that ran it."""

    fault: Fault
    attempts: int


class Unproven(WorkerBroken):
    """Some rows raised, and none that was computed after them passed. `rows`: these."""

    def __init__(self, message: str, rows: tuple[str, ...]) -> None:
        super().__init__(message, rows)
        self.rows = rows

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Suspects:
    """Another worker's knowledge of a task's rows that raised there."""

    rows: tuple[str, ...] = ()  # that no row passed after; here they go first, so that others come after them
    witnessed: bool = False  # True: that worker had done other rows before


@dataclass(slots=True)
class _Tried:
    """The rows of one task, as far as they were tried."""

    done: list[tuple[pa.Table, FailedRows]] = field(default_factory=list)
    broken: dict[str, FailedRow] = field(default_factory=dict)  # rows that raised alone
    stages: set[str] = field(default_factory=set)  # that raised, but not for want of memory
    passed: int = 0  # rows that came back
    since: list[str] = field(default_factory=list)  # rows that raised alone after the last one that passed


async def bisected(
    compute: Compute,
    ids: tuple[str, ...],
    counts: Mapping[str, StageCounters],
    probe: Probe,
    backoff: Backoff,
    suspects: Suspects | None = None,
    witnessed: bool = False,
) -> tuple[list[tuple[pa.Table, FailedRows]], dict[str, FailedRow]]:
    """Computes all ids, however many of them break the code that works on them.

    A batch that raises is cut into the square root of its size, those into single rows: a row that still
    raises alone, at its third attempt, is suspected. `witnessed`: this worker did other rows before.
    `suspects`: of the worker that had the rows before, if one had them.

    Raises WorkerBroken where it cannot be known that the rows are to blame, and every RaypipeError: those are
    no row's matter. What is unavailable is tried again after waits (`backoff`).
    """
    tried = _Tried()
    first = tuple(i for i in suspects.rows if i in ids) if suspects else ()
    waiting: list[tuple[tuple[str, ...], int]] = [((i,), 3) for i in first]
    if rest := tuple(i for i in ids if i not in first):
        waiting.append((rest, 1))
    while waiting:
        some, attempt = waiting.pop(0)
        try:
            tried_now = functools.partial(_counted, compute, some, counts)
            made: tuple[pa.Table, FailedRows] = await until_available(tried_now, backoff)
        except RaypipeError:
            raise
        except Exception as e:
            if len(some) > 1:
                size = math.isqrt(len(some)) if attempt == 1 else 1
                cut = [(some[at : at + size], attempt + 1) for at in range(0, len(some), size)]
                waiting = cut + waiting  # at once: the others pass, or not, after what raised
                continue
            stage = e.stage if isinstance(e, StageError) else next(iter(counts))
            cause = e.__cause__ if isinstance(e, StageError) and e.__cause__ else e
            counts[stage].faults += 1
            memory = isinstance(cause, MemoryError | OutOfMemory)  # may be another's fault: it stays pending
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


async def _counted(
    compute: Compute, ids: tuple[str, ...], counts: Mapping[str, StageCounters]
) -> tuple[pa.Table, FailedRows]:
    """Computes, and if that raises, counts no more than what it cost."""
    before = copy.deepcopy(dict(counts))
    try:
        return await compute(ids)
    except Exception:
        for name, count in counts.items():
            count.in_vain(before[name])
        raise


async def _judge(tried: _Tried, rows: int, probe: Probe, suspects: Suspects | None, witnessed: bool) -> None:
    """Decides whether the rows that raised are to blame. Raises WorkerBroken or Unproven where that is not
    known; a row that has no other next to it stays pending."""
    why = next(iter(tried.broken.values())).fault
    said = f"{why.step}: {why.detail}"
    if not tried.passed and rows > 1:
        raise WorkerBroken(f"all {rows} rows of a task fail, so no row is blamed; the first at {said}")
    if not tried.passed and not witnessed and not (suspects and suspects.witnessed):
        if suspects is None:
            raise Unproven(f"a row fails that is alone in its task, at {said}", tuple(tried.broken))
        for id, row in tried.broken.items():
            detail = f"{row.fault.detail}; no other row is next to it, so the worker may be to blame"
            tried.broken[id] = replace(row, fault=replace(row.fault, detail=detail, transient=True))
        return
    if len(tried.since) > 1 and suspects is None:
        raise Unproven(
            f"{len(tried.since)} rows fail one after the other, and none passed since, at {said}",
            tuple(tried.since),
        )
    for stage in sorted(tried.stages):
        await probe(stage)


def failed_rows(table: pa.Table) -> FailedRows:
    """The faulty rows of a corpus table, the first fault of each source."""
    rows = zip(id_texts(table["source"]), table["fault"].to_pylist(), strict=True)
    found = [(source, fault) for source, fault in rows if fault]
    return list(dict(found[::-1]).items())


def faults_table(rows: Sequence[Failed], run: str) -> pa.Table:
    """Rows of the table `faults`."""
    out = [{"id": id, **fault, "attempts": n, "digest": of, "run": run} for id, fault, n, of in rows]
    return pa.Table.from_pylist(out, schema=FAULTS)


def final_last(faults: pa.Table) -> list[dict[str, Any]]:
    """Rows of `faults`, transient ones first: a row may fail in passing often, and for good once."""
    rows: list[dict[str, Any]] = faults.to_pylist()
    return sorted(rows, key=lambda r: not r["transient"])
