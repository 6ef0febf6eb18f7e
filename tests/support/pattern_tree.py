"""The tree of a regular expression, as the standard library parses it."""

from __future__ import annotations

import re
from re import _constants as sre  # the standard library has no public tree of a pattern

SINGLE = (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN)
REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)


def inside(item, flags):
    op, value = item
    if op is sre.BRANCH:
        return [(branch, flags) for branch in value[1]]
    if op is sre.SUBPATTERN:
        return [(value[3], (flags | value[1]) & ~value[2])]
    if op in REPEATS:
        return [(value[2], flags)]
    if op in (sre.ASSERT, sre.ASSERT_NOT):
        return [(value[1], flags)]
    return [(value, flags)] if op is sre.ATOMIC_GROUP else []


def leaves(items, flags):
    """The sets and single characters of a pattern, with the flags that hold there."""
    for item in items:
        if item[0] in SINGLE:
            yield item, flags
        for inner, of in inside(item, flags):
            yield from leaves(inner, of)


def single(items):
    """The set that a sequence is, in groups or not; None where it is more."""
    while len(items) == 1 and items[0][0] is sre.SUBPATTERN:
        items = list(items[0][1][3])
    return items[0] if len(items) == 1 and items[0][0] in SINGLE else None


def branches(items):
    """The alternatives that a sequence is."""
    if len(items) == 1 and items[0][0] is sre.SUBPATTERN:
        return branches(list(items[0][1][3]))
    if len(items) == 1 and items[0][0] is sre.BRANCH:
        return [b for branch in items[0][1][1] for b in branches(list(branch))]
    return [items]


def is_word(char):
    return char is not None and re.match(r"\w", char) is not None


def place(at, flags):
    """The condition of `^`, `\\b` and the like on the characters around; None: the text's begin or end."""
    lines = (None, "\n") if flags & re.MULTILINE else (None,)
    return {
        sre.AT_BEGINNING: lambda before, next: before in lines,
        sre.AT_BEGINNING_STRING: lambda before, next: before is None,
        sre.AT_END: lambda before, next: next in (None, "\n"),
        sre.AT_END_STRING: lambda before, next: next is None,
        sre.AT_BOUNDARY: lambda before, next: is_word(before) != is_word(next),
        sre.AT_NON_BOUNDARY: lambda before, next: is_word(before) == is_word(next),
    }[at]
