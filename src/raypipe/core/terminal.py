"""Text for a terminal: what a page, a file or a server says cannot command it.

A control character in it could clear the screen, set the title or the clipboard, or turn the order of what
stands on a line. All that a command prints passes through here, and each such character is shown by its
number. Knows streams and rich's consoles; knows no command.
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

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # but tab and line feed
_COLOURS = re.compile(r"\x1b\[[\d;]*m")  # as libraries print them


def shown(text: str) -> str:
    r"""The text with its control characters as JSON escapes them, so that JSON stays the same.

    >>> shown("a\x1b[2Jb\u202ec\r\n")
    'a\\u001b[2Jb\\u202ec\\u000d\n'
    """
    return _CONTROLS.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


class ShownStream:
    """A stream of text that shows control characters; colours that a library prints go."""

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
    """Shows the control characters of all that is printed; letters that an encoding lacks are shown by their
    numbers. `keep`: after the block, too."""
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
    """A console on a stream, whose own colours and bars reach the terminal."""
    from rich.console import Console  # 40 ms, which help saves
    from rich.segment import Segment

    class ShownConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(shown(segment.text), segment.style)

    return ShownConsole(file=getattr(stream, "raw", stream), width=width)
