import asyncio

import pytest
from shelf import OVERLAP, Shelf, asked, chunk, holds_laws, question

from raypipe.core.records import Hit
from raypipe.models.fake import OverlapReranker
from raypipe.models.kit import LocalKit
from raypipe.steps.rerank import Rerank

TEXTS = {
    f"s{i}": t
    for i, t in enumerate(["cats", "who wrote it", "emma", "jane austen wrote emma", "rain", "who"])
}
SHELF = Shelf(TEXTS)


def ranked(text: str, *sources: str, name: str = "q"):
    hits = tuple(Hit(chunk(SHELF, s), s, (0, len(TEXTS[s])), {"fuse": 1.0}) for s in sources)
    return question(text, *sources, name=name, hits=hits, order=tuple(h.chunk for h in hits))


ASKED = ranked("who wrote emma", *TEXTS)


def sources(q) -> list[str]:
    return [c.split(":")[0] for c in q.order]


def test_the_order_is_that_of_the_models_scores():
    (q,) = asked(Rerank(model=OVERLAP, top=9), SHELF, ASKED)
    scores = OverlapReranker().score([("who wrote emma", t) for t in TEXTS.values()])
    by_source = dict(zip(TEXTS, map(float, scores), strict=True))
    assert {h.source: h.scores["rerank"] for h in q.hits} == by_source
    assert sources(q) == sorted(TEXTS, key=lambda s: (-by_source[s], s))
    assert all(h.scores["fuse"] == 1.0 for h in q.hits)


def test_top_cuts_and_a_top_above_the_number_of_passages_returns_all():
    (cut,) = asked(Rerank(model=OVERLAP, top=2), SHELF, ASKED)
    (all_,) = asked(Rerank(model=OVERLAP, top=500), SHELF, ASKED)
    assert cut.order == all_.order[:2] and len(all_.order) == 6


def test_only_the_first_candidates_are_scored():
    (q,) = asked(Rerank(model=OVERLAP, top=2, candidates=3), SHELF, ASKED)
    assert [h.source for h in q.hits if "rerank" in h.scores] == ["s0", "s1", "s2"]
    assert sources(q) == ["s1", "s2"]


def test_the_shortcut_leaves_few_passages_in_their_order_and_unscored():
    few, many = ranked("who", "s0", "s5"), ranked("who", "s0", "s5", "s1", name="m")
    step = Rerank(model=OVERLAP, top=2, shortcut=True)
    out = asked(step, SHELF, few, many)
    assert out[0] == few
    assert sources(out[1]) == ["s5", "s1"]
    (scored,) = asked(Rerank(model=OVERLAP, top=2), SHELF, few)
    assert sources(scored) == ["s5", "s0"]


def test_rows_hold_and_batches_do_not_change_the_result():
    asking = [
        ASKED,
        ranked("emma", "s3", "s2", name="b"),
        ranked("rain", name="c"),
        ranked("rain", "s4", name="d"),
    ]
    holds_laws(Rerank(model=OVERLAP, top=3, candidates=4), SHELF, asking)


def test_it_says_what_it_reads_and_refuses_nonsense():
    step = Rerank(model=OVERLAP, top=3, into="bge")
    assert step.reads() == {"text", "hits", "order", "index.text"} and step.writes() == {"order", "hits.bge"}
    with pytest.raises(ValueError, match="candidates: expected at least top"):
        Rerank(model=OVERLAP, top=3, candidates=2)


def test_a_model_can_be_given_passages_in_lower_case_and_their_text_stays():
    shelf = Shelf({"a": "Who Wrote EMMA", "b": "Emma"})
    hits = tuple(Hit(chunk(shelf, s), s, (0, len(shelf.of[s])), {}) for s in shelf.of)
    q = question("who wrote emma", *shelf.of, hits=hits, order=tuple(h.chunk for h in hits))
    seen = []

    class Kit(LocalKit):
        def reranker(self, model):
            score = super().reranker(model)

            async def noting(pairs):
                seen.extend(p for _, p in pairs)
                return await score(pairs)

            return noting

    for lower in (True, False):
        asyncio.run(Rerank(model=OVERLAP, top=2, lower=lower).open(Kit(shelf))([q]))
    assert seen == ["who wrote emma", "emma", "Who Wrote EMMA", "Emma"]
