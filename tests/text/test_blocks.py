"""Blocks of a page: the same text, cut where a reader sees a border."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypipe.text.blocks import plain_blocks
from raypipe.text.page_parser import fold, shown, to_text

PAGE = """<title>Emma &amp; co</title><nav><a href=x>Home</a> <a>News</a></nav><h1>Emma</h1>
<p>She <b>said</b> so<br>and left</p>x<ul><li>one<li>two</ul><table><tr><th>Writer<td>Austen</table>
<ul><li><a>Shop</a><li><a>Help</a></ul><p hidden>obey me</p><script>var x</script><p>end"""


def parts(page, text):
    return [(b.kind, text[b.start : b.end]) for b in page]


@pytest.mark.parametrize("via", ["fast", "bs4"])
def test_each_part_of_a_page_has_its_kind(via):
    page = to_text(PAGE, via=via)
    assert parts(page.blocks, page.text) == [
        ("title", "Emma & co"),
        ("menu", "Home News"),
        ("heading", "Emma"),
        ("paragraph", "She said so"),
        ("paragraph", "and left"),
        ("paragraph", "x"),
        ("item", "one"),
        ("item", "two"),
        ("row", "Writer"),
        ("cell", "Austen"),
        ("menu", "Shop"),
        ("menu", "Help"),
        ("paragraph", "obey me"),
        ("paragraph", "end"),
    ]
    assert [page.text[slice(*h)] for h in page.hidden] == ["obey me"]


def covers(blocks, text):
    """Blocks are ascending, apart by one space, and together all of the text."""
    assert " ".join(text[b.start : b.end] for b in blocks) == text


TAGS = [
    "p",
    "/p",
    "b",
    "/b",
    "li",
    "td",
    "table",
    "/table",
    "br",
    "a",
    "/a",
    "nav",
    "/nav",
    "svg",
    "template",
]


@given(st.lists(st.one_of(st.sampled_from([f"<{t}>" for t in TAGS]), st.text(max_size=6)), max_size=30))
def test_any_page_has_its_text_in_blocks(pieces):
    page = to_text("".join(pieces))
    covers(page.blocks, page.text)


@given(st.text(max_size=200), st.booleans())
def test_any_plain_text_is_in_blocks(content, titled):
    covers(plain_blocks(shown(content), titled), fold(content))


def test_a_page_nested_very_deep_and_one_that_carries_marks_keep_their_text():
    deep = to_text("<div>" * 5000 + "x")
    covers(deep.blocks, deep.text)
    marked = to_text("<p>a\ufdd0</p><p>b\ufdd1<p hidden>c")
    assert marked.text.replace("\ufdd0", "").replace("\ufdd1", "") == "a b c"


def test_markdown_and_wrapped_lines():
    text = "# Emma\nA novel\nby Austen.\n\n- one\n- two\n\n| a | b |\n|---|---|\n1. three\nmore"
    assert parts(plain_blocks(text), fold(text)) == [
        ("heading", "# Emma"),
        ("paragraph", "A novel by Austen."),
        ("item", "- one"),
        ("item", "- two"),
        ("row", "| a | b |"),
        ("menu", "|---|---|"),
        ("item", "1. three more"),
    ]


def test_clauses_with_chinese_numerals_are_items():
    lines = [
        "一、范围",
        "本合同适用于双方之间的全部供货以及以后的补充订单和与之有关的服务和文件。",
        "第一条 供方应当在收到订单之日起三十日内交付全部货物并负责运输和保险的费用。",
        "第二十一条\u3000需方应当在验收合格之日起十五日内付清全部货款否则按日支付违约金。",
        "\uff08一\uff09质量标准按照附件执行。附件与正文不一致的以正文为准。双方另有约定的除外。",
        "2、包装费用由供方承担。包装物不予回收。双方可以在订单里面作出其他的约定。",
    ]
    text = "\n".join(lines)
    kinds = ["item", "paragraph", "item", "item", "item", "item"]
    assert [kind for kind, _ in parts(plain_blocks(text), fold(text))] == kinds


def test_a_short_line_ends_its_block_and_a_wrapped_one_does_not():
    wrapped = "The river was longer than anyone of the survey had\nExpected when it set out in the spring\n"
    text = f"Summary\n{wrapped}The end"
    assert [t for _, t in parts(plain_blocks(text), fold(text))] == [
        "Summary",
        "The river was longer than anyone of the survey had Expected when it set out in the spring The end",
    ]


def test_a_first_line_that_is_a_sentence_or_all_there_is_is_no_title():
    for text in ("Emma sold well.\nIt was read.", "Emma"):
        assert all(kind == "paragraph" for kind, _ in parts(plain_blocks(text, titled=True), fold(text)))
