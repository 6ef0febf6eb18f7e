import pytest
from shelf import HASH, Shelf, asked, chunk, holds_laws, question

from raypipe.core.digests import identifying
from raypipe.core.index import Approximate
from raypipe.core.records import Hit, Reply, chunk_id
from raypipe.steps.dense import Dense

FILLER = "a line about nothing of interest here at all ."


def parents(n: int, planted: int) -> tuple[str, list]:
    """A text of n parents with four children each; one child of one parent says where the treasure is."""
    children = [FILLER] * (4 * n)
    children[4 * planted + 2] = "the golden treasure lies under zanzibar"
    starts, at = [], 0
    for c in children:
        starts.append(at)
        at += len(c) + 1
    spans = [(s, s + len(c)) for s, c in zip(starts, children, strict=True)]
    chunks = [(spans[i], (spans[i - i % 4][0], spans[i - i % 4 + 3][1])) for i in range(4 * n)]
    return " ".join(children), chunks


def test_a_sentence_planted_in_parent_17_is_found_by_its_child_and_comes_as_the_parent():
    text, chunks = parents(40, planted=17)
    shelf = Shelf({"page": text}, {"page": chunks})
    (q,) = asked(Dense(model=HASH, top=50), shelf, question("where is the golden treasure", "page"))
    parent = chunks[17 * 4][1]
    assert q.hits[0] == Hit(chunk_id("page", parent), "page", parent, q.hits[0].scores)
    assert "golden treasure" in text[slice(*q.hits[0].span)]
    assert len({h.chunk for h in q.hits}) == len(q.hits) <= 50
    scores = [h.scores["dense"] for h in q.hits]
    assert scores == sorted(scores, reverse=True)


def test_top_counts_chunks_so_a_parent_with_several_good_children_leaves_fewer_passages():
    shelf = Shelf(
        {"p": "red fox. red fox. blue sky."},
        {"p": [((0, 8), (0, 17)), ((9, 17), (0, 17)), ((18, 27), (18, 27))]},
    )
    (q,) = asked(Dense(model=HASH, top=2), shelf, question("red fox", "p"))
    assert [h.span for h in q.hits] == [(0, 17)]
    assert q.hits[0].scores["dense"] == pytest.approx(1.0)


def test_only_the_questions_own_sources_are_searched_unless_it_has_none():
    shelf = Shelf({"a": "red fox", "b": "red fox too", "c": "blue sky"})
    own, whole = asked(
        Dense(model=HASH, top=9), shelf, question("red fox", "b", "missing"), question("red fox")
    )
    assert [h.source for h in own.hits] == ["b"]
    assert {h.source for h in whole.hits} == {"a", "b", "c"}


def test_among_gives_the_nearest_of_a_pool_and_nothing_that_is_nearer_outside_it():
    children = [((0, 7), (0, 16)), ((8, 16), (0, 16)), ((17, 24), (17, 24))]
    shelf = Shelf({"a": "red fox blue sky red fox", "b": "green fox", "c": "red fox"}, {"a": children})
    parent, other = (chunk_id("a", span) for span in ((0, 16), (17, 24)))
    pool = tuple(
        Hit(c, s, span, {name: 1.0})
        for c, s, span, name in (
            (parent, "a", (0, 16), "pages"),
            (chunk(shelf, "b"), "b", (0, 9), "snippets"),
            (chunk(shelf, "c"), "c", (0, 7), "something"),
        )
    )
    step = Dense(model=HASH, top=3, among=("pages", "snippets"))
    [q] = asked(step, shelf, question("red fox", "a", "b", "c", hits=pool))
    near = {h.chunk: h.scores["dense"] for h in q.hits if "dense" in h.scores}
    assert near.keys() == {parent, chunk(shelf, "b")} and other not in {h.chunk for h in q.hits}
    assert near[parent] == pytest.approx(1.0), "as near as its best chunk"
    [one] = asked(
        Dense(model=HASH, top=1, among=("pages", "snippets")), shelf, question("fox", "a", hits=pool)
    )
    assert sum("dense" in h.scores for h in one.hits) == 1
    [none] = asked(step, shelf, question("red fox", "a"))
    assert none.hits == () and step.reads() >= {"hits", "hits.pages", "hits.snippets"}


