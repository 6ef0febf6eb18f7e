"""Output to a terminal that text from pages, files and servers cannot control.

A control character could clear the screen, set the title or the clipboard, or reorder a line. All output of a
command passes through here, where each such character is replaced by an escape with its number.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # all but tab and line feed
_COLOURS = re.compile(r"\x1b\[[\d;]*m")  # as libraries print them


def shown(text: str) -> str:
    r"""Replaces control characters, also those of writing direction, by escapes \uXXXX; tab and line feed
    stay. In a JSON string this escape means the same character, so JSON output keeps its meaning.

    >>> shown("a\x1b[2Jb\u202ec\r\n")
    'a\\u001b[2Jb\\u202ec\\u000d\n'
    """
    return _CONTROLS.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


class ShownStream:
    """A text stream that escapes control characters, and drops colours that libraries print."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        self.raw.write(shown(_COLOURS.sub("", text)))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextmanager
def shown_streams(keep: bool = False) -> Iterator[None]:
    """Escapes control characters in everything that a block prints; with `keep` also after the block.
    Characters that stdout or stderr cannot encode are escaped, too, even after the block."""
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (cast(TextIO, ShownStream(stream)) for stream in before)
    try:
        yield
    finally:
        if not keep:
            sys.stdout, sys.stderr = before


def open_console(stream: TextIO, width: int | None = None) -> Console:
    """Opens a console on a stream. Its own colours and bars reach the terminal; texts are escaped."""
    from rich.console import Console  # takes 40 ms, which help does without
    from rich.segment import Segment

    class ShownConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(shown(segment.text), segment.style)

    return ShownConsole(file=getattr(stream, "raw", stream), width=width)
