"""Redaction: a function of your own that takes out of a text what must not be kept, named `MODULE:NAME`.

It gets every text that a capture would write (a question, an answer, a quote, each page that a request
brings, the names and urls of pages, what a user says) and returns the text to write. What it raises may hold
the text, so no message and no log repeats it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from raypipe.core import plugins
from raypipe.core.errors import ConfError

Redact: TypeAlias = Callable[[str], str]
PROBE = "who wrote it?"  # what the function is tried with before an endpoint starts


class RedactionFailed(Exception):
    """The function raised, or returned no text. The message names the function and the kind of error."""


def keep_all(text: str) -> str:
    return text


def redaction(path: str | None) -> Redact:
    """The function that a path names, or `keep_all` for none; what it returns raises RedactionFailed and
    nothing else. Raises ConfError for a path of nothing that can be called, and for a function that fails on
    a short text."""
    if path is None:
        return keep_all
    found, _ = plugins.load(path, "a redaction function of one text")
    if not callable(found):
        raise ConfError(f"{path}: expected a function of one text that returns a text, found {type(found)}")

    def redact(text: str) -> str:
        try:
            said = found(text)
        except Exception as e:
            # `from None`: a traceback of the cause would show its message, which may hold the text.
            raise RedactionFailed(f"{path} raised {type(e).__name__}") from None
        if not isinstance(said, str):
            raise RedactionFailed(f"{path} returned {type(said).__name__}, expected a text")
        return said

    try:
        redact(PROBE)
    except RedactionFailed as e:
        expected = "expected a function that returns a text"
        raise ConfError(f"--redact {e} for the text {PROBE!r}: {expected}") from None
    return redact
