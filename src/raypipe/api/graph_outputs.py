"""What `--json` prints of knowledge graphs and public data."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import with_config
from typing_extensions import TypedDict

from raypipe.api.kg_score import CallRate
from raypipe.api.run_outputs import (
    STRICT,
)


@with_config(STRICT)
class _CallFault(TypedDict):
    reason: str
    detail: str
    transient: bool


@with_config(STRICT)
class _CallLine(TypedDict):
    call: str
    rows: list[dict[str, Any]]
    values: list[Any]
    sentences: list[str]
    requests: list[str]  # to a server, each its path and body
    ms: float
    fault: _CallFault | None


@with_config(STRICT)
class GraphCalls(TypedDict):
    """`kg run --json`: a result for each line."""

    format: Literal[2]
    results: list[_CallLine]


@with_config(STRICT)
class _CallSlice(TypedDict):
    label: str
    value: str
    measures: list[CallRate]


@with_config(STRICT)
class KgScore(TypedDict):
    """`kg score --json`: how many written programs are the gold's."""

    format: Literal[2]
    questions: int  # golds
    missing: int  # of these, without a prediction
    extra: int  # predictions that no gold asks for
    measures: list[CallRate]
    slices: list[_CallSlice]  # by domain and question_type, where the golds have them


@with_config(STRICT)
class _Observed(TypedDict):
    pairs: int  # stored replies of one request in two periods
    changed: int  # of these, how many differ


@with_config(STRICT)
class GraphRefresh(TypedDict):
    """`kg refresh --json`: refresh periods by domain."""

    format: Literal[2]
    graph: str
    now: dict[str, str | int]
    proposed: dict[str, str | int]
    accepted: bool
    seen: dict[str, _Observed]


@with_config(STRICT)
class FactsTableOutput(TypedDict):
    """`facts build --json`."""

    format: Literal[2]
    out: str  # the table
    facts: int
    lines: int  # of the CSV, without its header
    skipped: int  # lines that lack a required column
