"""Accuracy of written calls against the gold's: to the letter, and by what both give over a graph."""

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
    """A written program against its gold."""

    parsed: bool  # every line of it can be read, and there is one
    exact: bool  # the same program
    result: bool | None  # the same values; None: the gold itself gives none on this graph
    answer: bool | None  # the gold's rule makes the same answer of both; None: there is none to compare


@dataclass(frozen=True, slots=True)
class RunProgram:
    program: Program
    results: Sequence[CallResult]


def match_of(gold: RunProgram, written: RunProgram, rule: str, today: date) -> CallMatch:
    """Compares a written program with the gold.

    Exact: equal canonical text, whatever the case and the white space. By result: both give the same values,
    call by call, without those that another call uses; independent calls may come in any order. Where a call
    gives nothing, it must be about the same names. A line that fails, or a name that the graph does not know,
    gives no result that could be the same, unless the programs are. A program without calls ("None") is right
    where the gold has none.

    By answer: the same, after the gold's rule. It tells whose value it is, where the rule wants a name,
    and forgives what the rule does not look at. A gold whose rule makes nothing has no answer to compare.
    One that fails has no result either, nor has one that gives nothing where the rule is not `premise`.
    Raises KeyError for a rule that is none.
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
    """The canonical text, as names and keys are compared: without case and repeated white space."""
    return re.sub(r"[^\S\n]+", " ", print_program(program).lower())


def _sound(results: Sequence[CallResult]) -> bool:
    return bool(results) and not any(r.fault is not None or r.unknown for r in results)


def _values(run: RunProgram) -> list[tuple[str, ...]]:
    """Returns what every call that no other uses gives: its values, or that there are none for the names that
    it is about; in an order of their own, since calls have none."""
    return sorted(
        tuple(plain(v).lower() for v in r.values) or ("", *sorted(link.key for link in r.links))
        for r in operands(run.results)
    )
