"""How much a step may ask at most: of a text of so many characters, of a question with so many citations.

Pure functions of steps and sizes, for what cannot be known before a run. Every bound holds for any text; some
are loose. A step that is not here has no bound and cannot be planned: a test looks through all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from raypipe.core.kg import MOST_LINKED, MOST_NEAR, MOST_REQUESTS, MOST_SEARCHES
from raypipe.core.protocols import GraphRef, Model
from raypipe.core.records import Question
from raypipe.memo.memo import ENTRY_BYTES, REPLY_BYTES
from raypipe.steps.bm25 import Keywords
from raypipe.steps.decide import Decide
from raypipe.steps.demote import Demote
from raypipe.steps.dense import Recall
from raypipe.steps.embed import Embed
from raypipe.steps.examples import Similar
from raypipe.steps.extract import Extract
from raypipe.steps.facts import MOST, Facts
from raypipe.steps.function_calls import Functions
from raypipe.steps.fuse import Fuse
from raypipe.steps.generate import FIELDS, Generate
from raypipe.steps.kg_query import Lookup
from raypipe.steps.match_calls import Match
from raypipe.steps.rerank import Rerank
from raypipe.steps.shortlist import Shortlist
from raypipe.steps.split import Split
from raypipe.text.split import LONGEST_WORD
from raypipe.text.template import query_reads

KEY_BYTES = 40  # of a remembered value: its digest and its place; spans and source of a chunk take as much
CHAR_BYTES = 4  # of a token of a reply, about
TOKEN_CHARS = 128  # of a token of a reply, at most: vocabularies have runs of so many blanks


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the ranking of any question can have grown before a step."""

    hits: int = 0  # passages
    order: int = 0  # passages of its ranking
    passage_chars: int = 0  # of the longest passage


def chunks_at_most(split: Split, chars: int) -> int:
    """Chunks that a source of so many characters can have. A parsed text is never longer than its source."""
    if split.child_chars is not None and split.parent_chars is not None:
        parents = _windows(chars, split.parent_chars, split.parent_overlap)
        return parents * _windows(min(split.parent_chars, chars), split.child_chars, split.child_overlap)
    if split.child_chars is not None:
        return _windows(chars, split.child_chars, split.child_overlap)
    if split.tokens is not None:
        return math.ceil(chars / (split.tokens - split.overlap)) + 1
    return chars  # sentences: some scripts end one after every character


def _windows(chars: int, size: int, overlap: int) -> int:
    """Windows of `text.split.Words`: of any two that follow each other, the second ends `size - overlap`
    characters or more after the end of the one before the first."""
    return min(chars, 1) if chars <= size else 2 * math.ceil(chars / (size - overlap)) + 2


def passage_chars_at_most(split: Split, chars: int) -> int:
    """Characters of the longest passage of a source of so many characters."""
    size = split.parent_chars or split.child_chars
    if size is not None:
        return min(chars, max(size, LONGEST_WORD))  # a window is longer than its size if it is one long word
    return min(chars, split.sentence_chars) if split.tokens is None else chars


def calls_at_most(step: Any, question: Question, reach: Reach) -> int:
    """Calls that a step can make for one question. Raises TypeError for a step without a bound."""
    match step:
        case Keywords() | Fuse() | Decide() | Functions() | Demote():
            return 0
        case Facts():
            return 0 if step.model is None else MOST
        case Similar():
            return len(step.bank.flat) + 1
        case Match():  # the vectors of the examples and of the question
            return len(step.bank.flat) + 1 + (0 if step.graph.kind == "folder" else MOST_SEARCHES)
        case Lookup():
            return (0 if step.graph.kind == "folder" else MOST_REQUESTS) + _linked_at_most(step.graph)
        case Recall() | Generate():
            return 1
        case Shortlist():
            pages = [c for c in question.citations or () if c.page is not None]
            narrows = len({c.page for c in pages}) > step.pages
            return len({c.snippet for c in pages if c.snippet is not None}) if narrows else 0
        case Rerank():
            scored = min(reach.order, step.candidates or reach.order)
            return 0 if step.shortcut and scored <= step.top else scored
        case Extract():
            sentences = min(reach.order, step.passages) * reach.passage_chars
            return 2 * sentences + 1  # each sentence's vector and MaxSim, and the question's vector
    raise TypeError(f"step {type(step).__name__} has no bound in bounds.py: give it one")


def _linked_at_most(graph: GraphRef) -> int:
    """Vectors of names that one program can need: of all names of the kinds that are linked by meaning, and
    of those it has written."""
    kinds = sum("embedding" in levels for levels in graph.levels.values())
    return kinds * MOST_NEAR + MOST_LINKED if kinds else 0


def reach_after(step: Any, reach: Reach) -> Reach:
    """The reach of the ranking behind a step."""
    match step:
        case Recall() | Keywords():
            return Reach(reach.hits + step.top, reach.order, reach.passage_chars)
        case Fuse():
            return Reach(reach.hits, min(step.top, reach.hits), reach.passage_chars)
        case Rerank():
            return Reach(reach.hits, min(step.top, reach.order), reach.passage_chars)
    return reach


_FAULTLESS = (
    Demote, Extract, Facts, Functions, Keywords, Lookup, Match, Recall, Rerank, Shortlist, Similar,
)  # fmt: skip


def may_fault(step: Any, calls: int) -> bool:
    """Whether the step can put a fault on a question, which keeps the question from later steps. A language
    model does so where it cannot be asked at the moment, so not where nothing is asked."""
    match step:
        case Fuse():
            return step.missing == "fault"
        case Generate():
            return calls > 0
    return not isinstance(step, _FAULTLESS)


def asks_plainly(step: Any) -> bool:
    """Whether what the step asks follows from the question alone, so that it is known before a run."""
    match step:
        case Recall():
            return query_reads(step.query) <= FIELDS
        case Generate():
            return bool(step.reads() <= FIELDS)
    return False


def stored_bytes(step: Any, calls: int) -> int:
    """Bytes that so many calls of a step add to a store, about, before they are compressed: keys and values
    in the memo, and for a chunk its vector in the searched copy, too."""
    match step:
        case Embed():
            return calls * 2 * (KEY_BYTES + 4 * step.model.dim)
        case Recall():
            return calls * (KEY_BYTES + 4 * step.model.dim)
        case Generate():
            return calls * (KEY_BYTES + CHAR_BYTES * step.max_tokens)
    return calls * (KEY_BYTES + 4)


def kept_bytes(step: Any, calls: int) -> float:
    """Bytes that so many calls of a step take at most in the memory of the process that made them."""
    match step:
        case Lookup() | Match() if step.graph.kind == "server":  # its replies are as long as it likes
            return math.inf if calls else 0
        case Generate():
            return calls * (ENTRY_BYTES + REPLY_BYTES + step.max_tokens * TOKEN_CHARS)
    return calls * (ENTRY_BYTES + 4 * max((m.dim for m in models_of(step)), default=0) + 4)


def models_of(step: Any) -> list[Model]:
    """The models that a step names, itself or by its graph."""
    values = [getattr(step, name) for name in type(step).__dataclass_fields__]
    values += [v.embedder for v in values if isinstance(v, GraphRef)]
    return [v for v in values if isinstance(v, Model)]


def tokens_at_most(step: Any, calls: int) -> int:
    """Tokens of prompt and reply that so many calls of a step can take: its model has room for no more."""
    return calls * int(step.model.max_tokens) if isinstance(step, Generate) else 0
