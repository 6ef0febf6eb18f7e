"""The simulator on paper: its line through measured runs, and what it makes of it."""

import importlib.util
import sys
from dataclasses import replace

import pytest
from checkout import BENCH


@pytest.fixture(scope="module")
def scale():
    spec = importlib.util.spec_from_file_location("scale", BENCH / "figures/scale.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["scale"] = module
    spec.loader.exec_module(module)
    return module


GPU = {"pages_per_gpu_s": 40.0, "pairs_per_gpu_s": 800.0, "prompt_tokens_per_gpu_s": 9000.0}


def measured(scale, pages):
    return scale.Measured(
        pages, 12 + 0.01 * pages, 0.015 * pages, 20 + 0.02 * pages, 1, 1, 10_000 + 3_000 * pages
    )


def test_two_small_runs_foretell_a_large_one_where_cost_is_a_line(scale):
    rates = scale.fitted([measured(scale, 500), measured(scale, 5000)], workers=2)
    assert scale.predicted(rates, 50_000) == pytest.approx(measured(scale, 50_000).seconds)
    assert (rates.fixed_s, rates.page_bytes) == (pytest.approx(12), pytest.approx(3_000))
    slow = replace(measured(scale, 5000), seconds=900.0)
    assert scale.fitted([slow, measured(scale, 5000), measured(scale, 500)], workers=2) == rates
    with pytest.raises(ValueError, match="at least two sizes"):
        scale.fitted([measured(scale, 500)], workers=2)


def test_more_gpus_take_less_time_and_more_pages_more_of_everything(scale):
    rates = scale.fitted([measured(scale, 500), measured(scale, 5000)], workers=2)
    one, many = (scale.forecast(rates, GPU, 10**6, gpus) for gpus in (1, 64))
    assert many.hours < one.hours / 50 and many.gpu_hours == pytest.approx(one.gpu_hours)
    small = scale.forecast(rates, GPU, 10**5, 1)
    assert one.store_gib == pytest.approx(10 * small.store_gib) and small.hours < one.hours
    # By hand: 1e6 pages at 40 a second, 20,000 questions x 50 pairs, x 4,500 tokens.
    on_gpus = 10**6 / 40 + 20_000 * 50 / 800 + 20_000 * 4_500 / 9000
    assert one.gpu_hours == pytest.approx(on_gpus / 3600)


def test_what_takes_the_longest_follows_the_rates_and_what_was_not_given_is_left_out(scale):
    rates = scale.fitted([measured(scale, 500), measured(scale, 5000)], workers=2)
    assert scale.forecast(rates, {**GPU, "prompt_tokens_per_gpu_s": 100.0}, 10**6, 4).bottleneck == "generate"
    assert scale.forecast(rates, {**GPU, "pages_per_gpu_s": 0.1}, 10**6, 4).bottleneck == "embed"
    bare = scale.forecast(rates, {}, 10**6, 4)
    assert bare.bottleneck == "parse, split, write" and bare.gpu_hours == 0
