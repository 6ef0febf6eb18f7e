"""Example questions with their calls. The nearest example is filled in for another question.

Questions and calls of a bank have places, such as `{movie}` and `{day}`. For a comparison, neutral words
replace the names, times and numbers of a question and of each example: only the wording is compared. Names
come as mentions and similarities as scores, so neither a graph nor a model is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, TypeAlias

from raypipe.contrib.crag.language import program as p
from raypipe.contrib.crag.language.answer_rules import RULES
from raypipe.contrib.crag.language.time_words import When, when
from raypipe.contrib.crag.records import Mention
from raypipe.contrib.crag.schema import NAMES
from raypipe.core.records import Span
from raypipe.core.references import ExampleFile, ShownExample
from raypipe.text.moments import Moment

Domain: TypeAlias = Literal["movie", "finance", "music", "sports", "open"]
NO_CALLS: Final = "None"

_PLACE = re.compile(r"\{(\w+)(?::(\w+))?(?:\.(first|last))?\}")
_MASKS: Final = {"day": "may 2", "period": "may 2007", "year": "1999", "number": "7"}
_NAME_MASK: Final = "xylo"


@dataclass(frozen=True, slots=True)
class ExampleGroup:
    """Questions in different words that the same calls answer."""

    domain: Domain
    calls: str  # a program with places; NO_CALLS: the graph lacks the answer
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
                if m[1] not in (places := NAMES.keys() | _MASKS.keys()):
                    raise ValueError(f"{m[0]}: expected a place of {', '.join(sorted(places))}")
            for m in _PLACE.finditer(self.calls):
                if m[0].replace(".first", "").replace(".last", "") not in known:
                    raise ValueError(f"{m[0]} is in the calls, but not in the question {question!r}")


@dataclass(frozen=True)
class ExampleBank(ExampleFile):
    """Groups of examples, read from a file under examples/."""

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
        """Words of all example questions. Mentions made only of these words are not taken for names."""
        return frozenset(w for _, q in self.flat for w in re.findall(r"\w+", _PLACE.sub(" ", q)))


Kind: TypeAlias = Literal["name", "day", "period", "year", "number"]
"""Kind of a part of a question. A period has several days: a month, a quarter, last week."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Part of a question that may fill a place."""

    span: Span
    kind: Kind
    names: Mapping[str, str]  # kind of name -> the graph's spelling; {} if `kind` is not name
    text: str  # in lower case; numbers without commas and $


@dataclass(frozen=True, slots=True)
class MaskedQuestion:
    text: str
    masked: str
    slots: tuple[Slot, ...]  # in the order of the text


@dataclass(frozen=True, slots=True)
class FilledExample:
    group: ExampleGroup
    calls: str  # NO_CALLS, or a program
    score: float  # of the example


def masked(example: str) -> str:
    """Replaces the places and times in an example's question by neutral words.

    >>> masked("who played {character} in {movie} in 1998?")
    'who played xylo in xylo in 1999?'
    """
    text = _PLACE.sub(lambda m: _MASKS.get(m[1], _NAME_MASK), example)
    return _without(text, _timed(text, []))


def mask_question(text: str, mentions: Sequence[Mention], bank: ExampleBank) -> MaskedQuestion:
    """Finds and masks the slots of a question: names of the graph, times, years and numbers. The spans of
    `mentions` refer to the text with single spaces."""
    # lower case must not move a character: mentions hold offsets
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
    """Returns the best-scored example that fits, filled in; None if none of at least `least` fits. An example
    fits if the question fills all its places. No name may remain unused; any other time or number must occur
    in the example too. `scores` is parallel to `ExampleBank.flat`; of equal scores the first wins."""
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
"""Words that fill no place on their own: they are wording, or usually mean something else."""


def _timed(text: str, taken: Sequence[Span]) -> list[Slot]:
    """Finds times, years and numbers outside the spans in `taken`, the longest first."""
    words = [m.span() for m in _WORD.finditer(text)]
    slots, used = list[Slot](), list(taken)

    def clear(span: Span) -> bool:
        return all(span[1] <= a or b <= span[0] for a, b in used)

    for size in range(_MOST_TIME_WORDS, 0, -1):
        for i in range(len(words) - size + 1):
            span = (words[i][0], words[i + size - 1][1])
            phrase = text[slice(*span)]
            if not clear(span) or phrase in _NOT_A_TIME or _YEAR.fullmatch(phrase):
                continue
            time = when(phrase, _ANY)
            if time is not None and time.kind == "days" and not phrase.startswith("the "):
                slots.append(Slot(span, "day" if time.first == time.last else "period", {}, phrase))
                used.append(span)
    for m in _DIGITS.finditer(text):
        if clear(m.span()):
            kind: Kind = "year" if _YEAR.fullmatch(m[0]) else "number"
            slots.append(Slot(m.span(), kind, {}, m[1].replace(",", "")))
    return slots


