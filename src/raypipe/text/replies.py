"""What a judge said, read from its text. Pure functions; knows no model and no metric."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

UNREADABLE = "Parse Err: Score not found"

_GROUP = re.compile(r"\{[^}]*\}")
_SCORE = re.compile(r'"score"\s*:\s*(\d+)')
# Judges forget to escape quotes, so an explanation ends at the quote before the score or the last one
# there is.
_EXPLANATION = re.compile(r'"explanation"\s*:\s*"(.+?)"\s*(?:,\s*"score"|\}$)|"explanation"\s*:\s*"(.+)"')


@dataclass(frozen=True, slots=True)
class Judgement:
    """What CRAG's judge made of one prediction."""

    explanation: str  # its reason; where it cannot be read, UNREADABLE or the whole response
    score: Literal[-1, 0, 1]  # 1 right, 0 wrong, -1 cannot be read


def parse_response(response: str) -> Judgement:
    """The judgement in a judge's response, as CRAG's evaluator reads it: from the last `{...}` without
    an inner `}`.

    >>> parse_response('{"score": 0, "explanation": "no"} {"score": 1, "explanation": "ok"}')
    Judgement(explanation='ok', score=1)
    """
    groups = _GROUP.findall(response)
    text = groups[-1] if groups else ""
    found = _SCORE.search(text)
    if found is None:
        return Judgement(UNREADABLE, -1)
    digits = found[1].lstrip("0")
    if digits not in ("", "1"):
        return Judgement(response, -1)
    reason = _EXPLANATION.search(text)
    explanation = (reason[1] or reason[2]) if reason else text
    return Judgement(explanation, 1 if digits else 0)
