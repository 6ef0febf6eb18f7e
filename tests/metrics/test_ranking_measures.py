"""Ranking measures against trec_eval's golden output and against plain Python."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raypipe.api.scores import score_ranking
from raypipe.core.errors import DataError
from raypipe.metrics.ranking import MAP_CUT_20_MIN, MEASURES, read_qrels, read_run, score, write_run

needs_data = pytest.mark.skipif("RAYPIPE_DATA" not in os.environ, reason="RAYPIPE_DATA is not set")


def plain(scores: dict[str, float], relevance: dict[str, int]) -> dict[str, float]:
    """The measures from their definitions: score in single precision, ties by document id descending."""
    order = sorted(scores, reverse=True)
    order.sort(key=lambda d: -float(np.float32(scores[d])))
    relevant = {d for d, r in relevance.items() if r > 0}
    n = len(relevant)
    at = [i for i, d in enumerate(order, 1) if d in relevant]

    def precision_sum(cut: int) -> float:
        return sum(found / i for found, i in enumerate(at, 1) if i <= cut)

    def recall(cut: int) -> float:
        return sum(i <= cut for i in at) / n if n else 0.0

    gains = [max(relevance.get(d, 0), 0) / math.log2(i + 1) for i, d in enumerate(order[:10], 1)]
    best = sorted((r for r in relevance.values() if r > 0), reverse=True)[:10]
    ideal = sum(r / math.log2(i + 1) for i, r in enumerate(best, 1))
    return {
        "map": precision_sum(len(order)) / n if n else 0.0,
        "map_cut_20": precision_sum(20) / n if n else 0.0,
        "map_cut_20_min": precision_sum(20) / min(n, 20) if n else 0.0,
        "ndcg_cut_10": sum(gains) / ideal if ideal else 0.0,
        "recip_rank": 1 / at[0] if at else 0.0,
        "recall_5": recall(5),
        "recall_20": recall(20),
        "recall_100": recall(100),
    }


documents = st.sampled_from([f"d{i}" for i in range(60)])
run_of_one = st.dictionaries(documents, st.floats(0, 1, width=32) | st.sampled_from([0.5, 0.5 + 1e-9]))
qrels_of_one = st.dictionaries(documents, st.integers(0, 3), min_size=1)


@settings(max_examples=200, deadline=None)
@given(run_of_one, qrels_of_one)
def test_the_measures_equal_their_definitions(scores: dict[str, float], relevance: dict[str, int]) -> None:
    assert score({"q": scores}, {"q": relevance}).per_query["q"] == pytest.approx(plain(scores, relevance))


@needs_data
@pytest.mark.parametrize("query", ["301", "302", "303", "all"])
def test_trec_eval_s_own_test_run_gives_its_golden_numbers(query: str) -> None:
    data = Path(os.environ["RAYPIPE_DATA"]) / "trec_eval"
    found = score_ranking(data / "results.test", data / "qrels.test", per_query=True)
    golden = {}
    for name in ("out.test.aq", "out.test"):
        for measure, topic, value in map(str.split, (data / name).read_text().splitlines()):
            if topic == query and measure in MEASURES:
                golden[measure] = value
    assert len(golden) == len(MEASURES)
    values = found.means if query == "all" else found.per_query[query]
    assert {m: f"{values[m]:.4f}" for m in MEASURES} == golden
    assert (len(found.per_query), found.unranked, found.unjudged) == (3, (), ())


def test_map_at_20_has_both_denominators() -> None:
    found = score({"q": {"a": 3, "x": 2, "b": 1}}, {"q": {"a": 1, "b": 1}}).per_query["q"]
    assert found["map_cut_20"] == found[MAP_CUT_20_MIN] == pytest.approx((1 + 2 / 3) / 2)
    many = {f"d{i:02}": 1 for i in range(40)}
    found = score({"q": {d: -i for i, d in enumerate(many)}}, {"q": many}).per_query["q"]
    assert (found["map_cut_20"], found[MAP_CUT_20_MIN]) == (pytest.approx(0.5), pytest.approx(1))


def test_nothing_found_scores_zero() -> None:
    assert set(score({"q": {"x": 1.0}}, {"q": {"a": 1}}).per_query["q"].values()) == {0}


def test_queries_without_judgements_or_ranking_are_named_and_the_latter_count_zero() -> None:
    found = score({"1": {"a": 1.0}, "2": {"a": 1.0}, "4": {}}, {"1": {"a": 1}, "3": {"a": 1}, "4": {"a": 1}})
    assert (found.unjudged, found.unranked) == (("2",), ("3", "4"))
    assert list(found.per_query) == ["1", "3", "4"]
    assert found.means["map"] == pytest.approx(1 / 3)


def test_without_any_judgement_there_is_no_mean() -> None:
    found = score({"1": {"a": 1.0}}, {})
    assert set(found.means.values()) == {None} and found.unjudged == ("1",)


def test_a_written_run_reads_back_and_is_ranked_as_it_is_scored(tmp_path: Path) -> None:
    run = {"2": {"a": 0.1 + 1e-12, "c": 0.1, "b": 7.0}, "1": {"é": -1e-9}}
    path = tmp_path / "r.trec"
    write_run(path, run, "local")
    assert read_run(path) == run
    assert [line.split()[2:4] for line in path.read_text().splitlines()] == [
        ["b", "1"],
        ["c", "2"],
        ["a", "3"],
        ["é", "1"],
    ]
    with pytest.raises(DataError, match="without white space"):
        write_run(path, {"1": {"a b": 1.0}}, "local")


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ("1 Q0 a 1 0.5", "6 fields"),
        ("1 Q0 a 1 high tag", "a score"),
        ("1 Q0 a 1 nan tag", "a finite score"),
        ("1 Q0 z 2 0.1 tag", "each document once"),
    ],
)
def test_a_bad_run_line_is_named(tmp_path: Path, bad: str, expected: str) -> None:
    path = tmp_path / "r.trec"
    path.write_text(f"1 Q0 z 1 0.9 tag\n\n{bad}\n")
    with pytest.raises(DataError, match=rf"r\.trec:3: expected {expected}.*found"):
        read_run(path)


@pytest.mark.parametrize(("bad", "expected"), [("1 0 a 0.5", "a whole number"), ("1 0 z 1", "each document")])
def test_a_bad_qrels_line_is_named(tmp_path: Path, bad: str, expected: str) -> None:
    path = tmp_path / "q.trec"
    path.write_text(f"1 0 z 1\n{bad}\n")
    with pytest.raises(DataError, match=rf"q\.trec:2: expected {expected}"):
        read_qrels(path)
