import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shelf import HASH, Shelf, asked, chunk, holds_laws, question

from raypipe.core.records import Hit, chunk_id
from raypipe.steps.bm25 import Bm25
from raypipe.steps.dense import Dense
from raypipe.steps.fuse import Fuse

EMPTY = Shelf({})


def hit(name: str, **scores: float) -> Hit:
    return Hit(chunk_id(name, (0, 1)), name, (0, 1), scores)


def order(q) -> list[str]:
    return [c.split(":")[0] for c in q.order]


def fused(step, *hits):
    (q,) = asked(step, EMPTY, question("?", hits=hits))
    return q


A = hit("a", dense=0.9, words=1.0)
B = hit("b", dense=0.5, words=8.0)
C = hit("c", dense=0.1, words=4.0)


def test_reciprocal_ranks_are_summed_with_their_weights():
    q = fused(Fuse(weights={"dense": 1, "words": 2}, top=2), A, B, C)
    scores = {h.source: h.scores["fuse"] for h in q.hits}
    expected = {"a": 1 / 61 + 2 / 63, "b": 1 / 62 + 2 / 61, "c": 1 / 63 + 2 / 62}
    assert scores == pytest.approx(expected, abs=1e-15)
    assert order(q) == ["b", "a"]
    assert [h.source for h in q.hits] == ["a", "b", "c"]


def test_weighted_scores_are_normalised_over_the_questions_own_hits():
    step = Fuse(
        method="weighted",
        weights={"dense": 0.5, "words": 0.5},
        norms={"dense": "minmax", "words": "max"},
        top=9,
    )
    scores = {h.source: h.scores["fuse"] for h in fused(step, A, B, C).hits}
    assert scores == pytest.approx({"a": 0.5 + 0.0625, "b": 0.25 + 0.5, "c": 0.25})


def test_one_score_ranks_by_itself():
    for method in ("rrf", "weighted"):
        assert order(fused(Fuse(method=method, weights={"words": 3.0}, top=9), A, B, C)) == ["b", "c", "a"]


SCORES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8)


@given(SCORES, st.sampled_from([0.25, 0.5, 2.0, 64.0]), st.sampled_from(["rrf", "weighted"]))
@settings(max_examples=60, deadline=None)
def test_scaling_all_weights_keeps_the_order(scores, c, method):
    hits = [hit(f"h{i}", x=float(x), y=float(y)) for i, (x, y) in enumerate(scores)]
    weights = {"x": 0.3, "y": 0.7}
    scaled = {n: c * w for n, w in weights.items()}
    first, second = (fused(Fuse(method=method, weights=w, top=99), *hits) for w in (weights, scaled))
    assert first.order == second.order


def test_a_weight_of_zero_is_a_score_that_was_never_named():
    with_zero, without = Fuse(weights={"words": 1, "dense": 0}, top=9), Fuse(weights={"words": 1}, top=9)
    assert with_zero.reads() == without.reads() == {"hits", "hits.words"}
    only_dense = hit("d", dense=1.0)
    assert fused(with_zero, A, B, only_dense).order == fused(without, A, B, only_dense).order
    assert order(fused(without, A, B, only_dense)) == ["b", "a"]


D = hit("d", dense=0.95)


def test_a_missing_score_is_a_fault_of_that_row_alone():
    step = Fuse(weights={"dense": 1, "words": 1}, top=9)
    bad, good = asked(
        step, EMPTY, question("?", hits=(A, D), name="bad"), question("?", hits=(A, B), name="good")
    )
    (fault,) = bad.faults
    assert (fault.step, fault.reason, fault.transient) == ("fuse", "missing_score", False)
    assert "1 of 2 candidates have no score 'words'" in fault.detail
    assert bad.order == () and good.faults == () and len(good.order) == 2


def test_a_score_that_nobody_wrote_is_a_fault_too():
    q = fused(Fuse(weights={"dense": 1, "nobody": 1}, top=9), A, B)
    assert "2 of 2 candidates have no score 'nobody'" in q.faults[0].detail


def test_missing_zero_and_min_say_what_a_missing_score_is_worth():
    weights = {"dense": 1.0, "words": 1.0}
    zero = fused(
        Fuse(method="weighted", weights=weights, norms={"words": "max"}, missing="zero", top=9), B, C, D
    )
    least = fused(
        Fuse(method="weighted", weights=weights, norms={"words": "max"}, missing="min", top=9), B, C, D
    )
    assert zero.hits[2].scores["fuse"] == pytest.approx(0.95)
    assert least.hits[2].scores["fuse"] == pytest.approx(0.95 + 0.5)
    ranks = fused(Fuse(weights=weights, missing="min", top=9), B, C, D)
    assert ranks.hits[2].scores["fuse"] == pytest.approx(1 / 61 + 1 / 63)


def test_equal_scores_come_in_the_order_of_their_ids():
    assert order(
        fused(Fuse(weights={"x": 1}, method="weighted", top=9), hit("b", x=1.0), hit("a", x=1.0))
    ) == ["a", "b"]


@pytest.mark.parametrize("norm", ["minmax", "max", "none"])
def test_one_hit_and_no_positive_score_have_finite_parts(norm):
    step = Fuse(method="weighted", weights={"x": 1}, norms={"x": norm}, top=9)
    for hits in ((hit("a", x=-2.0),), (hit("a", x=0.0), hit("b", x=0.0)), ()):
        assert all(math.isfinite(h.scores["fuse"]) for h in fused(step, *hits).hits)


def test_a_lexical_only_and_a_semantic_only_hit_both_survive():
    shelf = Shelf({"lexical": "zyzzyva", "semantic": "who wrote the book", "neither": "cats and dogs"})
    q = question("who wrote the zyzzyva book", "lexical", "semantic", "neither")
    (q,) = asked(Bm25(top=1, query="zyzzyva"), shelf, q)
    (q,) = asked(Dense(model=HASH, top=1), shelf, q)
    assert [set(h.scores) for h in q.hits] == [{"bm25"}, {"dense"}]
    (q,) = asked(Fuse(weights={"bm25": 1, "dense": 1}, missing="zero", top=2), shelf, q)
    assert set(q.order) == {chunk(shelf, "lexical"), chunk(shelf, "semantic")}


def test_rows_and_batches_hold():
    asking = [question("?", hits=h, name=str(i)) for i, h in enumerate([(A, B), (), (A, D), (C, B, A)])]
    holds_laws(Fuse(weights={"dense": 1, "words": 1}, top=2), EMPTY, asking)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"weights": {}}, "at least one score"),
        ({"weights": {"a": 0}}, "at least one score"),
        ({"weights": {"a": math.nan}}, "finite"),
        ({"weights": {"a": 1}, "norms": {"a": "max"}}, "method: weighted"),
        ({"weights": {"a": 1}, "norms": {"b": "max"}, "method": "weighted"}, "'b' has no weight"),
        ({"weights": {"a": 1}, "top": 0}, "at least 1"),
    ],
)
def test_nonsense_is_refused_when_the_recipe_is_read(fields, said):
    with pytest.raises(ValueError, match=said):
        Fuse(**{"top": 5, **fields})
