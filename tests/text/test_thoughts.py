"""What a reasoning model thought is separated from what it says, whatever its marks."""

import pytest

from raypipe.text.thoughts import split_thoughts


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
