"""How the time of a regular expression grows with the text, from its automaton. No text is matched, no clock
is read.

A backtracking matcher takes more than linear time in three ways. In a loop there are two ways round by the
same text: exponential. Two loops one after the other take the same text, so that each cut between them is
tried; or a search starts again in each round of a loop and runs through the rest of it: polynomial. A
matcher tries what is left only where it fails, so a loop counts that something unlucky can follow. Texts are
of one character of each kind that the pattern tells apart. Possessive loops of single characters, atomic
groups and look-arounds of one character are known; where others only forbid, they are left out, which may
find more than there is. Repeats up to a bound are no loops.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import product
from re import _compiler, _parser  # the standard library has no public tree of a pattern
from re import _constants as sre

import numpy as np
from pattern_tree import REPEATS, SINGLE, branches, is_word, leaves, place, single
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

COPIES = 3  # of what may come up to so many times or more
SAMPLE = "aZ09_ \n\t\0-."  # characters that patterns tell apart by classes


def growth(pattern):
    """Linear, polynomial or exponential: of a compiled pattern, whichever of its methods is called."""
    automaton = Automaton(pattern)
    states = automaton.states()
    loops = [part for part in components(states) if any(states[s].keys() & part for s in part)]
    if any(two_ways(part, states) for part in loops):
        return "exponential"
    safe = automaton.safe(states)
    restarts = (automaton.restarts(q, part, states) for part in loops for q in part - safe)
    cuts = (
        p[1] == q[1] and not automaton.closed(first, q, states) and in_turn(p, first, q, then, states)
        for first, then in product(loops, loops)
        if first is not then
        for p, q in product(first, then)
    )
    return "polynomial" if any(restarts) or any(cuts) else "linear"


class Automaton:
    """Nodes with edges. A state is a node and the character that was read on the way to it."""

    def __init__(self, pattern):
        self.tree = _parser.parse(pattern.pattern, pattern.flags)
        self.flags, self.bytes = self.tree.state.flags, isinstance(pattern.pattern, bytes)
        self.reads, self.links, self.atoms = [], [], []  # by node: (characters, node); (condition, node)
        self.within = frozenset()  # atomic groups that are open while it is built
        self.groups, self.sets, self.steps = {}, {}, {}
        self.chars = self.alphabet()
        self.first, self.last = self.node(), self.node()
        self.build(list(self.tree), self.flags, self.first, self.last)

    def alphabet(self):
        """One character of each kind that the sets of the pattern tell apart."""
        singles = list(leaves(self.tree, self.flags))
        codes = {ord(c) for c in SAMPLE}
        for (op, value), _ in singles:
            for what, of in value if op is sre.IN else [(op, value)]:
                if what in (sre.LITERAL, sre.NOT_LITERAL):
                    codes |= {of, *map(ord, chr(of).swapcase())}
                elif what is sre.RANGE:
                    codes |= {of[0] - 1, *of, of[1] + 1}
        most = 0x100 if self.bytes else 0x110000
        chars = [chr(n) for n in sorted(codes) if 0 <= n < most and not 0xD800 <= n < 0xE000]
        kinds = {}
        for c in chars:
            kinds.setdefault((is_word(c), c == "\n", *(self.has(*leaf, c) for leaf in singles)), c)
        return list(kinds.values())

    def has(self, leaf, flags, char):
        """Whether a set, or a single character, of the pattern has this one."""
        key = str(leaf), flags
        if key not in self.sets:
            state = _parser.State()
            state.flags, state.str = flags, ""
            self.sets[key] = _compiler.compile(_parser.SubPattern(state, [leaf]), flags)
        return self.sets[key].fullmatch(char.encode("latin-1") if self.bytes else char) is not None

    def chars_of(self, leaf, flags):
        return frozenset(c for c in self.chars if self.has(leaf, flags, c))

    # ------------------------------------------------------------ building

    def node(self):
        self.reads.append([])
        self.links.append([])
        self.atoms.append(self.within)
        return len(self.atoms) - 1

    def link(self, a, b, condition=None):
        self.links[a].append((condition, b))

    def build(self, items, flags, a, b):
        for item in items:
            to = self.node()
            if item[0] in (sre.ATOMIC_GROUP, sre.POSSESSIVE_REPEAT):
                outside, self.within = self.within, self.within | {to}
                start, end = self.node(), self.node()
                self.link(a, start)
                self.one(item, flags, start, end)
                self.within = outside
                self.link(end, to)
            else:
                self.one(item, flags, a, to)
            a = to
        self.link(a, b)

    def one(self, item, flags, a, b):
        op, value = item
        if op in SINGLE:
            self.reads[a].append((self.chars_of(item, flags), b))
        elif op is sre.BRANCH:
            for branch in value[1]:
                self.build(list(branch), flags, a, b)
        elif op is sre.SUBPATTERN:
            name, more, less, inner = value
            self.groups[name] = list(inner), (flags | more) & ~less
            self.build(*self.groups[name], a, b)
        elif op is sre.GROUPREF:
            self.build(*self.groups[value], a, b)
        elif op is sre.ATOMIC_GROUP:
            self.build(list(value), flags, a, b)
        elif op in REPEATS:
            self.repeat(op, *value, flags, a, b)
        elif op is sre.AT:
            self.link(a, b, place(value, flags))
        elif op in (sre.ASSERT, sre.ASSERT_NOT):
            self.link(a, b, self.around(op is sre.ASSERT, *value, flags))
            if value[0] > 0:  # what it looks at takes time, too
                self.build(list(value[1]), flags, a, self.node())
        elif op is not sre.FAILURE:
            raise NotImplementedError(f"{op}: this analysis does not know it")

    def repeat(self, op, least, most, inner, flags, a, b):
        """A possessive loop of single characters is left only where the next one is none of them."""
        body, leave = list(inner), None
        if op is sre.POSSESSIVE_REPEAT and (leaf := single(body)) is not None:
            own = self.chars_of(leaf, flags)
            leave = lambda before, next: next not in own  # noqa: E731
        for _ in range(least):
            to = self.node()
            self.build(body, flags, a, to)
            a = to
        if most is sre.MAXREPEAT:
            start, end = self.node(), self.node()
            self.build(body, flags, start, end)
            for at in (a, end):
                self.link(at, start)
                self.link(at, b, leave)
            return
        for _ in range(min(most - least, COPIES)):
            self.link(a, b, leave)
            to = self.node()
            self.build(body, flags, a, to)
            a = to
        self.link(a, b)

    def around(self, wanted, direction, inner, flags):
        """The condition of a look-around on the characters next to it; None where they decide nothing."""
        chars = frozenset()
        for items in branches(list(inner)):
            leaf = items[0 if direction > 0 else -1] if items else None
            if leaf is not None and leaf[0] in SINGLE and (wanted or len(items) == 1):
                chars |= self.chars_of(leaf, flags)
            elif wanted:
                return None
        return lambda before, next: ((next if direction > 0 else before) in chars) == wanted

    # ------------------------------------------------------------ walking

    def step(self, node, before, next):
        """Nodes behind the next character, and by how many ways."""
        if (key := (node, before, next)) not in self.steps:
            ways = Counter()

            def walk(at, path):
                ways.update(to for chars, to in self.reads[at] if next in chars)
                for condition, to in self.links[at]:
                    if to not in path and (condition is None or condition(before, next)):
                        walk(to, path | {to})

            walk(node, frozenset([node]))
            self.steps[key] = ways
        return self.steps[key]

    def accepts(self, state, next):
        """Whether the pattern has matched here, before this character; None: at the end."""
        node, before = state
        found, left = {node}, [node]
        while left:
            for condition, to in self.links[left.pop()]:
                if to not in found and (condition is None or condition(before, next)):
                    found.add(to)
                    left.append(to)
        return self.last in found

    def starts(self, before, char):
        return [(node, char) for node in self.step(self.first, before, char)]

    def states(self):
        """State -> states behind the next character -> number of ways."""
        found = {}
        left = [s for before in (None, *self.chars) for c in self.chars for s in self.starts(before, c)]
        while left:
            if (state := left.pop()) not in found:
                steps = ((c, self.step(*state, c)) for c in self.chars)
                found[state] = {(node, c): n for c, ways in steps for node, n in ways.items()}
                left += found[state]
        return found

    def safe(self, states):
        """The states from which a match is certain, whatever follows."""

        def certain(s):
            return self.accepts(s, None) and all(
                self.accepts(s, c) or any((node, c) in safe for node in self.step(*s, c)) for c in self.chars
            )

        safe = set(states)
        while lost := {s for s in safe if not certain(s)}:
            safe -= lost
        return safe

    def restarts(self, q, part, states):
        """Whether a search that starts in each round of a loop arrives in it, and none of them matches by the
        end of a round."""

        def rounds(state):
            return [t for t in states[state] if t in part and not self.accepts(state, t[1])]

        left = [(s, t) for t in rounds(q) for s in self.starts(q[1], t[1])]
        found = set()
        while left:
            if (pair := left.pop()) == (q, q):
                return True
            if pair not in found:
                found.add(pair)
                left += [(s, t) for t in rounds(pair[1]) for s in states[pair[0]] if s[1] == t[1]]
        return False

    def closed(self, part, q, states):
        """Whether all rounds of a loop are within an atomic group that is closed at q: then none of them is
        tried again."""
        shared = frozenset.intersection(*(self.atoms[node] for node, _ in part))
        return any(
            not any(t in part and self.leaves(s, t, group) for s in part for t in states[s])
            for group in shared - self.atoms[q[0]]
        )

    def leaves(self, s, t, group):
        """Whether a way from one state to the next leaves an atomic group."""
        found, left = set(), [(s[0], group not in self.atoms[s[0]])]
        while left:
            if (at := left.pop()) in found:
                continue
            found.add(at)
            if at[1] and any(to == t[0] and t[1] in chars for chars, to in self.reads[at[0]]):
                return True
            for condition, to in self.links[at[0]]:
                if condition is None or condition(s[1], t[1]):
                    left.append((to, at[1] or group not in self.atoms[to]))
        return False


def two_ways(part, states):
    """Whether a loop has two ways round by the same text."""
    rounds = {s: [t for t in states[s] if t in part] for s in part}
    if any(states[s][t] > 1 for s in part for t in rounds[s]):
        return True
    left = [(t, u) for s in part for t, u in product(rounds[s], rounds[s]) if t[0] < u[0] and t[1] == u[1]]
    found = set()
    while left:
        a, b = pair = left.pop()
        if a == b:
            return True
        if pair not in found:
            found.add(pair)
            left += [(t, u) for t, u in product(rounds[a], rounds[b]) if t[1] == u[1]]
    return False


def in_turn(p, first, q, then, states):
    """Whether the same text goes round the first loop, from it to the next, and round the next."""
    found, left = set(), [(p, p, q)]
    while left:
        a, between, b = left.pop()
        rounds, last = defaultdict(list), defaultdict(list)
        for loop, by, state in ((first, rounds, a), (then, last, b)):
            for t in states[state]:
                if t in loop:
                    by[t[1]].append(t)
        for t in states[between]:
            for triple in product(rounds[t[1]], [t], last[t[1]]):
                if triple == (p, q, q):
                    return True
                if triple not in found:
                    found.add(triple)
                    left.append(triple)
    return False


def components(graph):
    """The sets of states that are reached from each other."""
    states = list(graph)
    number = {state: n for n, state in enumerate(states)}
    edges = [(number[s], number[t]) for s in states for t in graph[s]]
    rows, columns = zip(*edges, strict=True) if edges else ((), ())
    shape = len(states), len(states)
    matrix = coo_array((np.ones(len(edges)), (rows, columns)), shape)
    count, labels = connected_components(matrix, connection="strong")
    parts = [set() for _ in range(count)]
    for state, label in zip(states, labels, strict=True):
        parts[label].add(state)
    return parts
