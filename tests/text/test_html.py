"""HTML to text: equal to BeautifulSoup, also on pages that were made to break a parser."""

import bz2
import json
import re
import tarfile
from collections import Counter

import pytest
from bs4 import BeautifulSoup
from pace import within

from raypipe.text.page_parser import fast_text, fold, not_html, to_text


def soup(html, parser="lxml"):
    """BeautifulSoup's text of a page without the places where a word may be broken."""
    return fold(BeautifulSoup(re.sub("(?i)<wbr[^>]*>", "", html), parser).get_text(" ", strip=True))


@pytest.fixture(scope="module")
def questions(data):
    """The search results of the ten real questions."""
    with bz2.open(data / "crag" / "dev_data.jsonl.bz2", "rt", encoding="utf-8") as lines:
        return [[r["page_result"] for r in json.loads(line)["search_results"]] for line in lines]


@pytest.fixture(scope="module")
def pages(questions):
    return list(dict.fromkeys(p for q in questions for p in q if p))


def test_ten_real_questions_have_these_many_distinct_pages(questions):
    assert [len({p for p in q if p}) for q in questions] == [4, 4, 4, 4, 3, 5, 3, 4, 2, 3]


@pytest.mark.slow
def test_the_text_of_every_real_page_equals_beautifulsoups(pages):
    assert len(pages) == 36
    for page in pages:
        parsed = to_text(page)
        assert parsed.way == "fast"
        assert parsed.text == soup(page) == fast_text(page)


def test_the_same_page_gives_the_same_text_twice(pages):
    assert to_text(pages[0]) == to_text(pages[0])


def test_hidden_spans_are_words_of_the_text(pages):
    for page in pages:
        parsed = to_text(page)
        for start, end in parsed.hidden:
            piece = parsed.text[start:end]
            assert piece and piece == piece.strip()
            assert start == 0 or parsed.text[start - 1] == " "
        assert list(parsed.hidden) == sorted(parsed.hidden)


def test_the_blocks_of_every_real_page_are_its_text_cut_in_pieces(pages):
    kinds = set()
    for page in pages:
        parsed = to_text(page)
        assert parsed.blocks and " ".join(parsed.text[b.start : b.end] for b in parsed.blocks) == parsed.text
        kinds |= {b.kind for b in parsed.blocks}
    assert kinds == {"title", "heading", "paragraph", "item", "row", "cell", "menu"}


def code_of(html):
    """How each script and style sheet of any length begins."""
    found = re.findall(r"(?is)<(?:script|style)\b[^>]*>(.*?)</(?:script|style)", html)
    return [code[:100] for code in map(fold, found) if len(code) >= 40]


def shown(page):
    """Two pages carry escaped markup as text in a noscript; it is marked as hidden."""
    ends = [0, *(n for span in page.hidden for n in span), len(page.text)]
    return " ".join(page.text[a:b] for a, b in zip(ends[::2], ends[1::2], strict=True))


@pytest.mark.slow
def test_the_main_text_of_readabilitys_pages_is_kept(data):
    with tarfile.open(data / "html_pages" / "readability_130.tar.xz") as archive:
        files = {m.name: archive.extractfile(m).read().decode() for m in archive if m.name.endswith("l")}
    sources = {n.removesuffix("source.html"): h for n, h in files.items() if n.endswith("source.html")}
    assert len(sources) == 130
    wanted, kept = Counter(), Counter()
    for name, html in sources.items():
        words = Counter(to_text(files[f"{name}expected.html"]).text.split())
        parsed = to_text(html)
        assert not any(code in shown(parsed) for code in code_of(html))
        wanted += Counter({name: words.total()})
        kept += Counter({name: (words & Counter(parsed.text.split())).total()})
    assert kept.total() / wanted.total() >= 0.99
    assert min(kept[n] / wanted[n] for n in wanted) >= 0.99


PIECES = {
    "adjacent cells do not fuse": ("<table><tr><td>a<td>b</table>", "a b"),
    "inline elements are apart": ("x<b>y</b>z", "x y z"),
    "comments and declarations go": ("<!doctype html><?php x ?>a<!-- no -->b", "a b"),
    "scripts, styles and templates go": (
        "a<script>no</script><style>no</style><template>no</template>b",
        "a b",
    ),
    "ruby readings go": ("<ruby>a<rp>(</rp><rt>no</rt><rp>)</rp></ruby>b", "a b"),
    "noscript stays": ("<p>a<noscript>b</noscript>", "a b"),
    "entities become characters": ("a&nbsp;b &amp;amp; &#8212; &copy; &nosuch;", "a b &amp; — © &nosuch;"),
    "an unclosed comment ends the page": ("a<!-- b", "a"),
    "an unclosed script ends the page": ("a<script>b = 1", "a"),
    "emoji, joiners and right-to-left stay": ("<p>👩‍👩‍👧 שלום مرحبا", "👩‍👩‍👧 שלום مرحبا"),
    "an end of a paragraph or a break that none began breaks no word": (
        "<p>x<div>y</div>wo</p>rd</br>s<p></p>z<p title=a>",
        "x y words z",
    ),
    "a place where a word may be broken breaks none": (
        "<td>Donau<wbr>dampf<WBR/>schiff <b>a<wbr></b>b",
        "Donaudampfschiff a b",
    ),
    "a byte order mark goes": ("\ufeff<p>a", "a"),
    "a charset that lies changes nothing": ("<meta charset=utf-16><p>é", "é"),
}


