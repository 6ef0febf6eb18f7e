"""Example questions with their calls, and the nearest one filled in for another question.

A bank's questions and calls have places: `{movie}`, `{day}`. To compare a question with it, the names,
times and numbers in both give way to words that say nothing, so that what is left is how the question is
asked. Pure functions; knows neither graph nor model: names come as mentions, nearness as numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, TypeAlias

from raypipe.contrib.crag.language.answer_rules import RULES
from raypipe.contrib.crag.language.program import (
    KINDS,
    Mean,
    Names,
    Program,
    Query,
    Text,
    print_program,
    quoted,
)
from raypipe.contrib.crag.language.time_words import When, when
from raypipe.contrib.crag.records import Mention
from raypipe.core.records import Span
from raypipe.core.references import ExampleFile, ShownExample
from raypipe.text.moments import Moment

DOMAINS: Final = ("movie", "finance", "music", "sports", "open")
Domain: TypeAlias = Literal["movie", "finance", "music", "sports", "open"]
NAMES: Final = frozenset(
    {"movie", "person", "company", "artist", "song", "nba", "soccer", "entity", "character"}
)
"""Kinds of places that a name of the graph fills."""
NO_CALLS: Final = "None"

_PLACE = re.compile(r"\{(\w+)(?::(\w+))?(?:\.(first|last))?\}")
_MASKS: Final = {"day": "may 2", "period": "may 2007", "year": "1999", "number": "7"}
_NAME_MASK: Final = "xylo"


@dataclass(frozen=True, slots=True)
class ExampleGroup:
    """Questions that are the same but for their words."""

    domain: Domain
    calls: str  # a program with places; NO_CALLS: the graph cannot tell
    questions: tuple[str, ...]  # lower case, with places
    rule: str = "value"  # of answer_rules.RULES

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule: expected one of {', '.join(RULES)}, found {self.rule!r}")
        if not self.questions or not self.calls.strip():
            raise ValueError("expected calls and at least one question")
        for question in self.questions:
            known = {m[0] for m in _PLACE.finditer(question)}
            for m in _PLACE.finditer(question + self.calls):
                if m[1] not in (places := NAMES | _MASKS.keys()):
                    raise ValueError(f"{m[0]}: expected a place of {', '.join(sorted(places))}")
            for m in _PLACE.finditer(self.calls):
                if m[0].replace(".first", "").replace(".last", "") not in known:
                    raise ValueError(f"{m[0]} stands in the calls and not in the question {question!r}")


@dataclass(frozen=True)
class ExampleBank(ExampleFile):
    """Groups of examples, as a file under examples/ has them."""

    examples: tuple[ExampleGroup, ...]

    def __post_init__(self) -> None:
        if not self.examples:
            raise ValueError("examples: expected at least one, found none")

    def count(self) -> int:
        return len(self.flat)

    def shown(self) -> tuple[ShownExample, ...]:
        return tuple(
            ShownExample(masked(q), shown_example(group, q), f"{i}", "")
            for i, group in enumerate(self.examples)
            for q in group.questions
        )

    @cached_property
    def flat(self) -> tuple[tuple[ExampleGroup, str], ...]:
        """Every question with its group, in the order of the file."""
        return tuple((g, q) for g in self.examples for q in g.questions)

    @cached_property
    def words(self) -> frozenset[str]:
        """Words that questions are made of: a name of nothing but these is taken for words."""
        return frozenset(w for _, q in self.flat for w in re.findall(r"\w+", _PLACE.sub(" ", q)))


Kind: TypeAlias = Literal["name", "day", "period", "year", "number"]
"""Kinds of a part of a question. A period is several days: a month, a quarter, last week."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of a question that may fill a place."""

    span: Span
    kind: Kind
    names: Mapping[str, str]  # of a name: kind -> as the graph spells it
    text: str  # as it stands in the question


@dataclass(frozen=True, slots=True)
class MaskedQuestion:
    text: str
    masked: str
    slots: tuple[Slot, ...]  # in the order of the text


@dataclass(frozen=True, slots=True)
class FilledExample:
    group: ExampleGroup
    calls: str  # NO_CALLS, or a program
    score: float  # of the example, as it was given


