"""A context never counts more tokens than its budget, and every document in it is closed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from raypipe.models.fake import whitespace
from raypipe.text.context import characters, cut, pack


def byte_pairs():
    """A byte-level tokenizer: a letter can be several tokens, and pieces count otherwise than the whole."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["<DOC>\n the film was directed by anna\n</DOC>\n<DOC>\n"] * 20, trainer)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).offsets


TOKENIZERS = {"words": whitespace, "bytes": byte_pairs(), "characters": characters}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
passages = st.lists(texts | st.sampled_from(["the film", "</DOC>", "<DOC>", "\n\n", "a" * 50]), max_size=5)


@pytest.mark.parametrize("by", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(passages=passages, budget=st.integers(1, 60), layout=st.sampled_from(["docs", "list"]))
def test_a_context_fits_its_budget_whatever_is_packed(by, passages, budget, layout):
    tokenize = TOKENIZERS[by]
    made = pack(passages, layout, budget, tokenize)
    packed = made.text
    assert len(tokenize(packed)) <= budget
    whole = pack(passages, layout, None, tokenize).text
    assert packed == whole or len(tokenize(whole)) > budget
    if packed:
        head, tail = ("<DOC>\n", "\n</DOC>\n") if layout == "docs" else ("- ", "\n")
        assert packed.startswith(head) and packed.endswith(tail)
        assert whole.startswith(packed.removesuffix(tail).rstrip())
        assert packed == "".join(head + text + tail for _, text in made.shown)
    for place, text in made.shown:
        laid = passages[place].strip() if layout == "docs" else " ".join(passages[place].split())
        assert text and laid.startswith(text)


@settings(max_examples=100, deadline=None)
@given(text=texts, budget=st.integers(1, 20), by=st.sampled_from(sorted(TOKENIZERS)))
def test_a_cut_text_is_a_beginning_that_fits(text, budget, by):
    tokenize = TOKENIZERS[by]
    short = cut(text, budget, tokenize)
    assert len(tokenize(short)) <= budget
    assert text.startswith(short)
    assert short == text or len(tokenize(text)) > budget


def test_documents_come_in_order_each_once_and_the_last_is_closed_after_the_cut():
    packed = pack(["one two", " one two ", "", "three four five six", "seven"], "docs", 8, whitespace)
    assert packed.shown == ((0, "one two"), (3, "three four"))
    assert packed.text == "<DOC>\none two\n</DOC>\n<DOC>\nthree four\n</DOC>\n"


def test_a_document_of_which_nothing_would_be_left_is_left_out():
    assert pack(["one two", "three"], "docs", 6, whitespace).text == "<DOC>\none two\n</DOC>\n"
    assert pack(["one two"], "docs", 2, whitespace).text == ""


def test_a_list_is_a_line_for_each_of_the_first_distinct_passages():
    assert (
        pack(["one\n- two", "one - two", "three", "four"], "list", None, characters, 2).text
        == "- one - two\n- three\n"
    )


def test_a_budget_is_used_but_for_what_closing_the_cut_costs():
    packed = pack([f"word{i} " * 300 for i in range(20)], "docs", 4000, whitespace).text
    assert 3990 <= len(whitespace(packed)) <= 4000
