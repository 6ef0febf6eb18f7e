"""Onewo's cleaning rules: ten golden pairs, and that cleaning twice is cleaning once."""

import random

import pytest

from raypipe.text.sanitize import clean, colon

GOLDEN = [
    ("plain words stay", "plain words stay"),
    ("<p>I read <b>two</b> papers.</p>", "I read two papers."),
    ("one<br>two", "one two"),
    ("  tabs\tand\n\nlines   fold ", "tabs and lines fold"),
    ("see https://arxiv.org/abs/1706.03762", "see arxiv.org/abs/1706.03762"),
    ("http://example.com and www.test.cn/page", "example and www.test/page"),
    ('<a href="https://x.com">the paper</a>', "the paper"),
    ("<pre><code>for x in y:\n  f(x)</code></pre>", "for x in y: f(x)"),
    ("if a < b and c > d it holds", "if a d it holds"),  # the published regex takes it for a tag
    ("<p></p>\n<img src='a.png'/>", ""),
]


@pytest.mark.parametrize(("raw", "cleaned"), GOLDEN)
def test_a_text_is_cleaned_by_the_rules(raw, cleaned):
    assert clean(raw) == cleaned


def test_there_are_ten_golden_pairs_and_none_changes_when_it_is_cleaned_again():
    assert len(GOLDEN) == 10
    assert all(clean(cleaned) == cleaned for _, cleaned in GOLDEN)


def test_what_a_rule_leaves_behind_for_another_is_cleaned_too():
    assert clean("a..comcom b.c<i>nhttp:<b>//x") == "a b.c nhttp: //x"
    assert clean("hthttp://tp://x") == "x" and clean("..cn.comcom") == ""
    pieces = ["<", ">", ".com", ".c", "om", ".cn", "http://", "https://", "ht", "tp://", " ", "\n", "a", "b>"]
    rng = random.Random(4)
    for _ in range(2000):
        once = clean("".join(rng.choices(pieces, k=rng.randrange(12))))
        assert clean(once) == once


def test_a_colon_is_put_where_there_is_none():
    assert colon("Why?") == "Why?:" and colon("Why:") == "Why:"
