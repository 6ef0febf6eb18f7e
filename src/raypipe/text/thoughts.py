"""Separation of a reasoning model's thoughts from its answer. Pure functions, independent of models.

A thought is text between `<think>` and `</think>`, or the marks of other makers. All text before the last
closing mark is thought, since a chat template may write the opening mark itself. A reply has no answer if an
opening mark is not closed. `thinking` writes thoughts from a server's separate field in this form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from raypipe.text.replies import UnreadableReply

_WORDS = ("think", "thinking", "thought", "reasoning")
_OPENING = (*(f"<{word}>" for word in _WORDS), "[think]", "\u25c1think\u25b7")
_CLOSING = (*(f"</{word}>" for word in _WORDS), "[/think]", "\u25c1/think\u25b7")
_MARKS = (*_OPENING, *_CLOSING)
_OPEN = re.compile("|".join(map(re.escape, _OPENING)), re.IGNORECASE)
_CLOSE = re.compile("|".join(map(re.escape, _CLOSING)), re.IGNORECASE)
_MARK = re.compile("|".join(map(re.escape, _MARKS)), re.IGNORECASE)
_LONGEST = max(map(len, _MARKS))
MOST_CHARS = 500_000
"""Most characters of a reply, as many as a window of 131,072 tokens holds. All parsers of replies take linear
time: some tenths of a second at this limit."""


@dataclass(frozen=True, slots=True)
class SplitReply:
    thoughts: str  # thoughts with their marks; "" if there are none
    answer: str  # text after the thoughts; "" if there is none
    closed: bool  # False: the reply ends inside a thought, or is longer than MOST_CHARS


def split_thoughts(text: str) -> SplitReply:
    """Splits a reply into its thoughts and its answer.

    A reply without marks is all answer. If a thought does not end, or the reply has more than MOST_CHARS, the
    answer is empty and `closed` is False.

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
    """Returns the text of a reply after its thoughts. Raises UnreadableReply if the reply is too long, ends
    inside a thought, or has only white space after its thoughts."""
    if (length := len(text)) > MOST_CHARS:
        raise UnreadableReply(f"expected a reply of at most {MOST_CHARS:,} characters, found {length:,}")
    found = split_thoughts(text)
    if not found.closed:
        mend = "raise max_tokens, or thought_tokens of the model's entry"
        raise UnreadableReply(f"expected an answer, found a thought that does not end: {mend}")
    if found.thoughts and not found.answer.strip():
        raise UnreadableReply("expected an answer behind the model's thoughts, found none")
    return found.answer


def thinking(thoughts: str, answer: str) -> str:
    """Puts thoughts from a separate field before an answer. Without an answer, no mark closes the thoughts.

    >>> thinking("so", "yes"), thinking("so", ""), thinking("", "yes")
    ('<think>so</think>yes', '<think>so', 'yes')
    """
    if not thoughts:
        return answer
    return f"<think>{thoughts}</think>{answer}" if answer.strip() else f"<think>{thoughts}"


def thought_tokens(text: str, tokens: int) -> int:
    """Estimates how many of a reply's `tokens` are thoughts, by the share of its characters in thoughts.

    >>> thought_tokens("<think>so</think>yes, it is", 9), thought_tokens("yes", 1)
    (6, 0)
    """
    thoughts = split_thoughts(text).thoughts
    return round(tokens * len(thoughts) / len(text)) if thoughts else 0


@dataclass(slots=True)
class DraftText:
    """Filter that removes thoughts from a reply while the reply is streamed.

    >>> draft = DraftText()
    >>> "".join(draft.add(piece) for piece in ("It is ", "<th", "ink>Ann? B", "ob?</think>", "Bob < Ann."))
    'It is Bob < Ann.'
    """

    thinking: bool = False  # True inside a thought; set it at the start if the chat template opens one
    held: str = ""  # unshown end of the text so far, which may be the beginning of a mark

    def add(self, piece: str) -> str:
        """Adds the next piece of the reply. Returns the text that can be shown now."""
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
        """Returns the text that `add` still holds at the end of the reply; "" inside a thought."""
        return "" if self.thinking else self.held
