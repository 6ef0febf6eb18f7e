"""Text to sentences, as the official CRAG baseline splits them (blingfire)."""

from __future__ import annotations

from importlib.util import find_spec

from raypipe.core.errors import ConfError
from raypipe.core.records import Span


def require_splitter() -> None:
    """Raises ConfError where the library that splits is not installed. Called before work that needs it."""
    if find_spec("blingfire") is None:
        raise ConfError(
            "sentences are split by the package blingfire, which is not installed. Get it with: "
            "pip install 'raypipe[local]'"
        )


def sentences(text: str) -> list[Span]:
    """The sentences of a text in order, without the white space between them.

    >>> [("Dr. Ho left. Who stayed?")[a:b] for a, b in sentences("Dr. Ho left. Who stayed?")]
    ['Dr. Ho left.', 'Who stayed?']
    """
    if not text.strip():  # blingfire fails on it
        return []
    try:
        import blingfire  # 40 ms that who only reads about a recipe does without
    except ModuleNotFoundError:
        require_splitter()
        raise
    _, offsets = blingfire.text_to_sentences_and_offsets(text)
    pieces = ((start, text[start:end]) for start, end in offsets)
    return [
        (start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip()))
        for start, piece in pieces
        if piece.strip()
    ]
