"""A judge against people, and the score with its errors taken out."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
from checkout import BENCH
from statsmodels.stats.inter_rater import cohens_kappa

from raypipe.evaluation.judge_check import VerdictSample, agreement, corrected_score


@pytest.mark.parametrize("counts", [(20, 5, 10, 15), (70, 3, 1, 26), (10, 0, 0, 10), (5, 9, 8, 3)])
def test_kappa_is_cohens(counts: tuple[int, int, int, int]) -> None:
    both, kind, strict, neither = counts
    pairs = [(True, True)] * both + [(True, False)] * kind
    found = agreement(pairs + [(False, True)] * strict + [(False, False)] * neither)
    assert found.kappa == pytest.approx(cohens_kappa([[both, kind], [strict, neither]]).kappa)
    assert (found.judge_too_kind, found.judge_too_strict, found.n) == (kind, strict, sum(counts))
    assert found.interval[0] < found.agreement == (both + neither) / sum(counts) <= found.interval[1]


def test_one_verdict_alone_has_an_agreement_and_no_kappa() -> None:
    found = agreement([(True, True)] * 12)
    assert found.agreement == 1 and found.kappa is None and found.interval[0] < 0.8
    with pytest.raises(ValueError, match="no labelled answer"):
        agreement([])


def test_the_error_of_each_verdict_is_taken_out() -> None:
    # 40 of 100 questions judged right, of which a fifth is wrong; 60 wrong, of which a tenth is right.
    found = corrected_score(0, 0, 0, VerdictSample(40, 20, 4), VerdictSample(60, 30, 3))
    assert found.judged == pytest.approx(-0.2)
    assert found.corrected == pytest.approx(-0.2 - 2 * 0.2 * 0.4 + 2 * 0.1 * 0.6)
    assert found.interval[0] < found.corrected < found.interval[1] and found.labelled == 50
    few = corrected_score(0, 0, 0, VerdictSample(40, 5, 1), VerdictSample(60, 10, 1))
    assert few.interval[1] - few.interval[0] > found.interval[1] - found.interval[0]


def test_a_verdict_without_labels_leaves_the_score_uncorrected() -> None:
    with pytest.raises(ValueError, match="none of the 60 answers that the judge called wrong has a label"):
        corrected_score(1, 2, 3, VerdictSample(40, 20, 4), VerdictSample(60, 0, 0))
    with pytest.raises(ValueError, match="no scored question"):
        corrected_score(0, 0, 0, VerdictSample(0, 0, 0), VerdictSample(0, 0, 0))


@pytest.mark.slow
@pytest.mark.parametrize("setting", [0, *(pytest.param(i, marks=pytest.mark.drill) for i in (1, 2)), 10])
def test_the_corrected_interval_holds_the_truth_where_the_judge_errs_as_is_known(setting: int) -> None:
    bench = _bench()
    outcome = bench.simulate_judge(bench.JUDGES[setting], 200, seed=7)
    assert outcome.holds(), outcome


def _bench() -> ModuleType:
    path = BENCH / "figures/certainty.py"
    spec = importlib.util.spec_from_file_location("certainty", path)
    assert spec and spec.loader
    module = sys.modules["certainty"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
