"""Fits: numbers for `decide` and `fuse` from a finished run, written as files that a recipe names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import yaml

from raypipe.api.release import finished
from raypipe.api.results import Result
from raypipe.api.session import Place, Session
from raypipe.core.errors import ConfError
from raypipe.core.plain import to_json
from raypipe.evaluation import fit_decide as deciding
from raypipe.evaluation import fit_fuse as fusing
from raypipe.evaluation.fit_decide import DecideFitReport
from raypipe.evaluation.fit_fuse import FuseFitReport
from raypipe.metrics.textfile import replaced, require_file, write_json, write_text
from raypipe.report.experiments import fit_page
from raypipe.steps.answer_probability import AnswerProbability
from raypipe.steps.fuse import FusionWeights

_WIDTH = 110  # columns of a fitted file


@dataclass(frozen=True, slots=True)
class FitResult(Result):
    """A fit; a row for what was fitted and for each that it is held against, on the unseen half."""

    ROWS = "report.unseen"
    FLAT, HIDDEN = "report", "fitted"
    file: Path  # the numbers, for `fitted` of the step; their report lies next to it, as .json and .html
    fitted: AnswerProbability | FusionWeights
    report: DecideFitReport | FuseFitReport

    @property
    def step(self) -> str:
        """The step that takes the numbers."""
        return self.report.step if isinstance(self.report, FuseFitReport) else "decide"


class DecideFitResult(FitResult):
    """A fit of `decide`; a row for each way to decide which answers are given."""

    __slots__ = ()
    SCHEMA = (
        "policy threshold:float64 score:float64 answered:float64 right:float64 "
        "difference=gain.difference:float64 p=gain.p:float64 verdict"
    )


class FuseFitResult(FitResult):
    """A fit of `fuse`; a row for each way to weigh the scores."""

    __slots__ = ()
    SCHEMA = "weighing score:float64 difference=gain.difference:float64 p=gain.p:float64 verdict"


F = TypeVar("F", bound=FitResult)


def fit_decide(
    run: str | Path, split: int = 0, out: str | Path | None = None, group: str | None = None,
    measure: str | None = None,
) -> DecideFitResult:  # fmt: skip
    """Fits the probability that an answer is right to one half of a finished run, and the threshold below
    which "i don't know" scores better; reports on the other half.

    `run` is the folder of an eval, `split` the half to fit on, 0 or 1, by a hash of each question's id, or of
    its label `group`. `measure` is what the threshold is chosen for; None: the one that the report begins
    with. `out` is the file for `decide.fitted`; None: fit-decide.yaml in the run's folder. Raises ConfError
    for a recipe whose decide cannot be fitted, DataError for too few answers.
    """
    file = _out(run, out, "fit-decide.yaml")
    fitted, report = deciding.fit_decide(Path(run), split, group, measure)
    return _written(DecideFitResult(file, fitted, report), f"P(right) of an answer of {report.recipe}")


def fit_fuse(
    run: str | Path, split: int = 0, out: str | Path | None = None, step: str | None = None,
    scores: Sequence[str] = (), group: str | None = None, measure: str | None = None, store: Place = None,
    session: Session | None = None,
) -> FuseFitResult:  # fmt: skip
    """Fits the weights of a `fuse` step to a ranking measure on one half of a finished run, and reports on
    the other half. No model is asked: the scores are those on the run's hits.

    `step` is the stage, such as `fuse:final`; None: the last `fuse`. `scores` are weighed; none: those that
    it weighs now. `store` is where the run's documents are; None: where they were when it ran. The others as
    in `fit_decide`. Raises ConfError, and DataError for data without judged documents.
    """
    file = _out(run, out, "fit-fuse.yaml")
    _, opened = finished(run, store, session)
    fitted, report = fusing.fit_fuse(Path(run), opened, split, step, scores, group, measure)
    return _written(FuseFitResult(file, fitted, report), f"Weights of {report.step} of {report.recipe}")


def _out(run: str | Path, out: str | Path | None, name: str) -> Path:
    """The file to write. Raises ConfError for one that no recipe could name."""
    file = Path(run) / name if out is None else Path(out)
    if file.suffix != ".yaml":
        raise ConfError(f"--out {file}: expected a name that ends with .yaml")
    require_file(file, "--out")
    return file.absolute()


def _written(found: F, what: str) -> F:
    """The same fit, once its file and next to it what it is worth are written."""
    file, report = found.file, found.to_json()
    with replaced(file) as out:
        verb = "decide" if isinstance(found, DecideFitResult) else "fuse"
        out.write(f"# {what}. Made by `raypipe fit {verb}`; {file.stem}.html says what it is worth.\n")
        out.write(yaml.safe_dump(to_json(found.fitted), sort_keys=False, width=_WIDTH, allow_unicode=True))
    write_json(file.with_suffix(".json"), report)
    write_text(file.with_suffix(".html"), fit_page(report))
    return found
