"""`similarity`, `clean` and `embed_document`: columns of scores, and the forms that embedders read."""

import asyncio

import pytest
from shelf import HASH, Shelf, asked, chunk, holds_laws, question

from raypipe.core import arrow
from raypipe.core.records import Hit, Reply, Source, source_id
from raypipe.models.kit import LocalKit
from raypipe.steps.dense import Similarity
from raypipe.steps.embed import EmbedDocument
from raypipe.steps.parse import Clean


def hit(shelf, name, **scores):
    return Hit(chunk(shelf, name), name, (0, len(shelf.of[name])), scores)


def test_every_hit_gets_a_score_and_none_is_added_dropped_or_reordered():
    shelf = Shelf({"a": "red fox", "b": "blue sky", "c": "red fox too"})
    hits = (hit(shelf, "b", bm25=1.0), hit(shelf, "a", dense=0.5))
    [q] = asked(Similarity(model=HASH, into="sfr"), shelf, question("red fox", hits=hits, order=("x",)))
    assert [h.chunk for h in q.hits] == [h.chunk for h in hits] and q.order == ("x",)
    assert [set(h.scores) for h in q.hits] == [{"bm25", "sfr"}, {"dense", "sfr"}]
    assert q.hits[1].scores["sfr"] == pytest.approx(1.0) and q.hits[0].scores["sfr"] < 0.9


def test_a_passage_is_as_near_as_its_best_chunk_and_others_of_its_source_stay_out():
    spans = [((0, 7), (0, 16)), ((8, 16), (0, 16)), ((17, 24), (17, 24))]
    shelf = Shelf({"a": "red fox blue sky red fox"}, {"a": spans})
    there = Hit("a:0-16", "a", (0, 16))
    [q] = asked(Similarity(model=HASH), shelf, question("red fox", hits=(there,)))
    assert [h.chunk for h in q.hits] == ["a:0-16"]
    assert q.hits[0].scores["similarity"] == pytest.approx(1.0)


def test_a_hit_without_a_vector_has_no_score_and_a_question_without_hits_passes():
    shelf = Shelf({"a": "red fox"})
    gone = Hit("zzz:0-3", "zzz", (0, 3))
    full, none = asked(
        Similarity(model=HASH), shelf, question("fox", hits=(gone, hit(shelf, "a"))), question("fox")
    )
    assert full.hits[0].scores == {} and "similarity" in full.hits[1].scores
    assert none.hits == ()


def test_rows_and_batches_hold_and_the_query_is_a_template():
    shelf = Shelf({"a": "red fox", "b": "blue sky"})
    replies = {"r": Reply("blue sky", "answered")}
    rows = [
        question("red fox", name=str(n), hits=(hit(shelf, "a"), hit(shelf, "b")), replies=replies)
        for n in range(3)
    ]
    step = Similarity(model=HASH, query="{{ replies.r }}", into="x")
    out = holds_laws(step, shelf, rows)
    assert out[0].hits[1].scores["x"] == pytest.approx(1.0)
    assert step.reads() == {"hits", "index.vector", "replies.r"} and step.writes() == {"hits.x"}


def table(*contents):
    return arrow.corpus_table([Source(source_id("document", c), "document", c) for c in contents])


def test_clean_gives_title_newline_and_abstract_and_stands_in_for_a_missing_title():
    contents = ("On <i>foxes</i>\n<p>They\nrun.</p>", "\nNo title.", "Title alone\n", "<p></p>\n ")
    out = asyncio.run(Clean().open(LocalKit(None))(table(*contents))).to_pylist()
    assert [r["text"] for r in out] == ["On foxes\nThey run.", "None\nNo title.", "Title alone", ""]
    for r in out:
        kinds = [(b["kind"], r["text"][b["start"] : b["end"]]) for b in r["blocks"]]
        assert kinds == [
            (k, t) for k, t in zip(("title", "paragraph"), r["text"].split("\n"), strict=False) if t
        ]
    page = arrow.corpus_table([Source(source_id("page", "x"), "page", "x")])
    assert asyncio.run(Clean().open(LocalKit(None))(page)).num_rows == 0
    with pytest.raises(ValueError, match="kinds of plain text"):
        Clean(kinds=("page",))


@pytest.mark.parametrize("passage", ["no field", "{{ title }} {{ text }}", "{{ title.upper() }}"])
def test_a_form_of_other_fields_than_title_and_abstract_is_refused(passage):
    with pytest.raises(ValueError):
        EmbedDocument(model=HASH, passage=passage)
