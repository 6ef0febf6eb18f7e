"""Captured answers, feedback and pairs of trials that hold what is forgotten: lines of small files.

A line goes whole: it is one answer. Feedback goes with the answer that it is about.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from raypipe.runs.forget.mentions import Mentions
from raypipe.runs.forget.target import Target
from raypipe.store.files import Files
from raypipe.store.layout import CAPTURED, FEEDBACK, TRIAL_PAIRS, TRIAL_REPORTS

ANSWERS = (CAPTURED, TRIAL_PAIRS)


def held_segments(files: Files, target: Target, told: Mentions) -> dict[str, int]:
    """File of the store -> its lines that name it, or say what it alone says."""
    found, named = {}, _names(target)
    for folder in (*ANSWERS, TRIAL_REPORTS):
        for name in (f"{folder}/{n}" for n in files.names(folder)):
            lines = _lines(files.read(name))
            if held := sum(told.within(line, named) for line in lines):
                found[name] = held
    return found


def take_out_segments(files: Files, target: Target, told: Mentions) -> None:
    """Takes the lines that hold it out of all segments. The same again changes nothing."""
    named = _names(target)
    for name in held_segments(files, target, told):
        lines = _lines(files.read(name))
        gone = [line for line in lines if told.within(line, named)]
        _forget_feedback(files, {str(line.get("answer_id")) for line in gone})  # first: by these it is found
        _rewrite(files, name, [line for line in lines if line not in gone])


def _names(target: Target) -> frozenset[str]:
    return frozenset((*target.sources, *target.questions, *target.urls))


def _forget_feedback(files: Files, answers: Collection[str]) -> None:
    for name in (f"{FEEDBACK}/{n}" for n in files.names(FEEDBACK)):
        lines = _lines(files.read(name))
        left = [line for line in lines if line.get("answer_id") not in answers]
        if len(left) < len(lines):
            _rewrite(files, name, left)


def _rewrite(files: Files, name: str, lines: list[dict[str, Any]]) -> None:
    if not lines:
        files.remove(name)
        return
    files.write(name, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())


def _lines(raw: bytes | None) -> list[dict[str, Any]]:
    """The objects of a file: one a line, or the whole file."""
    text = (raw or b"").decode("utf-8", "replace")
    try:
        found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        found = [json.loads(text)]
    return [x for x in found if isinstance(x, dict)]
