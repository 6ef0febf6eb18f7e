"""Scores of files that any system may have written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raypipe.api.results import Result
from raypipe.metrics.crag import Rule
from raypipe.metrics.files import score_crag_file, score_ranking_files
from raypipe.metrics.ranking import MAP_CUT_20_MIN, MEASURES
from raypipe.report.report import JSON_FORMAT


@dataclass(frozen=True, slots=True)
class CragScoreResult(Result):
    """The score of CRAG predictions; one row."""

    found: Mapping[str, Any]

    @property
    def title(self) -> str:
        return f"rule {self.found['rule']}"

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """One row: the numbers."""
        yield {k: v for k, v in self.found.items() if not isinstance(v, Mapping)}

    def to_json(self) -> dict[str, Any]:
        return {"format": JSON_FORMAT, **self.found}


@dataclass(frozen=True, slots=True)
class RankingScoreResult(Result):
    """The measures of a TREC run; a row for each."""

    found: Mapping[str, Any]

    @property
    def title(self) -> str:
        return f"mean of {self.found['queries']} judged queries"

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """A row for each measure: its mean."""
        for name in (*MEASURES, MAP_CUT_20_MIN):
            yield {"measure": name, "mean": self.found[name]}

    def to_json(self) -> dict[str, Any]:
        return {"format": JSON_FORMAT, **self.found}


def score_crag(predictions: str | Path, rule: Rule = "official") -> CragScoreResult:
    """Scores a file of CRAG predictions.

    A line of the `.jsonl[.gz]` holds `query, answer, alternatives?, prediction, judge_response?`, and so
    does a run's predictions.jsonl. `rule` is official (the published evaluator's intent) or accuracy (the
    earlier contest rule). Raises DataError.
    """
    return CragScoreResult(score_crag_file(Path(predictions), rule))


def score_ranking(run: str | Path, qrels: str | Path, per_query: bool = False) -> RankingScoreResult:
    """Scores a TREC run against judgements. `per_query`: every query's measures too. Raises DataError."""
    return RankingScoreResult(score_ranking_files(Path(run), Path(qrels), per_query))
