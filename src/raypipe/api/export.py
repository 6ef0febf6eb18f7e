"""A run's results in the shapes that other programs read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raypipe.api.results import Result
from raypipe.core import arrow
from raypipe.core.errors import DataError
from raypipe.evaluation.export import Shape
from raypipe.evaluation.export import export as write
from raypipe.report.report import JSON_FORMAT, RunFolder
from raypipe.runs.manifest import read
from raypipe.store import Store


@dataclass(frozen=True, slots=True)
class ExportResult(Result):
    """A file that was written; one row."""

    file: str
    shape: Shape
    counts: Mapping[str, int]  # its lines; of a submission, questions that failed

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """One row: the file and its counts."""
        yield self.to_json()

    def to_json(self) -> dict[str, Any]:
        return {"format": JSON_FORMAT, "file": self.file, "shape": self.shape, **self.counts}


def export_run(run: str | Path, shape: Shape, out: str | Path) -> ExportResult:
    """Writes the results of a finished eval in another shape: `predictions` (predictions.jsonl), `crag` (what
    CRAG's evaluation reads), `trec` (the ranking) or `oag` (OAG-QA's submission: the best 20 papers).

    `run` is the folder of the eval. The documents of a collection are named by their ids, which the run's
    store knows; pages by their addresses. Raises DataError.
    """
    folder = RunFolder(Path(run))
    if Path(out).resolve() in (folder.results.resolve(), folder.manifest.resolve()):
        raise DataError(f"{out}: expected another file: this one belongs to the run")
    listed: dict[str, list[str]] = {}
    if shape in ("trec", "oag"):
        for d in arrow.document.records(Store.open(read(folder.path).store).scan("documents")):
            listed.setdefault(d.source, []).append(d.id)
    return ExportResult(str(out), shape, write(folder, shape, Path(out), listed))
