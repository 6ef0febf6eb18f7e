"""How well questions are routed and calls are written, where golds have labels and programs. Pure numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

PROGRAM, RULE = "kg_program", "kg_rule"
"""Labels of a gold: the program of calls that gives its answer, and the rule that makes the answer of it."""


def shared(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that questions share, of which reports make slices: without program and rule.

    >>> shared({"domain": "movie", "kg_program": "get_movie()"})
    {'domain': 'movie'}
    """
    return {name: value for name, value in labels.items() if name not in (PROGRAM, RULE)}


@dataclass(frozen=True, slots=True)
class RouterScore:
    """How often a reply gives questions the label that their golds have."""

    reply: str  # name of the reply, and of the golds' label
    questions: int  # with both
    right: int  # with equal ones
    confusion: Mapping[str, Mapping[str, int]]  # label of the gold -> of the reply -> questions


@dataclass(frozen=True, slots=True)
class CallScore:
    """How often the program of calls is the gold's."""

    reply: str  # name of the reply with the program
    questions: int  # whose gold has a program
    given: int  # for which a program was written
    same: int  # whose program is the gold's, both in their canonical form, upper and lower case alike
    same_rule: int | None  # of these, whose rule is the gold's too; None: the recipe has no rules
    right: int | None  # whose answer by the graph has the gold; None: the graph makes no answer by itself


@dataclass(frozen=True, slots=True)
class Routing:
    """Routers and calls of a run."""

    routers: tuple[RouterScore, ...]  # by name; none where no gold has a label that is a reply's name
    calls: CallScore | None  # None: no gold has a program, or the recipe writes none


@dataclass(slots=True)
class RoutingCounts:
    """What is counted while answers pass."""

    confusion: dict[str, dict[str, Counter[str]]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)  # questions, given, same, same_rule, right

    def routed(self, reply: str, gold: str, label: str) -> None:
        """One question whose reply has a label, and its gold another or the same."""
        self.confusion.setdefault(reply, {}).setdefault(gold, Counter())[label] += 1

    def routers(self) -> tuple[RouterScore, ...]:
        """The scores by name, labels by name."""
        return tuple(_router(name, self.confusion[name]) for name in sorted(self.confusion))


def _router(name: str, rows: Mapping[str, Counter[str]]) -> RouterScore:
    confusion = {gold: dict(sorted(rows[gold].items())) for gold in sorted(rows)}
    right = sum(found.get(gold, 0) for gold, found in confusion.items())
    return RouterScore(name, sum(sum(x.values()) for x in confusion.values()), right, confusion)
