"""Questions that a model made from passages: reads its reply, and holds it to rules. Pure functions on text.

What passes has golds with exact spans: each quote stands in its passage, character by character. A question
that breaks a rule is rejected with one of REASONS; whether it can be answered is asked elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from raypipe.core.records import IDK, Span
from raypipe.text.replies import UnreadableReply, json_object

MadeKind: TypeAlias = Literal["fact", "two", "list", "comparison", "unanswerable"]
PASSAGES: Mapping[MadeKind, int] = {"fact": 1, "two": 2, "list": 1, "comparison": 2, "unanswerable": 1}
"""Passages that a question of each kind is made from."""

REASONS: Mapping[str, str] = {
    "unreadable": "the reply is no such object",
    "declined": "the model found nothing to ask",
    "form": "the question is too short or too long, or asks nothing",
    "refers": "the question speaks of its passage",
    "answer_form": "there is no answer, or a long one",
    "answer_not_found": "the answer does not stand in the passages",
    "answer_told": "the answer stands in the question",
    "no_choice": "the answer of a comparison is neither side, nor yes or no",
    "quote_not_found": "a quote does not stand in its passage",
    "double": "an earlier question asks the same",
    "not_answerable": "the passages do not give this answer",
    "answerable": "the documents answer what they should not",
    "known_without": "the model answers it without the passages",
    "no_reply": "a call failed",
}
"""Why a question is rejected."""

QUESTION_CHARS, ANSWER_CHARS, ITEMS = (12, 300), 200, (2, 8)
ALIKE = 0.8  # share of common words from which two questions are doubles
_REFERS = re.compile(
    r"\b(?:passages?|the (?:above|following|given|provided)|(?:this|the) (?:text|document|article|excerpt|"
    r"author|section|paragraph|page)|according to (?:this|the (?:text|document)))\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+")
_QUOTES = str.maketrans({"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\u00a0": " "})


@dataclass(frozen=True, slots=True)
class MadeText:
    question: str
    answers: tuple[str, ...]  # a list is one text with commas; of an unanswerable one "i don't know"
    items: tuple[str, ...]  # all of which a right answer names; () where it is one thing
    quotes: tuple[tuple[int, Span], ...]  # number of the passage, span in it


class Rejected(Exception):
    """A reply that is no good question; `reason` is one of REASONS."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{REASONS[reason]}{f': {detail}' if detail else ''}")
        self.reason = reason


def read(reply: str, kind: MadeKind, passages: Sequence[str]) -> MadeText:
    """The question in a model's reply about these passages. Raises Rejected.

    >>> said = '{"question": "Who made Velora?", "answer": "Ann Lind", "quotes": ["by Ann Lind"]}'
    >>> read(said, "fact", ["Velora was made by Ann Lind."])
    MadeText(question='Who made Velora?', answers=('Ann Lind',), items=(), quotes=((0, (16, 27)),))
    """
    try:
        tree = json_object(reply)
    except UnreadableReply as e:
        raise Rejected("unreadable", str(e)) from e
    question = " ".join(_text(tree.get("question")).split())
    if not question:
        raise Rejected("declined")
    if not QUESTION_CHARS[0] <= len(question) <= QUESTION_CHARS[1] or not question.endswith("?"):
        raise Rejected("form", question[:80])
    if _REFERS.search(question):
        raise Rejected("refers", question[:80])
    if kind == "unanswerable":
        return MadeText(question, (IDK,), (), ())
    items = _answer(tree.get("answer"), kind)
    chosen = kind != "comparison" or items[0].lower() in ("yes", "no")
    if not chosen and place(question, items[0]) is None:
        raise Rejected("no_choice", items[0][:80])
    for item in () if kind == "comparison" else items:
        if not any(place(p, item) for p in passages):
            raise Rejected("answer_not_found", item[:80])
        if place(question, item) is not None:
            raise Rejected("answer_told", item[:80])
    quotes = _quotes(tree.get("quotes"), kind, passages)
    return MadeText(question, (", ".join(items),), items if kind == "list" else (), quotes)


def doubles(question: str, others: Sequence[frozenset[str]]) -> bool:
    """Returns whether another question (as `words` of it) has nearly the same words."""
    mine = words(question)
    return any(len(mine & other) >= ALIKE * len(mine | other) for other in others)


def words(question: str) -> frozenset[str]:
    return frozenset(_WORD.findall(question.lower()))


def place(text: str, quote: str) -> Span | None:
    """Returns where a quote stands in a text with folded white space; case, and forms of quotation marks, may
    differ.

    >>> place("He said \u201cno\u201d.", 'said  "NO"')
    (3, 12)
    """
    wanted = " ".join(quote.split()).translate(_QUOTES)
    given = text.translate(_QUOTES)
    if not wanted:
        return None
    at = given.find(wanted)
    if at < 0 and len(given.lower()) == len(given):
        at = given.lower().find(wanted.lower())
    return None if at < 0 else (at, at + len(wanted))


def _answer(given: Any, kind: MadeKind) -> tuple[str, ...]:
    found = [given] if isinstance(given, str | int | float) else given
    if not isinstance(found, list) or not all(isinstance(x, str | int | float) for x in found):
        raise Rejected("answer_form")
    items = tuple(dict.fromkeys(s for x in found if (s := " ".join(str(x).split()).rstrip("."))))
    many = ITEMS[0] <= len(items) <= ITEMS[1] if kind == "list" else len(items) == 1
    if not many or len(", ".join(items)) > ANSWER_CHARS:
        raise Rejected("answer_form", ", ".join(items)[:80])
    return items


def _quotes(given: Any, kind: MadeKind, passages: Sequence[str]) -> tuple[tuple[int, Span], ...]:
    """Each quote with its place; of two passages both must be quoted."""
    if not isinstance(given, list) or not given:
        raise Rejected("quote_not_found", "none is given")
    found: list[tuple[int, Span]] = []
    for quote in map(_text, given):
        places = ((n, span) for n, p in enumerate(passages) if (span := place(p, quote)))
        if (where := next(places, None)) is None:
            raise Rejected("quote_not_found", quote[:80])
        found.append(where)
    if len({n for n, _ in found}) < PASSAGES[kind]:
        raise Rejected("quote_not_found", "of the other passage")
    return tuple(dict.fromkeys(found))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
