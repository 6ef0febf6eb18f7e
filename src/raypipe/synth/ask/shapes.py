"""The shapes of questions: value, compare, count, list (`several`), false premise. Knows no domain.

A shape takes how its scene is drawn, and what the answer is. A scene is what was drawn and the words for it:
`{m}` of a program, a phrasing or a sentence is `m` of the scene's words. Called with an attempt and the rule
of the template, a shape gives the scene and the answer, None where the attempt drew no good one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from raypipe.synth.ask.core import INVALID, Attempt, Drawn, Scene, Shape, scene
from raypipe.synth.ask.forms import Written, also, counted, listed
from raypipe.synth.world.world import World

Drawer: TypeAlias = Callable[[Attempt], Scene | None]
Rows: TypeAlias = Callable[[World], Sequence[Any]]


def one(rows: Rows, kind: str, slot: str) -> Callable[[Attempt], Scene]:
    """Draws a row, one of the first more often. Its name is the word {slot}."""

    def drawer(d: Attempt) -> Scene:
        row = d.skewed(rows(d.world))
        return scene(row, (kind, row.name), **{slot: row.name})

    return drawer


def two(rows: Rows, kind: str) -> Callable[[Attempt], Scene]:
    """Draws two rows so, {a} and {b}, which may be one."""

    def drawer(d: Attempt) -> Scene:
        a, b = d.skewed(rows(d.world)), d.skewed(rows(d.world))
        return scene((a, b), (kind, a.name), (kind, b.name), a=a.name, b=b.name)

    return drawer


def then(drawer: Drawer, link: Callable[[Attempt, Scene], Scene | None]) -> Drawer:
    """Draws what is linked to what `drawer` draws: `*` in a program stands for that."""

    def drawn(d: Attempt) -> Scene | None:
        found = drawer(d)
        return link(d, found) if found else None

    return drawn


def value(drawer: Drawer, answer: Callable[[Any], Written | None]) -> Shape:
    """One value of what was drawn, or computed from it."""

    def shape(d: Attempt, rule: str) -> Drawn | None:
        found = drawer(d)
        written = answer(found.it) if found else None
        return (found, written) if found and written else None

    return shape


def compare(
    drawer: Drawer,
    measure: Callable[[Any], Any],
    spoken: Callable[[Any], str] = str,
    others: Callable[[Any], Sequence[str]] = lambda one: (),
) -> Shape:
    """Which of two, {a} or {b}, has less of a measure (`least`) or more (`most`); `yes_if_less`: has {a}?

    Words: {best} with {top}, the {other} with {low}. No question where they are equal or one has none.
    """

    def shape(d: Attempt, rule: str) -> Drawn | None:
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
        return found.at(found.it, **words), written

    return shape


def count(drawer: Drawer, number: Callable[[Any], int] = len, least: int = 1) -> Shape:
    """How many rows there are. `least`: no question about fewer. Word: {plural}, an "s" or nothing."""

    def shape(d: Attempt, rule: str) -> Drawn | None:
        found = drawer(d)
        n = number(found.it) if found else 0
        if found is None or n < least:
            return None
        return found.at(found.it, plural="s" if n > 1 else ""), counted(n)

    return shape


def several(
    drawer: Drawer,
    rows: Callable[[Any], Sequence[Any]] = list,
    least: int = 1,
    form: Callable[[Sequence[Any]], Written] = listed,
) -> Shape:
    """A list in its order. `least`: no question about shorter ones."""

    def answer(it: Any) -> Written | None:
        found = rows(it)
        return form(found) if len(found) >= least else None

    return value(drawer, answer)


def false(drawer: Drawer) -> Shape:
    """A question whose premise the world contradicts. The program asks for what it presumes."""
    return value(drawer, lambda it: Written(INVALID, (), ""))