def masked(example: str) -> str:
    """An example's question without its places.

    >>> masked("who played {character} in {movie} in 1998?")
    'who played xylo in xylo in 1999?'
    """
    text = _PLACE.sub(lambda m: _MASKS.get(m[1], _NAME_MASK), example)
    return _without(text, _timed(text, []))


def mask_question(text: str, mentions: Sequence[Mention], bank: ExampleBank) -> MaskedQuestion:
    """A question's places: names that the graph has, times, years and numbers. The mentions are of the
    text with single spaces."""
    # every character stays in its place: mentions say where names stand
    text = "".join(low if len(low := c.lower()) == 1 else c for c in " ".join(text.split()))
    names = [
        Slot(m.span, "name", m.names, text[slice(*m.span)])
        for m in mentions
        if not set(re.findall(r"\w+", text[slice(*m.span)])) <= bank.words
    ]
    slots = sorted([*names, *_timed(text, [n.span for n in names])], key=lambda s: s.span)
    return MaskedQuestion(text, _without(text, slots), tuple(slots))


def nearest(
    question: MaskedQuestion, bank: ExampleBank, scores: Sequence[float], least: float, now: Moment
) -> FilledExample | None:
    """The best-scored example that fits: every placeholder of its calls is filled, and everything that the
    question names is used. None if none of at least `least` fits. `scores` is parallel to
    `ExampleBank.flat`; of equals the first."""
    for i in sorted(range(len(bank.flat)), key=lambda i: -scores[i]):
        if scores[i] < least:
            return None
        group, example = bank.flat[i]
        places = _places(question, example)
        if places is not None and (calls := fill(group.calls, places, now)) is not None:
            return FilledExample(group, calls, float(scores[i]))
    return None


_DIGITS = re.compile(r"\$?(?<![\w.-])(\d+(?:,\d{3})*(?:\.\d+)?)(?![\w-]|\.\d)", re.ASCII)
_YEAR = re.compile(r"(?:1[5-9]|20)\d\d", re.ASCII)
_WORD = re.compile(r"[\w/-]+")
_MOST_TIME_WORDS: Final = 6  # "the third quarter of 2023" has five
_NOT_A_TIME: Final = frozenset({"today", "now", "may", "march", "sun", "sat", "mon", "this", "current"})
"""Words that alone are no place: they say how a question is asked, or are mostly something else."""


def _timed(text: str, taken: Sequence[Span]) -> list[Slot]:
    """Times, years and numbers outside the spans that are taken, the longest first."""
    words = [m.span() for m in _WORD.finditer(text)]
    found, used = list[Slot](), list(taken)

    def clear(span: Span) -> bool:
        return all(span[1] <= a or b <= span[0] for a, b in used)

    for size in range(_MOST_TIME_WORDS, 0, -1):
        for i in range(len(words) - size + 1):
            span = (words[i][0], words[i + size - 1][1])
            phrase = text[slice(*span)]
            if not clear(span) or phrase in _NOT_A_TIME or _YEAR.fullmatch(phrase):
                continue
            there = when(phrase, _ANY)
            if there is not None and there.kind == "days" and not phrase.startswith("the "):
                found.append(Slot(span, "day" if there.first == there.last else "period", {}, phrase))
                used.append(span)
    for m in _DIGITS.finditer(text):
        if clear(m.span()):
            kind: Kind = "year" if _YEAR.fullmatch(m[0]) else "number"
            found.append(Slot(m.span(), kind, {}, m[1].replace(",", "")))
    return found


_ANY: Final = Moment.at_noon(2024, 3, 6)  # whether words are a time does not depend on the day


def _without(text: str, slots: Sequence[Slot]) -> str:
    out, at = [], 0
    for slot in sorted(slots, key=lambda s: s.span):
        out += [text[at : slot.span[0]], _MASKS.get(slot.kind, _NAME_MASK)]
        at = slot.span[1]
    return "".join([*out, text[at:]])


