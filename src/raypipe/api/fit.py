"""Fits: numbers for `decide` and `fuse` from a finished run, written as files that a recipe names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from raypipe.api.paths import require_file
from raypipe.api.results import Result
from raypipe.api.session import Session
from raypipe.core.errors import ConfError
from raypipe.evaluation import fit_decide as deciding
from raypipe.evaluation import fit_fuse as fusing
from raypipe.evaluation.fit_decide import DecideFitReport
from raypipe.evaluation.fit_fuse import FuseFitReport
from raypipe.metrics.textfile import replaced
from raypipe.report.fit import page
from raypipe.report.report import JSON_FORMAT
from raypipe.runs.manifest import read, to_json
from raypipe.steps.answer_probability import AnswerProbability
from raypipe.steps.fuse import FusionWeights
from raypipe.store import Store

_WIDTH = 110  # columns of a fitted file


@dataclass(frozen=True, slots=True)
class DecideFitResult(Result):
    """A fit of `decide`; a row for each way to decide which answers are given, on the unseen half."""

    SCHEMA: ClassVar[Mapping[str, str]] = {
        "policy": "string", "threshold": "float64", "score": "float64", "answered": "float64",
        "right": "float64", "difference": "float64", "p": "float64", "verdict": "string",
    }  # fmt: skip
    file: Path  # the fitted numbers, for `decide.fitted`; its report lies next to it, as .json and .html
    fitted: AnswerProbability
    report: DecideFitReport

    @property
    def title(self) -> str:
        return f"decide of {self.report.recipe}: {self.file}"

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """The fitted policy, then those that it is held against."""
        for p in self.report.unseen:
            yield {
                "policy": p.policy, "threshold": p.threshold, "score": p.score, "answered": p.answered,
                "right": p.right, "difference": None if p.gain is None else p.gain.difference,
                "p": None if p.gain is None else p.gain.p, "verdict": p.verdict,
            }  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {"format": JSON_FORMAT, "file": str(self.file), **to_json(self.report)}


@dataclass(frozen=True, slots=True)
class FuseFitResult(Result):
    """A fit of `fuse`; a row for each way to weigh the scores, on the unseen half."""

    SCHEMA: ClassVar[Mapping[str, str]] = {
        "weighing": "string", "score": "float64", "difference": "float64", "p": "float64",
        "verdict": "string",
    }  # fmt: skip
    file: Path  # the fitted weights, for `fuse.fitted`; its report lies next to it, as .json and .html
    fitted: FusionWeights
    report: FuseFitReport

    @property
    def title(self) -> str:
        return f"{self.report.step} of {self.report.recipe}: {self.file}"

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """The fitted weights, then those that they are held against."""
        for w in self.report.unseen:
            yield {
                "weighing": w.weighing, "score": w.score,
                "difference": None if w.gain is None else w.gain.difference,
                "p": None if w.gain is None else w.gain.p, "verdict": w.verdict,
            }  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {"format": JSON_FORMAT, "file": str(self.file), **to_json(self.report)}


def fit_decide(
    run: str | Path,
    split: int = 0,
    out: str | Path | None = None,
    group: str | None = None,
    measure: str | None = None,
) -> DecideFitResult:
    """Fits the probability that an answer is right to one half of a finished run, and the threshold below
    which "i don't know" scores better; reports on the other half.

    `run` is the folder of an eval, `split` the half to fit on, 0 or 1, by a hash of each question's id, or of
    its label `group`. `measure` is what the threshold is chosen for; None: the one that the report begins
    with. `out` is the file for `decide.fitted`; None: fit-decide.yaml in the run's folder. Raises ConfError
    for a recipe whose decide cannot be fitted, DataError for too few answers.
    """
    file = _out(run, out, "fit-decide.yaml")
    fitted, report = deciding.fit_decide(Path(run), split, group, measure)
    result = DecideFitResult(file, fitted, report)
    _write(file, fitted, f"P(right) of an answer of {report.recipe}", result.to_json())
    return result


def fit_fuse(
    run: str | Path,
    split: int = 0,
    out: str | Path | None = None,
    step: str | None = None,
    scores: Sequence[str] = (),
    group: str | None = None,
    measure: str | None = None,
    store: Store | str | Path | None = None,
    session: Session | None = None,
) -> FuseFitResult:
    """Fits the weights of a `fuse` step to a ranking measure on one half of a finished run, and reports on
    the other half. No model is asked: the scores are those on the run's hits.

    `step` is the stage, such as `fuse:final`; None: the last `fuse`. `scores` are weighed; none: those that
    it weighs now. `store` is where the run's documents are; None: where they were when it ran. The others as
    in `fit_decide`. Raises ConfError, and DataError for data without judged documents.
    """
    file = _out(run, out, "fit-fuse.yaml")
    opened = (session or Session()).store(read(Path(run)).store if store is None else store)
    fitted, report = fusing.fit_fuse(Path(run), opened, split, step, scores, group, measure)
    result = FuseFitResult(file, fitted, report)
    _write(file, fitted, f"Weights of {report.step} of {report.recipe}", result.to_json())
    return result


def _out(run: str | Path, out: str | Path | None, name: str) -> Path:
    """The file to write. Raises ConfError for one that no recipe could name."""
    file = Path(run) / name if out is None else Path(out)
    if file.suffix != ".yaml":
        raise ConfError(f"--out {file}: expected a name that ends with .yaml")
    require_file(file, "--out")
    return file.absolute()


def _write(
    file: Path, fitted: AnswerProbability | FusionWeights, what: str, report: Mapping[str, Any]
) -> None:
    """The fitted file, and next to it what it is worth."""
    plain = to_json(fitted)
    with replaced(file) as out:
        verb = "decide" if isinstance(fitted, AnswerProbability) else "fuse"
        out.write(f"# {what}. Made by `raypipe fit {verb}`; {file.stem}.html says what it is worth.\n")
        out.write(yaml.safe_dump(plain, sort_keys=False, width=_WIDTH, allow_unicode=True))
    with replaced(file.with_suffix(".json")) as out:
        out.write(json.dumps(report, ensure_ascii=False, allow_nan=False, indent=1) + "\n")
    with replaced(file.with_suffix(".html")) as out:
        out.write(page(report))
