import pytest

from raypipe.core.records import Block
from raypipe.text.blocks import plain_blocks
from raypipe.text.candidates import MAX_CHARS, SourceText, candidates
from raypipe.text.page_parser import fold, to_text

TEXT = "Emma is a novel. Jane Austen wrote it in 1815. It was read widely. Few books were read more."


def found(*spans, text=TEXT, blocks=(), hidden=(), most=None):
    return candidates((("s", span) for span in spans), {"s": SourceText(text, blocks, hidden)}, most)


def texts(*spans, **page):
    return [s.text for s in found(*spans, **page)]


def laid_out(*parts):
    """A text of blocks (kind, text), and the blocks."""
    text, blocks = "", []
    for kind, part in parts:
        start = len(text) + bool(text)
        text = f"{text} {part}" if text else part
        blocks.append(Block(start, start + len(part), kind))
    return text, tuple(blocks)


def test_sentences_keep_their_place_in_the_source():
    some = found((17, len(TEXT)))
    assert [s.text for s in some] == [
        "Jane Austen wrote it in 1815.",
        "It was read widely.",
        "Few books were read more.",
    ]
    assert all(TEXT[slice(*s.span)] == s.text and s.source == "s" for s in some)


def test_a_sentence_that_the_end_of_a_passage_cuts_is_whole_where_most_of_it_is_inside():
    assert texts((17, 40)) == ["Jane Austen wrote it in 1815."]
    assert texts((0, 25)) == ["Emma is a novel."]
    whole = sorted(texts((0, len(TEXT))))
    for cut in range(18, 60):
        assert sorted(texts((cut - 5, len(TEXT)), (0, cut))) == whole


def test_no_sentence_crosses_a_block():
    text, blocks = laid_out(("paragraph", "Emma sold well and"), ("paragraph", "the mill burned down"))
    assert texts((0, len(text)), text=text) == ["Emma sold well and the mill burned down"]
    assert texts((0, len(text)), text=text, blocks=blocks) == ["Emma sold well and", "the mill burned down"]


def test_headings_and_menus_are_no_candidates_but_say_as_a_title_does_what_one_stands_under():
    text, blocks = laid_out(
        ("title", "Emma, a novel"),
        ("menu", "Home News"),
        ("heading", "Reception"),
        ("paragraph", "It sold well."),
    )
    some = found((0, len(text)), text=text, blocks=blocks)
    assert [(s.text, s.kind) for s in some] == [("Emma, a novel", "title"), ("It sold well.", "paragraph")]
    assert some[1].around == "Emma, a novel Reception"
    late = found((text.index("It sold"), len(text)), text=text, blocks=blocks)
    assert late[0].around == "Emma, a novel Reception", "a heading above the passage counts"


def facts(page, titled=True):
    """The facts of a page or of a plain text, each with its row as the text has it."""
    parsed = to_text(page) if page.startswith("<") else None
    text = parsed.text if parsed else fold(page)
    blocks = parsed.blocks if parsed else plain_blocks(page, titled)
    some = found((0, len(text)), text=text, blocks=blocks)
    assert all(s.text.endswith(text[slice(*s.value)]) or ", " in s.text for s in some if s.value)
    return [(s.text, text[slice(*s.span)]) for s in some if s.value]


KEY_VALUE = [("Weight: 17.2 kg", "Weight{}17.2 kg"), ("Warranty: 24 months", "Warranty{}24 months")]
COLUMNS = [
    "Part: IM-60",
    "IM-60, Delivery (days): 21",
    "IM-60, Price: 400 EUR",
    "Part: IM-90",
    "IM-90, Delivery (days): 35",
    "IM-90, Price: 520 EUR",
]


@pytest.mark.parametrize(
    ("page", "between"),
    [
        ("<table><tr><td>Weight<td>17.2 kg<tr><td>Warranty<td>24 months</table>", " "),
        ("<table><tr><th>Weight<td>17.2 kg<tr><th>Warranty<td>24 months</table>", " "),
        ("<dl><dt>Weight<dd>17.2 kg<dt>Warranty<dd>24 months</dl>", " "),
        ("| Weight | 17.2 kg |\n|---|---|\n| Warranty | 24 months |\n", " | "),
        ("Foo\n|Weight|17.2 kg|\n|Warranty|24 months|\n", "|"),
        ("| Weight: 17.2 kg |\n| Warranty: 24 months |\n", ": "),
    ],
)
def test_a_row_of_two_cells_is_a_fact_with_its_label(page, between):
    assert facts(page) == [(fact, row.format(between)) for fact, row in KEY_VALUE]


