"""Dead letters: finds the rows that fail in a batch, and makes their rows for the table `faults`.

Knows faults and batches; knows no recipe and no worker. A row that kills its worker is found by
`cluster.pools`; whether too many rows failed is decided by `evaluation.fault_budget`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from raypipe.core.errors import RaypipeError
from raypipe.core.records import Fault
from raypipe.recipes.executor import StageCounters, StageError
from raypipe.store import FAULTS

FailedRows: TypeAlias = list[tuple[str, dict[str, Any]]]
"""Rows that failed: id, fault as `dataclasses.asdict` makes it."""

Compute: TypeAlias = Callable[[tuple[str, ...]], Awaitable[tuple[pa.Table, FailedRows]]]
"""Ids -> rows for the table, and those that failed. By the law of batches any cut of the ids gives the same
rows."""


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row that broke the code or the worker that ran it."""

    fault: Fault
    attempts: int


async def bisected(
    compute: Compute, ids: tuple[str, ...], counts: Mapping[str, StageCounters]
) -> tuple[list[tuple[pa.Table, FailedRows]], dict[str, FailedRow]]:
    """Computes all ids, however many of them break the code that works on them.

    A batch that raises is cut into the square root of its size, those into single rows: a row that still
    raises alone, at its third attempt, has failed. What is no row's matter is raised: a wrong setup, a full
    disk, a step that breaks a law.
    """
    done: list[tuple[pa.Table, FailedRows]] = []
    broken: dict[str, FailedRow] = {}
    waiting = [(ids, 1)]
    while waiting:
        some, attempt = waiting.pop(0)
        try:
            done.append(await compute(some))
        except (RaypipeError, OSError, AssertionError):
            raise
        except Exception as e:
            if len(some) == 1:
                broken[some[0]] = FailedRow(_raised(e, counts), attempt)
                continue
            size = math.isqrt(len(some)) if attempt == 1 else 1
            waiting += [(some[at : at + size], attempt + 1) for at in range(0, len(some), size)]
    if not done:
        done.append(await compute(()))
    return done, broken


def _raised(e: Exception, counts: Mapping[str, StageCounters]) -> Fault:
    """The fault of a row on which a stage raised. Memory may be another's fault: the row stays pending."""
    stage = e.stage if isinstance(e, StageError) else next(iter(counts))
    cause = e.__cause__ if isinstance(e, StageError) and e.__cause__ else e
    counts[stage].faults += 1
    # The second is torch's, which is not imported here.
    memory = isinstance(cause, MemoryError) or type(cause).__name__ == "OutOfMemoryError"
    detail = f"expected a result, the stage raised {type(cause).__name__}: {cause}"
    return Fault(stage, "memory" if memory else "raised", detail, transient=memory)


def failed_rows(table: pa.Table) -> FailedRows:
    """The faulty rows of a corpus table, the first fault of each source."""
    found = [(r["source"], r["fault"]) for r in table.select(["source", "fault"]).to_pylist() if r["fault"]]
    return list(dict(found[::-1]).items())


def faults_table(rows: Sequence[tuple[str, dict[str, Any], int, str]], run: str) -> pa.Table:
    """(id, fault, attempts, digest of the work) -> rows of the table `faults`."""
    out = [{"id": id, **fault, "attempts": n, "digest": of, "run": run} for id, fault, n, of in rows]
    return pa.Table.from_pylist(out, schema=FAULTS)
