"""The judge measured by people, and the answers that people should label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from raypipe.api.paths import require_file
from raypipe.api.results import Result
from raypipe.core.errors import ConfError
from raypipe.evaluation import judge_check as checking
from raypipe.evaluation.judge_check import JudgeCheck
from raypipe.evaluation.judged_run import judged_run, require_distinct, require_readable
from raypipe.evaluation.labels import read_labels, require_none
from raypipe.metrics.crag import Rule
from raypipe.metrics.textfile import write_json_lines
from raypipe.report.report import JSON_FORMAT, RunFolder
from raypipe.runs.manifest import to_json


@dataclass(frozen=True, slots=True)
class JudgeCheckResult(Result):
    """A judge against people; a row for all answers, and one for each slice."""

    SCHEMA: ClassVar[Mapping[str, str]] = {
        "label": "string", "value": "string", "n": "int64", "agreement": "float64", "kappa": "float64",
    }  # fmt: skip
    found: JudgeCheck

    @property
    def title(self) -> str:
        return f"{self.found.judge or 'judge'}: {self.found.labelled} labelled answers"

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """Agreement of all labelled answers, then of each slice."""
        of = [("", "", self.found.found)] if self.found.found else []
        for label, value, a in [*of, *((s.label, s.value, s.found) for s in self.found.slices)]:
            yield {"label": label, "value": value, "n": a.n, "agreement": a.agreement, "kappa": a.kappa}

    def to_json(self) -> dict[str, Any]:
        return {"format": JSON_FORMAT, **to_json(self.found)}


@dataclass(frozen=True, slots=True)
class PickResult(Result):
    """Answers for people to label; a row for each."""

    SCHEMA: ClassVar[Mapping[str, str]] = {
        "id": "string", "query": "string", "answer": "string", "prediction": "string", "verdict": "string",
        "picked": "string",
    }  # fmt: skip
    file: str  # "": not written
    lines: tuple[Mapping[str, Any], ...]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """A row for each answer."""
        for line in self.lines:
            yield {name: line[name] for name in self.SCHEMA}

    def to_json(self) -> dict[str, Any]:
        picked = [line["picked"] for line in self.lines]
        counts = {how: picked.count(how) for how in ("random", "chosen")}
        return {"format": JSON_FORMAT, "file": self.file, **counts}


def check_judge(
    labels: str | Path, run: str | Path | None = None, rule: Rule | None = None
) -> JudgeCheckResult:
    """Measures a run's judge by people's labels: agreement, Cohen's kappa, by slice, and the score with the
    judge's errors taken out.

    `labels` is a file of labels, `run` the folder of an eval or a file of predictions with the judge's
    replies; None: the folder that the labels lie in. `rule`: by which a file is scored. Raises ConfError,
    DataError.
    """
    place = Path(labels).absolute().parent if run is None else Path(run)
    if run is None and not RunFolder(place).results.exists():
        raise ConfError(f"judge check: {place} is no run's folder; name the run of these labels with --run")
    found = judged_run(place, rule)
    require_distinct(found)
    require_readable(found)
    return JudgeCheckResult(checking.check(found, read_labels(Path(labels))))


def pick_to_label(
    run: str | Path,
    out: str | Path,
    disagreements: int = 0,
    at_random: int = 0,
    seed: int = 0,
    other: str | Path | None = None,
    labels: str | Path | None = None,
    rule: Rule | None = None,
) -> PickResult:
    """Writes answers for people to label: drawn at random, and those of which two measures say the opposite.

    The measures are the judge and the words of the truth; with `other`, a run of the same answers, the two
    judges. Answers in the file `labels` are left out. Raises ConfError, DataError.
    """
    require_file(out, "--out")
    require_none(Path(out))
    found, second = judged_run(Path(run), rule), None if other is None else judged_run(Path(other), rule)
    require_distinct(found)
    require_readable(found)
    known = None if labels is None else read_labels(Path(labels))
    lines = checking.pick(found, disagreements, at_random, seed, second, known)
    write_json_lines(Path(out), lines)
    return PickResult(str(out), tuple(lines))
