"""Options of an eval: one record, from the arguments of a command down to the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from raypipe.evaluation.oracle import Oracle
from raypipe.metrics.crag import Rule
from raypipe.readers.field_map import Fields
from raypipe.readers.formats import Format
from raypipe.runs.plan.records import Plan


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """Options of an eval; each field has the default of the command line."""

    format: Format | None = None  # of the data; None: by its looks
    kind: str | None = None  # of the data: crag, qa, ranking or MODULE:NAME; None: as read, else the format's
    fields: Fields | None = None  # of rows: role -> field, or "query=question"; None: found by common names
    limit: int | None = None  # only the first questions; None: all
    only: Sequence[str] | None = None  # ids of stored questions, of which alone the run is; None: all
    rule: Rule | None = None  # of scoring, for kinds that have rules; None: official
    judge: str | None = None  # decides what the rule leaves open: a generator, or MODULE:NAME
    labels: str | Path | None = None  # people's verdicts (labels.jsonl), which outrank the judge's
    only_new: bool = False  # keep the answers of the run before, and answer the other questions alone
    fresh: bool = False  # answer all questions, and ask language models again
    retry_faults: bool = False  # try failed rows again
    refresh: bool = False  # recompute what rests on expired replies of a graph
    changes: bool = False  # also write changes.json: how the answers differ from those of the run before
    oracle: Oracle | None = None  # golds are put in the place of that stage; None: none are
    max_calls: int | None = None  # to models and graphs: no task begins beyond it; None: any
    max_usd: float | None = None  # of what has a price
    max_hours: float | None = None  # of wall time
    on_plan: Callable[[Plan], object] = lambda plan: None  # gets the plan before anything runs
    check: bool = True  # raise FaultBudgetExceeded after the report is written
    began: float | None = None  # when the command did, of the clock perf_counter; None: now
