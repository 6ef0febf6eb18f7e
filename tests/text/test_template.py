import pytest

from raypipe.core.records import Question, Reply
from raypipe.text.template import query_reads, query_renderer

ASKED = Question(
    "q",
    "who wrote emma",
    body="a novel",
    replies={"items": Reply("jane austen", "answered"), "kg": Reply("", "skipped")},
)


@pytest.mark.parametrize(
    ("template", "reads", "query"),
    [
        ("{{ text }}", {"text"}, "who wrote emma"),
        ("{{ text }} {{ body }}", {"text", "body"}, "who wrote emma a novel"),
        ("{{ replies.items }}", {"replies.items"}, "jane austen"),
        ("{{ replies['items'] | upper }}", {"replies.items"}, "JANE AUSTEN"),
        ("{{ replies.kg or text }}", {"replies.kg", "text"}, "who wrote emma"),
        ("{% if body %}{{ body }}{% else %}{{ text }}{% endif %}", {"text", "body"}, "a novel"),
        ("constant", set(), "constant"),
    ],
)
def test_a_template_says_what_it_reads_and_renders_only_that(template, reads, query):
    assert query_reads(template) == reads
    assert query_renderer(template)(ASKED) == query


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ text ", "no query template"),
        ("{{ answer }}", "uses answer"),
        ("{{ text | shout }}", "shout"),
        ("{{ text.upper() }}", "calls or looks into"),
        ("{{ text[0] }}", "calls or looks into"),
        ("{{ ''.__class__ }}", "calls or looks into"),
        ("{{ replies }}", "must name the reply"),
        ("{{ replies[text] }}", "must name the reply"),
        ("{{ replies.__class__ }}", "must name the reply"),
        ("{{ body | first }}", "no query template"),  # fails on an empty body
        ("{{ text + 1 }}", "no query template"),
        ("{{ 1 / (body | length) }}", "no query template"),
    ],
)
def test_a_template_that_could_fail_on_a_row_is_refused_when_it_is_read(template, said):
    with pytest.raises(ValueError, match=said) as caught:
        query_reads(template)
    assert "may use text, body and replies.NAME" in str(caught.value)