def _places(question: MaskedQuestion, example: str) -> dict[str, Slot] | None:
    """Place -> what fills it; None if a place stays empty or something named is left over."""
    left = list(question.slots)
    places: dict[str, Slot] = {}
    for m in _PLACE.finditer(example):
        kinds = (m[1], "year") if m[1] == "period" else (m[1],)
        slot = next((s for s in left if m[1] in s.names or (m[1] not in NAMES and s.kind in kinds)), None)
        if slot is None:
            return None
        left.remove(slot)
        places[m[0]] = slot
    if any(s.kind == "name" for s in left):
        return None
    literal = _PLACE.sub(" ", example)
    return places if all(s.text in literal for s in left) else None


def fill(calls: str, places: Mapping[str, Slot], now: Moment) -> str | None:
    """Calls with their places filled. A time stands there as it was written; its first or last day as a
    date. None if a word for a time has no days."""
    missing = list[Slot]()

    def put(m: re.Match[str]) -> str:
        slot = places[m[0].replace(".first", "").replace(".last", "")]
        if m[1] in NAMES:
            return quoted(slot.names[m[1]])
        if m[3]:
            there: When | None = when(slot.text, now)
            if there is None or there.kind != "days":
                missing.append(slot)
                return ""
            return quoted(str(there.first if m[3] == "first" else there.last))
        return quoted(slot.text) if m[1] in ("day", "period") else slot.text

    filled = _PLACE.sub(put, calls)
    return None if missing else filled


def shown_example(group: ExampleGroup, question: str) -> str:
    """An example as a prompt shows it: its places filled with words that say what belongs there.

    >>> question = "where did {company} end on {day}?"
    >>> group = ExampleGroup("finance", "get_stock_price({company}, {day})[close]", (question,))
    >>> print(shown_example(group, question))
    Query: where did company end on march 4, 2024?
    Calls:
    get_stock_price("company", "march 4, 2024")[close]
    """

    def in_calls(m: re.Match[str]) -> str:
        bare = m[1] in ("year", "number") and not m[3]
        return _word(m) if bare else quoted(_word(m))

    query, calls = _PLACE.sub(_word, question), _PLACE.sub(in_calls, group.calls)
    return f"Query: {query}\nCalls:\n{calls}"


_SHOWN: Final = {"day": "march 4, 2024", "period": "february 2024", "year": "2023", "number": "7"}
_ENDS: Final = {
    "period": {"first": "2024-02-01", "last": "2024-02-29"},
    "year": {"first": "2023-01-01", "last": "2023-12-31"},
}


def _word(m: re.Match[str]) -> str:
    if m[3]:
        return _ENDS[m[1]][m[3]]
    return _SHOWN.get(m[1]) or " ".join(p for p in (m[1], m[2]) if p)


def example(question: str, program: Program, domain: Domain, rule: str = "value") -> ExampleGroup:
    """The example of a question and the program that answers it. Raises ValueError for a broken one.

    >>> from raypipe.contrib.crag.language.program import Tail
    >>> call = Query("get_movie", (Text("velora"),), (), Tail("length"))
    >>> made = example("How long is Velora?", Program((call,)), "movie")
    >>> made.questions, made.calls
    (('how long is {movie}?',), 'get_movie({movie})["length"]')
    """
    text, calls = " ".join(question.split()).lower(), print_program(program)
    kinds = dict(_names(program, domain))
    found = sorted((n for n in kinds if n.lower() in text), key=lambda n: text.index(n.lower()))
    for name in found:
        of_kind = [n for n in found if kinds[n] == kinds[name]]
        tag = "" if len(of_kind) == 1 else f":{'abcdefghi'[of_kind.index(name)]}"
        place = f"{{{kinds[name]}{tag}}}"
        text, calls = text.replace(name.lower(), place), calls.replace(quoted(name), place)
    return ExampleGroup(domain, calls, (text,), rule)


def _names(program: Program, domain: Domain) -> Sequence[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    for line in program.lines:
        query = line.of if isinstance(line, Mean) else line
        if not isinstance(query, Query):
            continue
        for arg, kind in zip(query.args, KINDS[query.name], strict=False):
            items = arg.items if isinstance(arg, Names) else (arg,)
            kind = "artist" if kind == "person" and query.name == "get_person" and domain == "music" else kind
            out += [(i.value, kind) for i in items if isinstance(i, Text) and kind != "year"]
    return out
