"""Every record comes back from Arrow as it went in."""

from hypothesis import given, settings
from hypothesis import strategies as st

from raypipe.core import arrow
from raypipe.core.records import (
    Citation,
    Document,
    Fault,
    Gold,
    Hit,
    Question,
    Quote,
    Reply,
    Source,
    chunk_id,
    digest,
    parse_chunk_id,
    source_id,
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ids = st.binary(min_size=16, max_size=16).map(bytes.hex)
maybe = st.none() | ids
number = st.floats(allow_nan=False)
span = st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
citations = st.builds(Citation, text, st.integers(0, 99), text, text, maybe, maybe, maybe)
hits = st.builds(Hit, text, ids, span, st.dictionaries(text, number, max_size=3))
quotes = st.lists(st.builds(Quote, ids, span), max_size=2).map(tuple)
faults = st.builds(Fault, text, text, text, st.booleans())
replies = st.builds(Reply, text, text, st.none() | number, st.none() | number, quotes, st.none() | faults)
questions = st.builds(
    Question,
    text,
    text,
    text,
    text,
    st.none() | st.lists(citations, max_size=3).map(tuple),
    st.dictionaries(text, replies, max_size=2),
    st.lists(hits, max_size=3).map(tuple),
    st.lists(text, max_size=3).map(tuple),
    text,
    st.sampled_from(["", "answered", "abstained", "false_premise", "fault"]),
    text,
    st.lists(faults, max_size=2).map(tuple),
    st.lists(text, max_size=2).map(tuple),
    st.none() | number,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(questions, max_size=3))
def test_questions_survive_the_round_trip(rows):
    table = arrow.question.table(rows)
    assert table.schema == arrow.QUESTIONS
    assert arrow.question.records(table) == rows


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.builds(Source, ids, st.sampled_from(["page", "snippet", "name", "document"]), text), max_size=3
    ),
    st.lists(citations, max_size=3),
    st.lists(st.builds(Document, text, text, ids), max_size=3),
    st.lists(
        st.builds(Gold, text, st.lists(text, max_size=3).map(tuple), st.dictionaries(text, text)), max_size=3
    ),
)
def test_the_other_records_survive_the_round_trip(sources, cites, documents, golds):
    for codec, rows in (
        (arrow.source, sources),
        (arrow.citation, cites),
        (arrow.document, documents),
        (arrow.gold, golds),
    ):
        assert codec.records(codec.table(rows)) == rows


def test_a_passage_id_says_where_its_text_is():
    assert parse_chunk_id(chunk_id("ab:c", (3, 14))) == ("ab:c", (3, 14))


def test_equal_content_of_another_kind_is_another_source():
    assert source_id("page", "x") != source_id("snippet", "x")
    assert digest("ab", "c") != digest("a", "bc")
