"""Cleaning of questions' bodies, titles and abstracts as the Onewo system has it. Pure functions.

The rules: HTML tags become a space, `http://`, `https://`, `.com` and `.cn` go, white space is folded. What
one rule leaves can be another's (`..comcom`), so they are applied until nothing changes. One departure: the
published code deletes line breaks and so joins the words around them; here they are a space.
"""

from __future__ import annotations

import re

_TAG = re.compile(r"<[^>]+>")
_ADDRESS = re.compile(r"https?://|\.com|\.cn")


def clean(text: str) -> str:
    """The text by the rules above; cleaned again it stays as it is.

    What stands between `<` and a later `>` counts as a tag, also in a formula.

    >>> clean("<p>See  <a href='x'>http://example.com</a></p>\\nor ask")
    'See example or ask'
    """
    while True:
        found = " ".join(_ADDRESS.sub("", _TAG.sub(" ", text)).split())
        if found == text:
            return found
        text = found


def colon(text: str) -> str:
    """The text with a colon at its end, unless it has one.

    >>> colon("Deep nets"), colon("Deep nets:")
    ('Deep nets:', 'Deep nets:')
    """
    return text if text.endswith(":") else f"{text}:"
