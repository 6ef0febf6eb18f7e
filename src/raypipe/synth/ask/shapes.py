"""The six shapes of questions: value, compare, count, list (`several`), hop, false premise. Knows no domain.

A shape takes how its scene is drawn, what the answer is, and the lines of its program. A scene is what was
drawn and the words for it: `{m}` of a program, a phrasing or a sentence is `m` of the scene's words. Called
with an attempt, a shape gives one question before its wording, None where the attempt drew no good one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from raypipe.synth.ask.core import INVALID, Attempt, Drawn, Scene, Shape
from raypipe.synth.ask.forms import Written, also, counted, listed

Drawer: TypeAlias = Callable[[Attempt], Scene | None]


def both(line: str) -> str:
    """Two lines: one that names {x}, for {a} and for {b}."""
    return "\n".join(line.replace("{x}", side) for side in ("{a}", "{b}"))


def value(
    drawer: Drawer, answer: Callable[[Any], Written | None], *program: str, rule: str = "value"
) -> Shape:
    """One value of what was drawn, or computed from it."""

    def shape(d: Attempt) -> Drawn | None:
        found = drawer(d)
        written = answer(found.it) if found else None
        return Drawn(found, written, "\n".join(program), rule) if found and written else None

    return shape


def compare(
    drawer: Drawer,
    measure: Callable[[Any], Any],
    rule: str,
    line: str,
    spoken: Callable[[Any], str] = str,
    others: Callable[[Any], Sequence[str]] = lambda one: (),
) -> Shape:
    """Which of two, {a} or {b}, has less of a measure (`least`) or more (`most`); `yes_if_less`: has {a}?

    Words: {best} with {top}, the {other} with {low}. No question where they are equal or one has none.
    """

    def shape(d: Attempt) -> Drawn | None:
        found = drawer(d)
        if found is None:
            return None
        sides = [(measure(one), found.words[slot], one) for one, slot in zip(found.it, "ab", strict=True)]
        if None in (sides[0][0], sides[1][0]) or sides[0][0] == sides[1][0]:
            return None
        (top, best, one), (low, other, _) = sorted(sides, key=lambda s: s[0], reverse=rule == "most")
        words = {"best": best, "other": other, "top": spoken(top), "low": spoken(low)}
        yes = "Yes" if best == found.words["a"] else "No"
        written = also(yes) if rule == "yes_if_less" else also(best, *others(one))
        return Drawn(found.at(found.it, **words), written, both(line), rule)

    return shape


def count(drawer: Drawer, number: Callable[[Any], int], *program: str, least: int = 1) -> Shape:
    """How many rows there are. `least`: no question about fewer. Word: {plural}, an "s" or nothing."""

    def shape(d: Attempt) -> Drawn | None:
        found = drawer(d)
        n = number(found.it) if found else 0
        if found is None or n < least:
            return None
        more = found.at(found.it, plural="s" if n > 1 else "")
        return Drawn(more, counted(n), "\n".join(program), "value")

    return shape


def several(
    drawer: Drawer,
    rows: Callable[[Any], Sequence[Any]],
    *program: str,
    least: int = 1,
    form: Callable[[Sequence[Any]], Written] = listed,
    rule: str = "list",
) -> Shape:
    """A list in its order. `least`: no question about shorter ones."""

    def answer(it: Any) -> Written | None:
        found = rows(it)
        return form(found) if len(found) >= least else None

    return value(drawer, answer, *program, rule=rule)


def hop(
    drawer: Drawer,
    link: Callable[[Attempt, Scene], Scene | None],
    answer: Callable[[Any], Written | None],
    *program: str,
) -> Shape:
    """A value of what is linked to what was drawn: `*` in the program stands for that."""

    def drawn(d: Attempt) -> Scene | None:
        found = drawer(d)
        return link(d, found) if found else None

    return value(drawn, answer, *program)


def false(drawer: Drawer, *program: str) -> Shape:
    """A question whose premise the world contradicts. The program asks for what it presumes."""
    return value(drawer, lambda it: Written(INVALID, (), ""), *program, rule="premise")