@pytest.mark.parametrize(
    "page",
    [
        "<table><tr><th>Part<th>Delivery (days)<th>Price<tr><td>IM-60<td>21<td>400 EUR"
        "<tr><td>IM-90<td>35<td>520 EUR</table>",
        "| Part | Delivery (days) | Price |\n|---|---|---|\n| IM-60 | 21 | 400 EUR |\n"
        "| IM-90 | 35 | 520 EUR |",
        "| Part: IM-60 | Delivery (days): 21 | Price: 400 EUR |\n"
        "| Part: IM-90 | Delivery (days): 35 | Price: 520 EUR |",
    ],
)
def test_a_cell_of_a_wider_table_is_a_fact_with_the_names_of_its_row_and_column(page):
    assert [fact for fact, _ in facts(page)] == COLUMNS
    assert all("IM-60" not in row or "IM-90" not in row for _, row in facts(page)), "no rows run together"


def test_a_passage_that_begins_in_a_table_knows_its_columns_and_reads_no_row_beyond_itself():
    page = "| Part | Days | Price |\n|---|---|---|\n" + "".join(
        f"| P{i} | {i} | {i} EUR |\n" for i in range(40)
    )
    text, blocks = fold(page), plain_blocks(page)
    at = text.index("| P20 ")
    some = found((at + 6, at + 40), text=text, blocks=blocks)
    assert [s.text for s in some][:3] == ["P20, Days: 20", "P20, Price: 20 EUR", "Part: P21"]
    assert len(some) < 8


def test_rows_without_names_of_columns_are_one_fact_each_and_a_cell_of_prose_is_its_sentences():
    assert facts("<table><tr><td>IM-60<td>21<td>400 EUR<tr><td>IM-90<td>35<td>520 EUR</table>") == [
        ("IM-60: 21, 400 EUR", "IM-60 21 400 EUR"),
        ("IM-90: 35, 520 EUR", "IM-90 35 520 EUR"),
    ]
    prose = "It sold well. It was read widely. " * 10
    page = to_text(f"<table><tr><td>Emma<td>{prose}</table>")
    some = found((0, 300), text=page.text, blocks=page.blocks)
    assert [s.text for s in some] == ["It sold well.", "It was read widely."]
    assert {(s.label, s.around) for s in some} == {("Emma", "Emma")}


def test_an_empty_cell_keeps_its_column_and_a_row_of_other_cells_names_none():
    page = "| Part | Days | Price |\n|---|---|---|\n| IM-60 |  | 400 EUR |\n| IM-90 | 35 |\n"
    assert [fact for fact, _ in facts(page)] == ["Part: IM-60", "IM-60, Price: 400 EUR", "IM-90: 35"]


def test_a_term_of_a_man_page_is_the_label_of_what_stands_under_it():
    long = "It is read widely and often. " * 12
    lines = (
        "TOOL(1)",
        "",
        "OPTIONS",
        "   -n, --lines=N",
        "      print N lines (default 10)",
        "",
        f"   -z  {long}",
    )
    page = "\n".join(lines)
    text, blocks = fold(page), plain_blocks(page, titled=True)
    some = found((0, len(text)), text=text, blocks=blocks)
    assert "-n, --lines=N: print N lines (default 10)" in [s.text for s in some]
    assert ("It is read widely and often.", "-z") in [(s.text, s.label) for s in some]


def test_hidden_sentences_are_left_out():
    assert texts((0, len(TEXT)), hidden=((17, 20),)) == [
        "Emma is a novel.",
        "It was read widely.",
        "Few books were read more.",
    ]


def test_equal_sentences_of_two_sources_count_once_where_they_are_met_first():
    pages = {"a": SourceText(TEXT), "b": SourceText(TEXT)}
    (only,) = candidates([("b", (0, 16)), ("a", (0, 16))], pages)
    assert only.source == "b"


def test_a_sentence_knows_the_best_passage_that_it_stands_in():
    pages = {"a": SourceText("A cat sat."), "b": SourceText("A dog ran.")}
    assert [s.rank for s in candidates([("b", (0, 10)), ("a", (0, 10))], pages)] == [0, 1]


def test_of_each_passage_the_first_sentences_are_read():
    text = "One ran. " * 3 + "Two ran. Three ran. Four ran."
    distinct = ["One ran.", "Two ran.", "Three ran.", "Four ran."]
    assert texts((0, len(text)), text=text) == distinct
    assert texts((0, len(text)), text=text, most=4) == distinct[:2], "repeated ones count, too"


def test_a_sentence_without_an_end_is_cut_and_blank_passages_have_none():
    endless = "word " * 1000
    some = texts((0, len(endless)), text=endless)
    assert some and all(len(s) <= MAX_CHARS for s in some)
    assert candidates([], {}) == [] and texts((0, 3), text=" \n ") == []
