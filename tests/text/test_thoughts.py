"""What a reasoning model thought is separated from what it says, whatever its marks."""

import pytest

from raypipe.text.replies import UnreadableReply
from raypipe.text.thoughts import MOST_CHARS, DraftText, answer_of, split_thoughts


@pytest.mark.parametrize(
    ("text", "answer", "closed"),
    [
        ("Velora", "Velora", True),
        ("<think>a film</think>Velora", "Velora", True),
        ("\n<THINK>\na film\n</THINK>\n\nVelora", "\n\nVelora", True),
        ("a film</think>Velora", "Velora", True),
        ("<think>one</think>no<think>two</think>Velora", "Velora", True),
        ("<think>one <think>two</think> three</think>Velora", "Velora", True),
        ("[THINK]a film[/THINK]Velora", "Velora", True),
        ("\u25c1think\u25b7a film\u25c1/think\u25b7Velora", "Velora", True),
        ("<thinking>a film</thinking>Velora", "Velora", True),
        ("<think>a film", "", False),
        ("Velora <think>or not", "", False),
        ("<think>one</think>Velora<think>two", "", False),
        ("<think>a film</think>", "", True),
        ("I think Velora", "I think Velora", True),
        ("<thinker>Velora", "<thinker>Velora", True),
    ],
)
def test_only_what_stands_behind_the_last_thought_is_the_answer(text, answer, closed):
    found = split_thoughts(text)
    assert (found.answer, found.closed) == (answer, closed)
    assert found.thoughts + found.answer == text


@pytest.mark.parametrize(
    ("pieces", "thinks", "shown"),
    [
        (["It is ", "Bob."], False, "It is Bob."),
        (["<th", "ink>Ann or B", "ob?</thi", "nk>\nBob"], False, "\nBob"),
        (["Ann or Bob?", "</think> Bob"], True, " Bob"),  # its chat template opened the thought
        (["<think>Ann or Bob"], False, ""),
        (["a < b, c <", " d"], False, "a < b, c < d"),
        (["[THI", "NK]so[/THINK]yes [1", "]"], False, "yes [1]"),
        (["one <thought>two</thought> three"], False, "one  three"),
        (["ends with <"], False, "ends with <"),
    ],
)
def test_a_draft_shows_no_thought_and_all_else(pieces, thinks, shown):
    for cut in (pieces, [*"".join(pieces)]):  # as it came, and a character at a time
        draft = DraftText(thinks)
        assert "".join([*(draft.add(p) for p in cut), draft.rest()]) == shown


def test_a_reply_that_no_window_holds_is_not_read():
    assert answer_of("<think>so</think>" + "a" * (MOST_CHARS - 20)).startswith("aaa")
    with pytest.raises(UnreadableReply, match=r"at most 500,000 characters, found 500,001"):
        answer_of("a" * (MOST_CHARS + 1))
    assert split_thoughts("a" * (MOST_CHARS + 1)).answer == ""
