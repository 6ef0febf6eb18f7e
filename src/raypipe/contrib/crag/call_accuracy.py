"""Accuracy of written calls against gold calls: by their text, and by their results over a graph."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from raypipe.contrib.crag.language.answer_rules import apply_rule, operands, plain
from raypipe.contrib.crag.language.program import Bad, Empty, Program, print_program
from raypipe.contrib.crag.records import CallResult
from raypipe.core.records import ABSTAINED


@dataclass(frozen=True, slots=True)
class CallMatch:
    """Comparison of a written program with its gold program."""

    parsed: bool  # it has lines, and all of them can be parsed
    exact: bool  # equal canonical text
    result: bool | None  # equal values; None: the gold program gives none on this graph
    answer: bool | None  # equal answers by the gold's rule; None: the gold has no answer


@dataclass(frozen=True, slots=True)
class RunProgram:
    program: Program
    results: Sequence[CallResult]


def match_of(gold: RunProgram, written: RunProgram, rule: str, today: date) -> CallMatch:
    """Compares a written program with the gold program.

    - `exact`: both have the same canonical text, ignoring case and white space.
    - `result`: both give the same values, call by call; independent calls may come in any order. Values that
      another call uses are ignored. Calls without values must be about the same names. A failed line or an
      unknown name never matches, unless the programs are equal. A program without calls ("None") matches a
      gold without calls.
    - `answer`: the gold's rule makes the same answer of both results. This checks whose value it is, if the
      rule answers with a name, and forgives differences that the rule ignores. It is None if the rule makes
      no answer of the gold's results.

    A gold program that fails on this graph has neither result nor answer. The same holds if it gives no
    values, except under the rule `premise`. Raises KeyError for an unknown rule.
    """
    parsed = bool(written.program.lines) and not any(isinstance(x, Bad) for x in written.program.lines)
    exact = parsed and _folded(gold.program) == _folded(written.program)
    if not _sound(gold.results):
        return CallMatch(parsed, exact, None, None)
    if calls(gold.program) and rule != "premise" and not any(r.values for r in gold.results):
        return CallMatch(parsed, exact, None, None)
    if not calls(gold.program) or not calls(written.program):
        same = parsed and calls(gold.program) == calls(written.program)
        return CallMatch(parsed, same, same, same if rule else None)
    result = exact or (parsed and _sound(written.results) and _values(gold) == _values(written))
    if not rule or (wanted := apply_rule(rule, gold.results, today)).label == ABSTAINED:
        return CallMatch(parsed, exact, result, None)
    said = apply_rule(rule, written.results, today)
    same = (said.label, said.text.lower()) == (wanted.label, wanted.text.lower())
    return CallMatch(parsed, exact, result, exact or (parsed and same))


def calls(program: Program) -> bool:
    return any(not isinstance(line, Empty) for line in program.lines)


def _folded(program: Program) -> str:
    """Returns the canonical text in lower case, with single spaces within a line."""
    return re.sub(r"[^\S\n]+", " ", print_program(program).lower())


def _sound(results: Sequence[CallResult]) -> bool:
    return bool(results) and not any(r.fault is not None or r.unknown for r in results)


def _values(run: RunProgram) -> list[tuple[str, ...]]:
    """Returns the values of each call that no other call uses, sorted, since calls have no order. A call
    without values is represented by the keys of its names."""
    return sorted(
        tuple(plain(v).lower() for v in r.values) or ("", *sorted(link.key for link in r.links))
        for r in operands(run.results)
    )
