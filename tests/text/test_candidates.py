from raypipe.core.records import Block
from raypipe.text.candidates import MAX_CHARS, SourceText, candidates

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
    assert [s.before for s in some][1:] == ["Jane Austen wrote it in 1815.", "It was read widely."]


def test_a_sentence_that_the_end_of_a_passage_cuts_is_whole_where_most_of_it_is_inside():
    assert texts((17, 40)) == ["Jane Austen wrote it in 1815."]
    assert texts((0, 25)) == ["Emma is a novel."]
    whole = texts((0, len(TEXT)))
    for cut in range(18, 60):
        assert texts((cut - 5, len(TEXT)), (0, cut)) == whole


def test_no_sentence_crosses_a_block():
    text, blocks = laid_out(("paragraph", "Emma sold well and"), ("paragraph", "the mill burned down"))
    assert texts((0, len(text)), text=text) == ["Emma sold well and the mill burned down"]
    assert texts((0, len(text)), text=text, blocks=blocks) == ["Emma sold well and", "the mill burned down"]


def test_titles_headings_and_menus_are_no_sentences_but_say_what_one_stands_under():
    text, blocks = laid_out(
        ("title", "Emma, a novel"),
        ("menu", "Home News"),
        ("heading", "Reception"),
        ("paragraph", "It sold well."),
        ("cell", "Writer"),
        ("cell", "Jane Austen"),
    )
    some = found((0, len(text)), text=text, blocks=blocks)
    assert [(s.text, s.kind) for s in some] == [
        ("It sold well.", "paragraph"), ("Writer", "cell"), ("Jane Austen", "cell")
    ]  # fmt: skip
    assert some[0].around == "Emma, a novel Reception"
    assert some[2].around == "Emma, a novel Reception Writer"
    late = found((text.index("It sold"), len(text)), text=text, blocks=blocks)
    assert late[0].around == "Emma, a novel Reception", "a heading above the passage counts"


def test_a_page_of_menus_alone_still_shows_what_it_has():
    text, blocks = laid_out(("menu", "Home News"), ("heading", "Shop"))
    assert texts((0, len(text)), text=text, blocks=blocks) == ["Home News", "Shop"]


def test_hidden_sentences_are_left_out():
    assert texts((0, len(TEXT)), hidden=((17, 20),)) == [
        "Emma is a novel.", "It was read widely.", "Few books were read more."
    ]  # fmt: skip


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
