"""Options of an eval in one record, which is passed from the command line to the eval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError
from raypipe.evaluation.oracle import Oracle
from raypipe.metrics.verdict_rules import Rule
from raypipe.readers.field_map import Fields
from raypipe.readers.formats import Format
from raypipe.runs.plan.records import Plan


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """Options of an eval. Each field has the default of the command line."""

    format: Format | None = None  # format of the data; None: detected
    kind: str | None = None  # crag, qa, qasper, ranking or MODULE:NAME; None: as ingested
    fields: Fields | None = None  # role -> field of a row, or "query=question"; None: common names are tried
    limit: int | None = None  # number of first questions to run; None: all
    only: Sequence[str] | None = None  # ids of stored questions to run; None: those of the data, else all
    rule: Rule | None = None  # rule of scoring, for kinds that have rules; None: official
    judge: str | None = None  # judge of what the rule leaves open: a generator, or MODULE:NAME
    labels: str | Path | None = None  # file of people's labels (labels.jsonl), which outrank the judge
    only_new: bool = False  # keep the answers of the last run, and answer only the other questions
    fresh: bool = False  # answer all questions again, and call language models again
    retry_faults: bool = False  # try failed rows again
    refresh: bool = False  # recompute answers that rest on expired replies of a graph
    changes: bool = False  # also write changes.json: differences of the answers from the last run's
    oracle: Oracle | None = None  # output that golds replace: passages or answer; None: none
    max_calls: int | None = None  # cap on calls to models and graphs: no task starts beyond it; None: no cap
    max_usd: float | None = None  # cap on the cost of everything with a price
    max_hours: float | None = None  # cap on wall time
    on_plan: Callable[[Plan], object] = lambda plan: None  # receives the plan before anything runs
    check: bool = True  # after the report, raise FaultBudgetExceeded for too many lost rows
    began: float | None = None  # start of the command by perf_counter, in seconds; None: now

    @classmethod
    def of(cls, **options: Any) -> EvalOptions:
        """Builds the options from keyword arguments. Raises ConfError for an unknown name."""
        known = [f.name for f in fields(cls)]
        if unknown := [name for name in options if name not in known]:
            hint = did_you_mean(unknown[0], [*known, "data", "docs", "out", "store"])
            raise ConfError(f"unknown option {unknown[0]!r}; {hint}")
        return cls(**options)