def test_recall_joins_the_hits_that_are_there_and_leaves_their_scores_and_the_order():
    shelf = Shelf({"a": "red fox", "b": "blue sky"})
    there = Hit(chunk(shelf, "b"), "b", (0, 8), {"bm25": 2.0})
    before = question("red fox", "a", "b", hits=(there,), order=(there.chunk,))
    (q,) = asked(Dense(model=HASH, top=9, into="minilm"), shelf, before)
    assert [h.chunk for h in q.hits] == [there.chunk, chunk(shelf, "a")]
    assert q.hits[0].scores.keys() == {"bm25", "minilm"} and q.hits[0].scores["bm25"] == 2.0
    assert q.order == (there.chunk,)


def test_a_rewritten_query_is_what_is_searched_for():
    shelf = Shelf({"a": "red fox", "b": "blue sky"})
    q = question("red fox", "a", "b", replies={"rewrite": Reply("blue sky", "answered")})
    (q,) = asked(Dense(model=HASH, top=1, query="{{ replies.rewrite }}"), shelf, q)
    assert [h.source for h in q.hits] == ["b"]


def test_two_recalls_are_the_union_of_their_lists():
    text, chunks = parents(30, planted=3)
    shelf = Shelf({"page": text}, {"page": chunks})
    asking = question("golden treasure", "page", replies={"r": Reply("nothing of interest here", "answered")})
    first = Dense(model=HASH, top=20, into="one")
    second = Dense(model=HASH, top=20, into="two", query="{{ replies.r }}")
    (one,), (two,) = asked(first, shelf, asking), asked(second, shelf, asking)
    (both,) = asked(second, shelf, one)
    assert {h.chunk for h in both.hits} == {h.chunk for h in one.hits} | {h.chunk for h in two.hits}


def test_rows_and_batches_hold():
    shelf = Shelf({"a": "red fox", "b": "blue sky", "c": "a fox in the sky"})
    asking = [
        question("fox", "a", "b", name="1"),
        question("sky", name="2"),
        question("sky", "zzz", name="3"),
    ]
    out = holds_laws(Dense(model=HASH, top=2), shelf, asking)
    assert out[2].hits == ()


def test_it_says_what_it_reads_and_writes():
    step = Dense(model=HASH, top=5, query="{{ text }} {{ replies.kg }}", into="x")
    assert step.reads() == {"text", "replies.kg", "citations", "index.vector"}
    assert step.writes() == {"hits", "hits.x"}


def test_an_approximate_index_is_asked_for_the_whole_store_and_never_for_own_sources():
    asked_for = []

    class Indexed(Shelf):
        async def near(self, model, vectors, top, how):
            asked_for.append((len(vectors), top, how))
            return await self.search(model, vectors, [None] * len(vectors), top)

    how = Approximate(index="ivf_rq", probes=3, refine=2, min_recall=0.5)
    shelf = Indexed({"a": "red fox", "b": "blue sky", "c": "green tree"})
    questions = [
        question("red fox", name="1"),
        question("blue sky", "b", name="2"),
        question("green tree", name="3"),
    ]
    found = asked(Dense(model=HASH, top=2, ann=how), shelf, *questions)
    assert found == asked(Dense(model=HASH, top=2), shelf, *questions)
    assert asked_for == [(2, 2, how)]
    with pytest.raises(ValueError, match="ann: expected without `among`"):
        Dense(model=HASH, top=2, ann=how, among=("bm25",))
    with pytest.raises(ValueError, match="where: expected without `among`"):
        Dense(model=HASH, top=2, where="team = 'hr'", among=("bm25",))


def test_a_field_that_came_later_is_in_the_digest_only_where_it_says_something():
    how = Approximate(index="ivf_rq", probes=3, refine=2, min_recall=0.5)
    assert "ann" not in identifying(Dense(model=HASH, top=2))
    assert identifying(Dense(model=HASH, top=2, ann=how))["ann"] == how