_ANY: Final = Moment.at_noon(2024, 3, 6)  # any day: it does not decide which words are a time


def _without(text: str, slots: Sequence[Slot]) -> str:
    out, at = [], 0
    for slot in sorted(slots, key=lambda s: s.span):
        out += [text[at : slot.span[0]], _MASKS.get(slot.kind, _NAME_MASK)]
        at = slot.span[1]
    return "".join([*out, text[at:]])


def _places(question: MaskedQuestion, example: str) -> dict[str, Slot] | None:
    """Returns place -> slot that fills it; None if the example does not fit (see `nearest`)."""
    unused = list(question.slots)
    places: dict[str, Slot] = {}
    for m in _PLACE.finditer(example):
        kinds = (m[1], "year") if m[1] == "period" else (m[1],)
        slot = next((s for s in unused if m[1] in s.names or (m[1] not in NAMES and s.kind in kinds)), None)
        if slot is None:
            return None
        unused.remove(slot)
        places[m[0]] = slot
    if any(s.kind == "name" for s in unused):
        return None
    literal = _PLACE.sub(" ", example)
    return places if all(s.text in literal for s in unused) else None


def fill(calls: str, places: Mapping[str, Slot], now: Moment) -> str | None:
    """Fills the places of calls. A time is written as in the question, its `.first` or `.last` day as a date.
    Returns None if such a day does not exist."""
    missing = list[Slot]()

    def put(m: re.Match[str]) -> str:
        slot = places[m[0].replace(".first", "").replace(".last", "")]
        if m[1] in NAMES:
            return p.quoted(slot.names[m[1]])
        if m[3]:
            time: When | None = when(slot.text, now)
            if time is None or time.kind != "days":
                missing.append(slot)
                return ""
            return p.quoted(str(time.first if m[3] == "first" else time.last))
        return p.quoted(slot.text) if m[1] in ("day", "period") else slot.text

    filled = _PLACE.sub(put, calls)
    return None if missing else filled


def shown_example(group: ExampleGroup, question: str) -> str:
    """Formats an example for a prompt: a sample word in each place shows what belongs there.

    >>> question = "where did {company} end on {day}?"
    >>> group = ExampleGroup("finance", "get_stock_price({company}, {day})[close]", (question,))
    >>> print(shown_example(group, question))
    Query: where did company end on march 4, 2024?
    Calls:
    get_stock_price("company", "march 4, 2024")[close]
    """

    def in_calls(m: re.Match[str]) -> str:
        bare = m[1] in ("year", "number") and not m[3]
        return _word(m) if bare else p.quoted(_word(m))

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
    return _SHOWN.get(m[1]) or " ".join(part for part in (m[1], m[2]) if part)


def example(question: str, program: p.Program, domain: Domain, rule: str = "value") -> ExampleGroup:
    """Makes an example of a question and its program. Raises ValueError if they form no valid example.

    >>> call = p.Query("get_movie", (p.Text("velora"),), (), p.Tail("length"))
    >>> made = example("How long is Velora?", p.Program((call,)), "movie")
    >>> made.questions, made.calls
    (('how long is {movie}?',), 'get_movie({movie})["length"]')
    """
    text, calls = " ".join(question.split()).lower(), p.print_program(program)
    kinds: dict[str, str] = {}  # name -> kind of place
    for line in program.lines:
        query = line.of if isinstance(line, p.Mean) else line
        if not isinstance(query, p.Query):
            continue
        for arg, kind in zip(query.args, p.KINDS[query.name], strict=False):
            items = arg.items if isinstance(arg, p.Names) else (arg,)
            kind = "artist" if kind == "person" and query.name == "get_person" and domain == "music" else kind
            kinds |= {i.value: kind for i in items if isinstance(i, p.Text) and kind != "year"}
    named = sorted((n for n in kinds if n.lower() in text), key=lambda n: text.index(n.lower()))
    for name in named:
        of_kind = [n for n in named if kinds[n] == kinds[name]]
        tag = "" if len(of_kind) == 1 else f":{'abcdefghi'[of_kind.index(name)]}"
        place = f"{{{kinds[name]}{tag}}}"
        text, calls = text.replace(name.lower(), place), calls.replace(p.quoted(name), place)
    return ExampleGroup(domain, calls, (text,), rule)
