"""Separates what a reasoning model thought from what it says. Pure functions; knows no model.

A thought stands between `<think>` and `</think>`, or the marks of other makers. A chat template may write the
opening mark itself, so a closing one alone ends a thought, too. Servers that send thoughts in a field of
their own are read into the same form (`thinking`). The last mark decides: whatever stands before a closing
mark is thought, and behind an opening mark that nothing closes there is no answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from raypipe.text.replies import UnreadableReply

_WORD = "think|thinking|thought|reasoning"
_OPEN = re.compile(rf"<(?:{_WORD})>|\[THINK\]|\u25c1think\u25b7", re.IGNORECASE)
_CLOSE = re.compile(rf"</(?:{_WORD})>|\[/THINK\]|\u25c1/think\u25b7", re.IGNORECASE)

_MARKS = (
    *(f"<{close}{word}>" for word in _WORD.split("|") for close in ("", "/")),
    "[think]",
    "[/think]",
    "\u25c1think\u25b7",
    "\u25c1/think\u25b7",
)
_LONGEST = max(map(len, _MARKS))
MOST_CHARS = 500_000
"""Limit of a reply that is read: what a window of 131,072 tokens holds. All that reads replies is linear in
their length: they take some tenths of a second at this bound."""
_MARK = re.compile(f"{_OPEN.pattern}|{_CLOSE.pattern}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SplitReply:
    thoughts: str  # with their marks; "": it shows none
    answer: str  # what it says; "" where it says nothing behind its thoughts
    closed: bool  # False: the reply ends inside a thought


def split_thoughts(text: str) -> SplitReply:
    """The thoughts and the answer of a reply. A reply without marks is an answer as it stands; one of more
    than MOST_CHARS has none.

    >>> split_thoughts("<think>Lindqvist?</think> Anna Lindqvist")
    SplitReply(thoughts='<think>Lindqvist?</think>', answer=' Anna Lindqvist', closed=True)
    >>> split_thoughts("Lindqvist?</think>Anna Lindqvist").answer
    'Anna Lindqvist'
    >>> split_thoughts("<think>It may be Anna Lindqvist")
    SplitReply(thoughts='<think>It may be Anna Lindqvist', answer='', closed=False)
    """
    if len(text) > MOST_CHARS:
        return SplitReply(text, "", False)
    end = max((m.end() for m in _CLOSE.finditer(text)), default=0)
    if _OPEN.search(text, end):
        return SplitReply(text, "", False)
    return SplitReply(text[:end], text[end:], True)


def answer_of(text: str) -> str:
    """Returns what a reply says behind its thoughts. Raises UnreadableReply where it says nothing there."""
    if (length := len(text)) > MOST_CHARS:
        raise UnreadableReply(f"expected a reply of at most {MOST_CHARS:,} characters, found {length:,}")
    found = split_thoughts(text)
    if not found.closed:
        raise UnreadableReply(
            "expected an answer, found a thought that does not end: raise max_tokens, or thought_tokens of "
            "the model's entry"
        )
    if found.thoughts and not found.answer.strip():
        raise UnreadableReply("expected an answer behind the model's thoughts, found none")
    return found.answer


def thinking(thoughts: str, answer: str) -> str:
    """A reply whose thoughts came in a field of their own, with its marks; without an answer, unclosed.

    >>> thinking("so", "yes"), thinking("so", ""), thinking("", "yes")
    ('<think>so</think>yes', '<think>so', 'yes')
    """
    if not thoughts:
        return answer
    return f"<think>{thoughts}</think>{answer}" if answer.strip() else f"<think>{thoughts}"


def thought_tokens(text: str, tokens: int) -> int:
    """Returns how many of a reply's tokens are thoughts, by their share of its characters: about.

    >>> thought_tokens("<think>so</think>yes, it is", 9), thought_tokens("yes", 1)
    (6, 0)
    """
    thoughts = split_thoughts(text).thoughts
    return round(tokens * len(thoughts) / len(text)) if thoughts else 0


@dataclass(slots=True)
class DraftText:
    """A reply while it is written: what of it is no thought.

    >>> draft = DraftText()
    >>> "".join(draft.add(piece) for piece in ("It is ", "<th", "ink>Ann? B", "ob?</think>", "Bob < Ann."))
    'It is Bob < Ann.'
    """

    thinking: bool = False  # it is inside a thought; True at first, of a model whose chat template opens one
    held: str = ""  # the end of what was read, which may be the begin of a mark

    def add(self, piece: str) -> str:
        """Takes the next piece; what can be shown by now."""
        self.held += piece
        shown = ""
        while (mark := (_CLOSE if self.thinking else _MARK).search(self.held)) is not None:
            if not self.thinking:
                shown += self.held[: mark.start()]
            self.thinking = not self.thinking and _OPEN.fullmatch(mark[0]) is not None
            self.held = self.held[mark.end() :]
        ends = (self.held[i:] for i in range(max(0, len(self.held) - _LONGEST), len(self.held)))
        begun = next((end for end in ends if any(m.startswith(end.lower()) for m in _MARKS)), "")
        if not self.thinking:
            shown += self.held.removesuffix(begun)
        self.held = begun
        return shown

    def rest(self) -> str:
        """Returns what is left when the reply is whole: the begin of no mark."""
        return "" if self.thinking else self.held
