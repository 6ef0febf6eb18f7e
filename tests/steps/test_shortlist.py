import asyncio
from dataclasses import replace

import numpy as np
import pytest
from shelf import HASH, OVERLAP, Shelf, asked, holds_laws

from raypipe.core.records import Citation, Question
from raypipe.models.kit import LocalKit
from raypipe.steps.dense import Dense
from raypipe.steps.rerank import Shortlist

SNIPPETS = {
    "s0": "cooking with garlic",
    "s1": "who wrote emma",
    "s2": "emma is a novel",
    "s3": "the weather of next week",
    "s4": "jane austen wrote emma in 1815",
}
PAGES = {f"p{i}": f"full text of page {i}, which says who wrote what" for i in range(5)}
SHELF = Shelf({**PAGES, **SNIPPETS, "n0": "a name"})


def cited(*parts: tuple[str | None, str | None], name: str = "q") -> Question:
    """A question with one citation per (page, snippet)."""
    citations = tuple(
        Citation(name, i, f"https://{i}.example", "", p, s, "n0") for i, (p, s) in enumerate(parts)
    )
    return Question(name, "who wrote emma", citations=citations)


FIVE = cited(*((f"p{i}", f"s{i}") for i in range(5)))


def pages(q: Question) -> list[str | None]:
    return [c.page for c in q.citations]


def test_the_pages_with_the_best_snippets_stay_and_the_others_keep_their_snippets():
    (q,) = asked(Shortlist(model=OVERLAP, pages=2), SHELF, FIVE)
    assert pages(q) == [None, "p1", None, None, "p4"]
    assert [c.snippet for c in q.citations] == ["s0", "s1", "s2", "s3", "s4"]
    assert [c.name for c in q.citations] == [None, "n0", None, None, "n0"]
    assert [c.rank for c in q.citations] == [0, 1, 2, 3, 4]


def test_fifty_pages_become_five_and_recall_sees_no_sixth_but_every_snippet():
    texts = {f"p{i}": f"page {i} about emma" for i in range(50)} | {
        f"s{i}": f"snippet {i} emma" for i in range(50)
    }
    asking = cited(*((f"p{i}", f"s{i}") for i in range(50)))
    shelf = Shelf(texts)
    (q,) = asked(Shortlist(model=OVERLAP, pages=5), shelf, asking)
    kept = {p for p in pages(q) if p is not None}
    assert len(kept) == 5
    (q,) = asked(Dense(model=HASH, top=200), shelf, q)
    assert {h.source for h in q.hits} == kept | {f"s{i}" for i in range(50)}


def test_a_question_with_few_pages_or_none_of_its_own_stays_as_it_is():
    few = cited(("p0", "s0"), ("p1", None), ("p0", "s2"))
    whole = Question("w", "who wrote emma")
    none = Question("n", "who wrote emma", citations=())
    assert asked(Shortlist(model=OVERLAP, pages=2), SHELF, few, whole, none) == [few, whole, none]


def test_a_page_cited_twice_counts_once_by_its_best_snippet_and_stays_in_both_places():
    q = cited(("p0", "s3"), ("p1", "s2"), ("p0", "s1"), ("p2", "s0"))
    (q,) = asked(Shortlist(model=OVERLAP, pages=1), SHELF, q)
    assert pages(q) == ["p0", None, "p0", None]


def test_pages_without_a_snippet_come_last_in_rank_order():
    q = cited(("p0", None), ("p1", "gone"), ("p2", "s3"), ("p3", None))
    (q,) = asked(Shortlist(model=OVERLAP, pages=2), SHELF, q)
    assert pages(q) == ["p0", None, "p2", None]


def test_a_citation_without_a_page_takes_no_place():
    q = cited((None, "s1"), ("p1", "s4"), ("p2", "s3"))
    (q,) = asked(Shortlist(model=OVERLAP, pages=1), SHELF, q)
    assert pages(q) == [None, "p1", None] and q.citations[0].snippet == "s1"


@pytest.mark.parametrize(("lower", "kept"), [(True, "p1"), (False, "p0")])
def test_snippets_are_read_in_lower_case_where_that_is_asked_for(lower, kept):
    class Cased(LocalKit):
        """Its reranker tells cases apart, as published ones do."""

        def reranker(self, model):
            async def score(pairs):
                return np.array([len(set(q.split()) & set(p.split())) for q, p in pairs], np.float32)

            return score

    kit = Cased(None).with_index(Shelf({**PAGES, "s0": "emma", "s1": "WHO WROTE EMMA"}))
    step = Shortlist(model=OVERLAP, pages=1, lower=lower)
    [q] = asyncio.run(step.open(kit)([cited(("p0", "s0"), ("p1", "s1"))]))
    assert [p for p in pages(q) if p is not None] == [kept]


def test_rows_and_batches_hold():
    others = [replace(FIVE, id="a"), cited(("p0", "s1"), name="b"), replace(FIVE, id="c", text="garlic")]
    holds_laws(Shortlist(model=OVERLAP, pages=2), SHELF, others)


def test_it_says_what_it_reads_and_refuses_nonsense():
    step = Shortlist(model=OVERLAP, pages=2, query="{{ replies.kg }}")
    assert step.reads() == {"replies.kg", "citations", "index.text"}
    assert step.writes() == {"citations"}
    with pytest.raises(ValueError, match="at least 1"):
        Shortlist(model=OVERLAP, pages=0)
    with pytest.raises(ValueError, match="uses txt"):
        Shortlist(model=OVERLAP, pages=1, query="{{ txt }}")


def test_without_a_model_the_first_pages_stay_whatever_their_snippets_say():
    first = Shortlist(pages=2)
    (q,) = asked(first, SHELF, FIVE)
    assert pages(q) == ["p0", "p1", None, None, None]
    assert [c.snippet for c in q.citations] == ["s0", "s1", "s2", "s3", "s4"]
    (q,) = asked(first, SHELF, cited(("p0", "s0"), (None, "s1"), ("p0", "s2"), ("p3", "s3"), ("p4", "s4")))
    assert pages(q) == ["p0", None, "p0", "p3", None]
    assert first.reads() == {"citations"}
    holds_laws(first, SHELF, [FIVE, cited(("p1", "s1"))])
