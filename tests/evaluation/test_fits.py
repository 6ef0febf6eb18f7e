"""Fits of `decide` and `fuse` on small runs: what is written, what it does, and where it is marked."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from reruns import FAKES, Bench

from raypipe.api.fit import DecideFitResult, fit_decide, fit_fuse
from raypipe.api.compare import compare
from raypipe.api.outputs import schemas
from raypipe.cli.main import main
from raypipe.core.errors import ConfError, DataError
from raypipe.core.plugins import Plugin
from raypipe.evaluation.evaluate import Evaluation, evaluate
from raypipe.evaluation.fit_rows import question_of
from raypipe.evaluation.judge import OwnJudge
from raypipe.evaluation.result_table import each
from raypipe.recipes.recipe import Recipe
from raypipe.steps.answer_probability import features_of
from raypipe.synth import write
from raypipe.text.fitted_on import half_of

pytestmark = pytest.mark.slow

SURE = FAKES.replace("threshold: 0.5", "threshold: 0.0")
RANKS = SURE[: SURE.index("  - rerank:")]


def agrees(question: str, prediction: str, truths: tuple[str, ...]) -> bool:
    return any(t.lower() in prediction.lower() for t in truths)


JUDGE = OwnJudge(agrees, Plugin("fits:agrees", "0" * 32), "official")


@dataclass(frozen=True)
class Fitted:
    """A run that answers all it can, a fit to its half 0, and a run with that fit."""

    bench: Bench
    always: Evaluation
    fit: DecideFitResult
    done: Evaluation

    def text(self, **changes: str) -> str:
        """The recipe with the fit."""
        made = SURE.replace("{prefer: [extract]}", f"{{prefer: [extract], fitted: {self.fit.file}}}")
        for old, new in changes.items():
            made = made.replace(old, new)
        return made


def run(bench: Bench, text: str, out: str, **more: Any) -> Evaluation:
    return evaluate(bench.pipeline(text), [bench.world], "crag", None, None, bench.folder / out, JUDGE, **more)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    home: Path = tmp_path_factory.mktemp("fits")
    write(home / "world", 80, pages=2, seed=5, page_chars=1000)
    bench = Bench(home, home / "world")
    always = run(bench, SURE, "always")
    fit = fit_decide(always.folder.path, 0, home / "abstain.yaml")
    found = Fitted(bench, always, fit, always)
    return replace(found, done=run(bench, found.text(), "fitted"))


def test_x(made: Fitted) -> None:
    print(json.dumps(made.fit.to_json())[:3000])
    print(made.fit.file.read_text())
    assert 0
