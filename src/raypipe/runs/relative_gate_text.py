"""The text of gates that hold a run against another one: `better`, `not-worse`, `not-worse:0.01`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from raypipe.core.errors import ConfError
from raypipe.metrics.paired import MARGIN

_GATE = re.compile(r"\s*(better|not-worse)(?::([0-9]*\.?[0-9]+))?\s*")


@dataclass(frozen=True, slots=True)
class RelativeGate:
    """A bound on the difference of two runs over the same questions."""

    text: str
    better: bool  # False: at most `margin` worse
    margin: float


def relative_gate(text: str) -> RelativeGate | None:
    """Reads a gate; None for one that is not about another run. Raises ConfError for a margin that is none.

    >>> relative_gate("not-worse:0.01")
    RelativeGate(text='not-worse:0.01', better=False, margin=0.01)
    >>> relative_gate("score>=0.1")
    """
    match = _GATE.fullmatch(text)
    if match is None:
        return None
    margin = MARGIN if match[2] is None else float(match[2])
    if not margin or (match[2] is not None and match[1] == "better"):
        raise ConfError(f"gate {text!r}: expected better, not-worse, or not-worse:M with M above 0")
    return RelativeGate(text.strip(), match[1] == "better", margin)
