"""The judge measured by people, and the answers that people should label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raypipe.api.paths import require_file
from raypipe.api.results import Result, as_json, plain
from raypipe.core.errors import ConfError
from raypipe.evaluation import judge_check as checking
from raypipe.evaluation.judge_check import JudgeCheck
from raypipe.evaluation.judged_run import judged_run, require_distinct, require_readable
from raypipe.evaluation.labels import read_labels, require_none
from raypipe.metrics.crag import Rule
from raypipe.metrics.textfile import write_json_lines
from raypipe.report.report import RunFolder


@dataclass(frozen=True, slots=True)
class JudgeCheckResult(Result):
    """A judge against people; a row for all answers, and one for each slice."""

    SCHEMA = "label value n:int64 agreement:float64 kappa:float64"
    found: JudgeCheck

    @property
    def title(self) -> str:
        return f"{self.found.judge or 'judge'}: {self.found.labelled} labelled answers"

    def rows(self) -> Iterator[Mapping[str, Any]]:
        of = [("", "", self.found.found)] if self.found.found else []
        for label, value, a in [*of, *((s.label, s.value, s.found) for s in self.found.slices)]:
            yield {"label": label, "value": value, **plain(a)}

    def to_json(self) -> dict[str, Any]:
        return as_json(**plain(self.found))


@dataclass(frozen=True, slots=True)
class PickResult(Result):
    """Answers for people to label; a row for each."""

    SCHEMA = "id query answer prediction verdict picked"
    ROWS = "lines"
    file: str  # "": not written
    lines: tuple[Mapping[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        picked = [line["picked"] for line in self.lines]
        return as_json(file=self.file, random=picked.count("random"), chosen=picked.count("chosen"))


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
    run: str | Path, out: str | Path, disagreements: int = 0, at_random: int = 0, seed: int = 0,
    other: str | Path | None = None, labels: str | Path | None = None, rule: Rule | None = None,
) -> PickResult:  # fmt: skip
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
