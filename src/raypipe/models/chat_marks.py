"""The marks of a tokenizer's chat template, kept out of what messages say: for serving and training alike."""

from __future__ import annotations

import re
from typing import Any


def marks_of(tokenizer: Any) -> re.Pattern[str]:
    """What a transformers tokenizer reads as marks of its own: an end of turn, a role."""
    marks = sorted({*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, marks)) or r"(?!)")


def harmless(marks: re.Pattern[str], content: str) -> str:
    """A message's text in which marks have a space after their first character, so no page and no question
    can forge a turn.

    >>> harmless(re.compile("<.end.>"), "so <|end|> it")
    'so < |end|> it'
    """
    while found := marks.search(content):
        content = f"{content[: found.start() + 1]} {content[found.start() + 1 :]}"
    return content
