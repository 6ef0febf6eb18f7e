import math

import pytest
from rank_bm25 import BM25Okapi
from shelf import Shelf, asked, chunk, holds_laws, question

from raypipe.core.records import Citation, Question
from raypipe.steps.bm25 import Keywords
from raypipe.text.words import analyse

THREE = Shelf({"a": "the cat sat on the mat", "b": "the dog barks", "c": "a cat and a dog and another cat"})


def scores(q, name="keywords"):
    return {h.source: h.scores[name] for h in q.hits}


def test_scores_on_three_documents_equal_the_formula_by_hand():
    words = {s: analyse(t, "stems")[0] for s, t in THREE.of.items()}
    (cat,) = analyse("cat", "stems")[0]
    mean = sum(map(len, words.values())) / 3
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    expected = {}
    for s in ("a", "c"):
        f = int((words[s] == cat).sum())
        expected[s] = idf * f * 2.2 / (f + 1.2 * (0.25 + 0.75 * len(words[s]) / mean))
    (q,) = asked(Keywords(top=9), THREE, question("cats", "a", "b", "c"))
    assert scores(q) == pytest.approx(expected, abs=1e-12)
    assert q.order == ()


def test_okapi_scores_equal_rank_bm25_over_the_questions_own_sources():
    texts = {f"s{i}": " ".join(f"w{(i * j) % 11}" for j in range(1, 4 + i)) for i in range(12)}
    shelf = Shelf(texts)
    own = [f"s{i}" for i in range(8)]
    (q,) = asked(Keywords(top=99, variant="okapi"), shelf, question("w0 w3 w3 w7 nowhere", *own))
    docs = [analyse(texts[s], "stems")[0].tolist() for s in own]
    query = analyse("w0 w3 w3 w7 nowhere", "stems")[0].tolist()
    expected = dict(zip(own, BM25Okapi(docs).get_scores(query), strict=True))
    found = scores(q)
    assert found == pytest.approx({s: expected[s] for s in found}, abs=1e-9)
    assert all(expected[s] == 0 for s in set(own) - set(found))


def test_equal_scores_come_in_the_order_of_their_ids_and_top_cuts_there():
    shelf = Shelf({s: "one red fox" for s in "dbca"})
    (q,) = asked(Keywords(top=2), shelf, question("fox", *"dbca"))
    assert [h.chunk for h in q.hits] == [chunk(shelf, "a"), chunk(shelf, "b")]


@pytest.mark.parametrize("variant", ["lucene", "okapi"])
def test_no_words_no_passages_and_no_match_give_no_hits(variant):
    step = Keywords(top=5, variant=variant)
    for asking in (question("zebra", "a", "b"), question("?!", "a"), question("cat", "nowhere")):
        assert asked(step, THREE, asking)[0].hits == ()


def cited(text, **fields):
    """A question with one citation that brings a page, its snippet and its name."""
    return Question("q", text, citations=(Citation("q", 0, "u", "", "page", "snippet", "name"),), **fields)


KINDS = Shelf({"page": "a cat and a cat", "snippet": "a cat", "name": "the cat on a page", "other": "cat"})


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ((), "page snippet name"),
        (("page",), "page"),
        (("snippet", "name"), "snippet name"),
        (("name",), "name"),
    ],
)
def test_kinds_narrow_what_is_found_and_leave_its_score(kinds, found):
    everything = scores(asked(Keywords(top=9), KINDS, cited("cats"))[0])
    some = scores(asked(Keywords(top=9, kinds=kinds), KINDS, cited("cats"))[0])
    assert some == {s: everything[s] for s in found.split()}


def test_top_counts_what_is_of_the_kind():
    [q] = asked(Keywords(top=1, kinds=("name",)), KINDS, cited("cats"))
    assert scores(q).keys() == {"name"}


@pytest.mark.parametrize(("kinds", "found"), [(("page",), 3), (("snippet", "name"), 0)])
def test_what_no_question_cites_is_a_page(kinds, found):
    [q] = asked(Keywords(top=9, kinds=kinds), THREE, question("cat dog"))
    assert len(q.hits) == found


def test_among_finds_only_hits_that_an_earlier_step_scored():
    pools = [Keywords(top=1, kinds=("page",), into="pages"), Keywords(top=1, kinds=("name",), into="names")]
    [q] = [cited("cats")]
    for step in (
        *pools,
        Keywords(top=1, among=("pages", "names")),
        Keywords(top=9, among=("names",), into="of"),
    ):
        [q] = asked(step, KINDS, q)
    assert [h.source for h in q.hits] == ["page", "name"]
    assert {h.source for h in q.hits if "keywords" in h.scores} == {"page"}
    assert {h.source for h in q.hits if "of" in h.scores} == {"name"}
    assert q.hits[0].scores["keywords"] == q.hits[0].scores["pages"], "a passage has one score"
    assert Keywords(top=1, among=("pages",)).reads() >= {"hits", "hits.pages"}


def test_a_scope_is_fetched_once_per_batch():
    shelf = Shelf(THREE.of)
    asked(Keywords(top=2), shelf, *(question(t) for t in ("cat", "dog", "mat")), question("cat", "a"))
    assert shelf.asked_words == 2


def test_rows_and_batches_hold():
    asking = [question("cat", "a", "c", name="1"), question("dog", name="2"), question("", name="3")]
    holds_laws(Keywords(top=2), THREE, asking)


def test_it_says_what_it_reads_and_writes():
    assert Keywords(top=5).reads() == {"text", "citations", "index.words_stems"}
    assert Keywords(top=5, into="bm25").writes() == {"hits", "hits.bm25"}
