"""What readers and metrics both say of papers: how QASPER writes evidence and the lack of an answer."""

from __future__ import annotations

from typing import Final

UNANSWERABLE: Final = "Unanswerable"
FLOAT: Final = "FLOAT SELECTED"
"""How evidence begins that is a figure or a table; its caption follows."""
_CAPTION = f"{FLOAT}: "


def paragraph(evidence: str) -> str:
    """A paragraph as the parsed text of its paper has it: white space folded, of a float its caption.

    >>> paragraph("FLOAT SELECTED: Table 1:  Sizes.")
    'Table 1: Sizes.'
    """
    return " ".join(evidence.removeprefix(_CAPTION).split())
