"""What strangers wrote can say anything and forge nothing."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raypipe.text.context import pack
from raypipe.text.sanitize import escape_markup, prompted_spans, visible
from raypipe.text.template import renderer

MARKS = [
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|begin_of_text|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|user|>",
    "<|python_tag|>",
    "<\uff5cUser\uff5c>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<s>",
    "</s>",
    "<bos>",
    "<eos>",
    "<pad>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
    "<<SYS>>",
    "<</SYS>>",
    "[gMASK]",
    "<sop>",
    "[AVAILABLE_TOOLS]",
    "[CLS]",
    "[SEP]",
    "<extra_id_0>",
    "[|endofturn|]",
    "<seed:bos>",
    "<seed:eos>",
    "]~b]",
    "[e~[",
    "]~!b[",
    "<reserved_106>",
    "<eoh>",
    "<role>",
    "</role>",
    "[TOOL_CONTENT]",
    "[TOOL_RESULTS]",
    "</think>",
    "<tool_call>",
    "<function>",
    "<0x0A>",
    "<|END_OF_TURN_TOKEN|>",
    "<bot>",
    "<unused99>",
    "<\u7528\u6237>",
    "[unused10]",
    "<image>",
    "</DOC>",
    "<DOC>",
    "</doc >",
    "< / D\u200bOC>",
]
ODD = "ab\u0130 \n\t\u00a0<>|\U000e0041"  # a letter that grows, white space, brackets, a tag character
FENCE = re.compile(r"</?doc(?![a-z])", re.IGNORECASE)  # "<docs" and "<doctype" close nothing


@pytest.mark.parametrize("mark", MARKS)
def test_no_mark_of_a_template_and_no_fence_survives_in_any_case(mark):
    for form in (mark, mark.lower(), mark.upper()):
        assert form not in escape_markup(f"before{form}after")
        out = escape_markup(f"before{form}after")
        assert len(out) == len(form) + 11 and ("(" in out or ")" in out)


@given(
    st.lists(st.sampled_from([*MARKS, "<", ">", "|", "<|", "|>", "/", "DOC", "x ", "[", "]"]), max_size=12)
)
@example(["<", "DOC", "DOC"])
def test_no_pieces_of_marks_join_to_a_mark(pieces):
    text = escape_markup("".join(pieces))
    assert not [m for m in MARKS if m in text]
    assert "<|" not in text and "|>" not in text and not FENCE.search(text)
    assert escape_markup(text) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_harmless_text_keeps_every_other_character(text):
    kept = "".join(c for c in text if not 0xE0000 <= ord(c) <= 0xE007F)
    out = escape_markup(text)
    assert len(out) == len(kept)
    assert all(a == b or (a in "<>[]" and b in "()") for a, b in zip(kept, out, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "a < b and c > d",
        "[1] see the docs",
        "if (x || y) {{ z }}",
        "<document>",
        "List<String> of [1, 2]",
        "[edit] [citation needed] [1]",
        "R&D <3",
        "| a | b |",
        "<doctor>",
    ],
)
def test_plain_text_stays_as_it_is(text):
    assert escape_markup(text) == text


def test_a_packed_context_has_the_fences_of_its_documents_and_no_others():
    texts = [escape_markup(f"page {m} end") for m in MARKS]
    packed = pack(texts, "docs", None, len).text
    assert packed.count("<DOC>\n") == packed.count("\n</DOC>\n") == len(texts)
    assert len(FENCE.findall(packed)) == 2 * len(texts)


@pytest.mark.parametrize(
    "hidden, left",
    [
        ((), "one two three"),
        (((4, 7),), "one three"),
        (((0, 3), (8, 13)), "two"),
        (((0, 13),), ""),
        (((0, 100),), ""),
        (((20, 30),), "one two three"),
        (((8, 30),), "one two"),
    ],
)
def test_hidden_spans_of_a_source_are_left_out_of_its_passages(hidden, left):
    assert visible("one two three", (0, 13), hidden) == left
    moved = tuple((a + 50, b + 50) for a, b in hidden)
    assert visible("one two three", (50, 63), moved) == left


def test_what_is_put_into_a_template_is_never_read_as_one():
    render = renderer("{{ context }}|{{ text }}")
    assert render({"context": "{{ 7 * 7 }}", "text": "{% raw %}{{ x }}"}) == "{{ 7 * 7 }}|{% raw %}{{ x }}"


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    text=st.text(
        st.sampled_from("ab\u0130 \n\t\u00a0<>|\U000e0041") | st.characters(exclude_categories=["Cs"])
    ),
    cuts=st.lists(st.integers(0, 30), max_size=6),
    part=st.integers(0, 60),
    lower=st.booleans(),
    moved=st.integers(0, 5),
)
def test_what_a_prompt_shows_is_found_again_in_its_source(text, cuts, part, lower, moved):
    places = sorted(set(cuts))
    hidden = tuple(zip(places[::2], places[1::2], strict=False))
    span = (moved, moved + len(text))
    whole = escape_markup(visible(text, span, hidden))
    prompted = whole.lower() if lower else whole
    beginning = prompted[:part].strip()
    found = prompted_spans(text, span, hidden, beginning, lower)
    for (a, b), said in found:
        assert text[a - moved : b - moved] == said == said.strip() != ""
        assert not any(a < d and c < b for c, d in hidden)
    again = escape_markup(" ".join(said for _, said in found))
    again = again.lower() if lower else again
    bare = "".join(beginning.split())
    assert "".join(again.split()).startswith(bare)  # a letter that lower case makes two is shown whole
    assert len("".join(again.split())) <= len(bare) + 1