@pytest.mark.parametrize("html, text", PIECES.values(), ids=PIECES)
def test_what_is_text_and_what_is_not(html, text):
    assert to_text(html).text == to_text(html, via="bs4").text == text


@pytest.mark.parametrize("via", ["fast", "bs4"])
def test_words_are_joined_under_three_thousand_levels(via):
    html = "<div>" * 3_000 + "Donau<wbr>dampf<wbr><wbr>schiff<!-- c --> b<wbr>"
    assert to_text(html, via=via).text == "Donaudampfschiff b"


@pytest.mark.parametrize("via", ["fast", "bs4"])
def test_what_no_table_can_store_never_comes_out(via):
    assert to_text("<p>a\0b \ud800", via=via).text == "ab \ufffd"
    assert to_text("<p>a&#0;&#xD800;b", via=via).text.encode()


def test_html_parser_speaks_for_itself():
    html = "<p>a<table>b<td>c"
    assert to_text(html, "html.parser", "bs4").text == soup(html, "html.parser")
    with pytest.raises(ValueError, match="via: bs4"):
        to_text(html, "html.parser", "fast")


LOSES = {
    "beside frames": "<frameset>kept<frame></frameset><noframes>b</noframes>",
    "after a script that ends at its start": "<script src=x />kept<p></p><script></script>",
    "after a template without an end": "<div><template>no</div>kept",
    "in the title of an svg": "<svg><title>a<b>kept</b></title></svg>",
    "after a frame that ends at its start": "<iframe src=x /><p>kept</p>",
}


@pytest.mark.parametrize("html", LOSES.values(), ids=LOSES)
def test_a_page_that_the_fast_way_may_cut_goes_to_beautifulsoup(html):
    parsed = to_text(html)
    assert parsed.way == "fallback" and "kept" in parsed.text
    assert parsed.text == soup(html)
    assert fast_text(html) is None


def test_a_compared_page_says_whether_both_agree():
    assert to_text("<p>a", compare=True).way == "compared"
    differs = to_text("<p>wo<tr>rd", compare=True)
    assert (differs.way, differs.text) == ("fallback", "wo rd")
    assert to_text("<p>wo<tr>rd").text == "word"


def test_an_empty_text_is_believed_only_of_two():
    assert to_text("").way == "fast"
    assert to_text("<p><img src=x>").way == "compared"
    assert to_text("<p><img src=x>").text == ""


N = 100_000
HOSTILE = {
    "34 nested div": ("<div>x" * N + "end", "end"),
    "35 unclosed font": ("<font>" * (10 * N) + "end", "end"),
    "37 entities": ("&amp;" * N + "end", "end"),
    "38 attributes": ("<p " + " ".join(f"a{i}=1" for i in range(N)) + ">end", "end"),
    "39 one token": ("w" * 10_000_000 + " end", "end"),
    "40 unclosed comment": ("end<!--" + "-" * N, "end"),
    "41 unclosed script": ("end<script>" + "<" * N, "end"),
    "42 CDATA": ("<![CDATA[x]]>" * N + "end", "end"),
    "43 foster parents": ("<table>" + "x<b>" * 300 + "<tr><td>end", "end"),
    "44 adoption agency": ("<a><p>" * 3000 + "end", "end"),
}


@pytest.mark.parametrize("html, last", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_page_keeps_its_text_in_time(html, last):
    with within(40):
        assert last in to_text(html).text[-2000:]


def test_a_binary_file_is_no_page():
    assert not_html("%PDF-1.4\n1 0 obj") and not_html("\ufeff \n%PDF-1.7")
    assert not_html("<\0h\0t\0m\0l\0>\0" * 20)
    assert not_html(bytes(range(256)).decode("utf-8", "replace") * 4)
    assert not_html("PK\x03\x04 word/document.xml")


def test_a_page_with_a_wrong_charset_is_still_a_page():
    cyrillic = ("<html><head><title>Привет, мир</title></head><body><p>" + "Слова и слова. " * 5).encode(
        "cp1251"
    )
    assert not_html(cyrillic.decode("utf-8", "replace")) is None
    assert not_html("") is None and not_html("plain words") is None
