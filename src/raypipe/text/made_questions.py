"""Questions that a model makes from passages: pure functions that parse and check the model's reply.

Each quote of an accepted question occurs in one of the passages, so its span is exact; a question without an
answer has no quotes. A question that breaks a rule is rejected with one of REASONS. Another module checks
whether the question can be answered.
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
"""Kind of question -> number of passages from which it is made."""

REASONS: Mapping[str, str] = {
    "unreadable": "the reply is not the JSON object asked for",
    "declined": "the model found nothing to ask",
    "form": "the question is too short or too long, or asks nothing",
    "refers": "the question mentions its passage",
    "answer_form": "the answer is missing or too long",
    "answer_not_found": "the answer is not in the passages",
    "answer_told": "the question contains the answer",
    "no_choice": "the answer to a comparison is not one of its sides, yes or no",
    "quote_not_found": "a quote is not in its passage",
    "double": "an earlier question asks the same",
    "not_answerable": "the passages do not give this answer",
    "answerable": "the documents answer it, but should not",
    "known_without": "the model answers it without the passages",
    "no_reply": "a call failed",
}
"""Reason for rejecting a question -> its description."""

QUESTION_CHARS, ANSWER_CHARS, ITEMS = (12, 300), 200, (2, 8)
ALIKE = 0.8  # least share of words that two questions have in common to count as doubles
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
    answers: tuple[str, ...]  # one text; a list with commas; "i don't know" for an unanswerable question
    items: tuple[str, ...]  # for a list: the items, all of which a right answer must name; else ()
    quotes: tuple[tuple[int, Span], ...]  # (index of the passage, span in it); () if unanswerable


class Rejected(Exception):
    """Error of a reply that breaks a rule; `reason` is one of REASONS."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{REASONS[reason]}{f': {detail}' if detail else ''}")
        self.reason = reason


def read(reply: str, kind: MadeKind, passages: Sequence[str]) -> MadeText:
    """Reads the question in a model's reply about passages. Raises Rejected if it breaks a rule.

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
    """Returns whether a question has nearly the same words as one of `others`, sets that `words` made."""
    mine = words(question)
    return any(len(mine & other) >= ALIKE * len(mine | other) for other in others)


def words(question: str) -> frozenset[str]:
    return frozenset(_WORD.findall(question.lower()))


def place(text: str, quote: str) -> Span | None:
    """Returns the span of a quote in `text`, or None. `text` has folded white space.

    The quote may differ in white space, in case and in the form of quotation marks.

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
    """Finds each quote in a passage. Raises Rejected if a quote is in none, or too few passages have one."""
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
