"""Counters of a kit: calls that were computed and that were cached, and tokens of language models."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any


def add_up(counts: Any, more: Any, times: int = 1) -> None:
    """Adds the numbers of a record, so often, to those of one of its class, in place: an opened kit holds the
    parts. What stands in them is added alike."""
    for f in fields(counts):
        mine, theirs = getattr(counts, f.name), getattr(more, f.name)
        if is_dataclass(mine):
            add_up(mine, theirs, times)
        else:
            setattr(counts, f.name, mine + times * theirs)


@dataclass(slots=True)
class CallCount:
    """Distinct requests of one kind: those sent to a model, also in vain, and those that were cached."""

    computed: int = 0
    cached: int = 0


@dataclass(slots=True)
class Tokens:
    """Tokens of computed replies; cached ones cost none."""

    prompt: int = 0  # of the rendered chats
    cached: int = 0  # of these, not computed again
    generated: int = 0  # of the replies
    thoughts: int = 0  # of these, thoughts, about
    cut: int = 0  # replies, computed or cached, that ended by their length


@dataclass(slots=True)
class CallCounts:
    """Counts of a kit: texts to embed, pairs to score and chats to answer, each once per call."""

    vectors: CallCount = field(default_factory=CallCount)
    scores: CallCount = field(default_factory=CallCount)
    replies: CallCount = field(default_factory=CallCount)
    tokens: Tokens = field(default_factory=Tokens)

    @property
    def computed(self) -> int:
        return self.vectors.computed + self.scores.computed + self.replies.computed

    @property
    def cached(self) -> int:
        return self.vectors.cached + self.scores.cached + self.replies.cached

    def add(self, other: CallCounts) -> None:
        add_up(self, other)

    def in_vain(self, before: CallCounts) -> None:
        """Takes back the cached calls that were counted since `before`: the attempt failed, and the next one
        finds them again. What was computed stays counted, since it was sent."""
        for name in ("vectors", "scores", "replies"):
            getattr(self, name).cached = getattr(before, name).cached
