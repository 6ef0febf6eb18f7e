"""Compares scored runs over the same questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from raypipe.api.results import Result
from raypipe.core.errors import ConfError
from raypipe.evaluation import compare as comparing
from raypipe.evaluation.compare import RunComparison
from raypipe.metrics.crag import Rule
from raypipe.metrics.paired import MARGIN
from raypipe.report.report import JSON_FORMAT
from raypipe.runs.manifest import to_json


@dataclass(frozen=True, slots=True)
class CompareResult(Result):
    """Runs against the first; a row for each."""

    SCHEMA: ClassVar[Mapping[str, str]] = {
        "before": "string", "after": "string", "verdict": "string", "difference": "float64", "p": "float64",
        "n": "int64",
    }  # fmt: skip
    comparisons: tuple[RunComparison, ...]

    @property
    def title(self) -> str:
        return "; ".join(f"{c.after}: {c.verdict}" for c in self.comparisons)

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """A row for each run that is compared with the first."""
        for c in self.comparisons:
            yield {
                "before": c.before, "after": c.after, "verdict": c.verdict,
                "difference": c.score.difference, "p": c.p, "n": c.score.n,
            }  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {"format": JSON_FORMAT, "comparisons": [to_json(c) for c in self.comparisons]}


def compare(
    *runs: str | Path, rule: Rule = "official", margin: float = MARGIN, group: str | None = None,
    measure: str | None = None,
) -> CompareResult:  # fmt: skip
    """Compares each run with the first: better, worse, same, or cannot tell.

    A run is the folder of a finished eval, or a file of predictions, which is scored by `rule`. `margin` is
    how far apart two runs of the same quality may lie; `group` a label whose values are groups of questions
    that count as one each; `measure` what is compared, None: the first of the kind of the data. Raises
    ConfError for fewer than two runs and for an unknown measure, and DataError for runs of other kinds, that
    were scored by other rules or judges, or that share no scored question.
    """
    if len(runs) < 2:
        raise ConfError(f"compare: expected two runs or more, found {len(runs)}")
    if margin <= 0:
        raise ConfError(f"compare: expected a margin above 0, found {margin:g}")
    scored = [comparing.scored_run(Path(run), rule) for run in runs]
    return CompareResult(comparing.compare(scored, margin, group, measure))
