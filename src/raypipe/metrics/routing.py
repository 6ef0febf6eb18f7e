"""How well questions are routed and calls are written, where golds have labels and programs. Pure numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

PROGRAM, RULE = "kg_program", "kg_rule"
"""Labels of a gold: the program of calls that gives its answer, and the rule that makes the answer of it."""


def shared(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that questions share, of which reports make slices: without program and rule.

    >>> shared({"domain": "movie", "kg_program": "get_movie()"})
    {'domain': 'movie'}
    """
    return {name: value for name, value in labels.items() if name not in (PROGRAM, RULE)}


def by_label(rows: Iterable[tuple[Mapping[str, str], T]]) -> dict[tuple[str, str], list[T]]:
    """(label, value) -> what has it, of pairs of labels and what they are of; in the order met.

    >>> by_label([({"domain": "movie"}, 1), ({"domain": "sports"}, 2), ({"domain": "movie"}, 3)])
    {('domain', 'movie'): [1, 3], ('domain', 'sports'): [2]}
    """
    found: dict[tuple[str, str], list[T]] = {}
    for labels, of in rows:
        for pair in labels.items():
            found.setdefault(pair, []).append(of)
    return found


def by_size(rows: Iterable[tuple[Mapping[str, str], T]]) -> list[tuple[tuple[str, str], list[T]]]:
    """The same: labels in the order met, values by how many have them, then by name."""
    found = by_label(rows)
    order = {label: n for n, label in enumerate(dict.fromkeys(label for label, _ in found))}
    return sorted(found.items(), key=lambda kv: (order[kv[0][0]], -len(kv[1]), kv[0][1]))


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


def router_scores(counts: Mapping[str, Mapping[str, Mapping[str, int]]]) -> tuple[RouterScore, ...]:
    """Scores by name, labels by name. `counts`: reply -> label of the gold -> of the reply -> questions."""
    out = []
    for name, rows in sorted(counts.items()):
        confusion = {gold: dict(sorted(found.items())) for gold, found in sorted(rows.items())}
        right = sum(found.get(gold, 0) for gold, found in confusion.items())
        out.append(RouterScore(name, sum(sum(x.values()) for x in confusion.values()), right, confusion))
    return tuple(out)
