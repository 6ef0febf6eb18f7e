"""Answers without a language model: one sentence or table fact of the evidence, or "i don't know"."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from raypipe.core.index import Index
from raypipe.core.protocols import Ask, Bound, Embed, Kit, Model, Reach
from raypipe.core.records import ABSTAINED, ANSWERED, IDK, OTHERS, Question, Quote, Reply, parse_chunk_id
from raypipe.steps.field_checks import require_positive
from raypipe.text import evidence
from raypipe.text.candidates import Sentence, SourceText, candidates
from raypipe.text.evidence import Fitted, Words
from raypipe.text.typed_answers import AskedQuestion, TypedSpan, decide, read, typed_span
from raypipe.text.words import require_splitter

LIKELY = 0.8
"""Least probability at which a span (a person, date or number) is the answer instead of its whole sentence.
Measured on the 460 questions of docs/extract.md that have answers. From .8 on, 54 answers are spans, and 3 of
these spans are wrong although their sentence is right. From .5 on, 120 answers are spans, and 7 are wrong."""
DENIAL_WORDS = 15
"""Most words of a sentence that counts as denying a premise. Among 14 sentences of NQ and SQuAD that have a
"not" and would have been answers, all but one are longer; 10 hold the answer and deny something else."""
_DENIES = re.compile(r"\b(?:not(?! only\b|-)|never)\b|n't\b|\bnone\W*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extract:
    """Replies with the best candidate of the first `passages` passages of `order`, or "i don't know".

    A candidate is a sentence of one block of a page, or a fact of a table with its label (`text.candidates`).
    The embedder reads the `scored` candidates that share most words with the question. `fitted` gives each
    candidate a probability of holding the answer (`text.evidence`). The likeliest candidate gives the reply:

    - the person, date, weekday, version or number that the question asks for, if the sentence has only one
      and the probability is .8 or more;
    - else the sentence, or the fact with its label, cut to `words` words and `chars` characters.

    A comparison ("who is older, A or B?") is answered with A or B, by the likeliest sentence that decides it.
    If no sentence decides it, the reply abstains. If sources state different values in nearly the same words
    (`text.evidence`), the newest value is the reply, and a second reply quotes the older values.

    The reply also abstains if the sentence is short and has a denial ("has never won") that the question
    lacks, if the probability is below `threshold`, and always without `fitted`. The quote is the whole
    sentence or row, even if the reply abstains; without any candidate there is none.
    `bench/figures/extract.py --sentences` counts the sentences of passages.
    """

    embedder: Model
    passages: int = 5  # first passages of `order`, whose sentences are candidates
    sentences: int = 40  # most sentences of one passage
    scored: int = 16  # candidates to embed: those that share most words with the question
    threshold: float = 0.5  # least probability of an answer, 0..1
    words: int = 60  # most words of a sentence in the reply; its quote keeps all
    chars: int = 250  # most characters of these words, with spaces
    fitted: Fitted | None = None  # weights of the ranker; None: every reply abstains
    into: str = "extract"

    version: ClassVar[int] = 7

    def __post_init__(self) -> None:
        require_positive(self, "passages", "sentences", "scored", "words", "chars")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold: expected a probability from 0 to 1, found {self.threshold}")
        if self.fitted is not None:
            require_fitted_with(self.fitted, self.embedder)

    def reads(self) -> frozenset[str]:
        return frozenset({"text", "order", "index.text", "index.hidden", "index.blocks", "index.layouts"})

    def writes(self) -> frozenset[str]:
        return frozenset({f"replies.{self.into}", f"replies.{self.into}{OTHERS}"})

    def bound(self, question: Question, reach: Reach) -> Bound:
        each = min(self.sentences, reach.passage_chars, reach.passage_sentences)
        sentences = min(min(reach.order, self.passages) * each, self.scored)
        return Bound(sentences + 1, reach, "never")  # vectors of the sentences and the question

    def open(self, kit: Kit) -> Ask:
        require_splitter()
        embed, index = kit.embedder(self.embedder), kit.index()
        most = self.passages, self.sentences, self.scored

        async def ask(questions: list[Question]) -> list[Question]:
            texts = [q.text for q in questions]
            found, pages = await likely_candidates(index, questions, texts, most)
            cosines = await cosines_of(embed, texts, found)
            return [
                replace(q, replies={**q.replies, **self._replies(q, c, by, pages)})
                for q, c, by in zip(questions, found, cosines, strict=True)
            ]

        return ask

    def shown(self, kit: Kit) -> Callable[[Sequence[Question]], Awaitable[list[str]]]:
        index, most = kit.index(), (self.passages, self.sentences, self.scored)

        async def show(questions: Sequence[Question]) -> list[str]:
            found, _ = await likely_candidates(index, questions, [q.text for q in questions], most)
            return ["\n".join(s.text for s in some) for some in found]

        return show

    def _replies(
        self,
        question: Question,
        found: Sequence[Sentence],
        cosine: np.ndarray,
        pages: Mapping[str, SourceText],
    ) -> dict[str, Reply]:
        """Returns the replies to one question by name. `cosine`: (candidates,), parallel to `found`."""
        if not found:
            return {self.into: Reply(IDK, ABSTAINED)}
        choice = choose(question.text, found, cosine, self.fitted)
        said = say(choice, self.fitted, (self.words, self.chars), pages)
        p, quotes = said.probability, (Quote(found[said.place].source, found[said.place].span),)
        if said.text is None or p is None or p < self.threshold:
            return {self.into: Reply(IDK, ABSTAINED, confidence=p, quotes=quotes)}
        replies = {self.into: Reply(said.text, ANSWERED, confidence=p, quotes=quotes)}
        if said.others:
            values = "; ".join(pages[q.source].text[slice(*q.span)] for q in said.others)
            replies[self.into + OTHERS] = Reply(values, ANSWERED, quotes=said.others)
        return replies


def require_fitted_with(fitted: Fitted, embedder: Model) -> None:
    # An embedder without files is a test's stand-in under the real model's name; any fit is accepted.
    if embedder.path and fitted.embedder and fitted.embedder != embedder.original.weights:
        expected = f"numbers fitted with {embedder.name} ({embedder.weights}), found {fitted.embedder}"
        again = f"python bench/figures/extract.py --fit --embedder {embedder.name}"
        abstain = "or leave fitted out: the step then abstains"
        raise ValueError(f"fitted: expected {expected}. Fit them again ({again}), {abstain}")


async def likely_candidates(
    index: Index, questions: Sequence[Question], queries: Sequence[str], most: tuple[int, int, int]
) -> tuple[list[list[Sentence]], dict[str, SourceText]]:
    """Returns the candidates of each question, and the pages they are from, by source id. `queries` has the
    texts that are compared with the candidates. `most` limits the passages of a question, the sentences of a
    passage, and the candidates of a question."""
    orders = [[parse_chunk_id(chunk) for chunk in q.order[: most[0]]] for q in questions]
    sources = list(dict.fromkeys(source for order in orders for source, _ in order))
    texts, blocks, hidden, files = await asyncio.gather(
        index.source_texts(sources), index.blocks(sources), index.hidden(sources), index.layouts(sources)
    )
    rows = zip(sources, texts, blocks, hidden, files, strict=True)
    pages = {source: SourceText(text or "", b, h, file) for source, text, b, h, file in rows}
    found = (candidates(order, pages, most[1]) for order in orders)
    likely = [evidence.likely(query, some, most[2]) for query, some in zip(queries, found, strict=True)]
    return likely, pages


async def cosines_of(
    embed: Embed, queries: Sequence[str], found: Sequence[Sequence[Sentence]]
) -> list[np.ndarray]:
    """Returns for each query the cosines with its candidates, (candidates,) float32. Equal texts are embedded
    once; a query without candidates is not embedded."""
    rows = {text: i for i, text in enumerate(dict.fromkeys(s.meaning for c in found for s in c))}
    asked = list(dict.fromkeys(query for query, c in zip(queries, found, strict=True) if c))
    vectors, of_queries = await asyncio.gather(embed(list(rows), "passage"), embed(asked, "query"))
    known = dict(zip(asked, of_queries, strict=True))
    return [
        vectors[[rows[s.meaning] for s in c]] @ known[query] if c else np.zeros(0, np.float32)
        for query, c in zip(queries, found, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class RankedCandidates:
    asked: AskedQuestion
    found: tuple[Sentence, ...]
    order: tuple[int, ...]  # positions in `found`, best first; ties: the earlier first
    words: Words
    spans: tuple[TypedSpan | None, ...]
    features: np.ndarray  # as `evidence.features` returns them
    probability: np.ndarray  # (candidates,) float64: probability that each holds the answer

    def middle(self, i: int) -> int:
        """Returns the character offset around which candidate `i` is cut. It is the start of the typed span
        (such as a date), else of the middle one of the words shared with the question, else 0."""
        span, marks = self.spans[i], self.words.marks[i]
        return span.span[0] if span else marks[len(marks) // 2] if marks else 0


def choose(
    question: str, found: Sequence[Sentence], cosine: np.ndarray, fitted: Fitted | None
) -> RankedCandidates:
    """Ranks a question's candidates by probability. `found` must not be empty. `cosine` is parallel to it."""
    asked, words = read(question), evidence.words_of(question, found)
    spans = tuple(
        typed_span(asked.text, asked.kind, s.text, m, len(s.label) + 2 if s.value else 0)
        for s, m in zip(found, words.marks, strict=True)
    )
    features = evidence.features(asked, found, words, spans, cosine)
    p = (fitted or evidence.UNFITTED).probability(features)
    order = tuple(np.argsort(-p, kind="stable").tolist())
    return RankedCandidates(asked, tuple(found), order, words, spans, features, p)


@dataclass(frozen=True, slots=True)
class ExtractedAnswer:
    """The answer that a ranking gives, before the threshold is applied."""

    text: str | None  # None: no answer, at any probability
    probability: float | None  # that the answer is right; None: no fit, or a rule that forbids an answer
    place: int  # position of the candidate that the answer comes from
    others: tuple[Quote, ...] = ()  # older values in other sources, newest first


def say(
    choice: RankedCandidates, fitted: Fitted | None, most: tuple[int, int], pages: Mapping[str, SourceText]
) -> ExtractedAnswer:
    """Derives the answer from a ranking, with the probability that it is right. `most` is the largest number
    of words and of characters of the answer."""
    asked, found, first = choice.asked, choice.found, choice.order[0]
    at, *older = evidence.versions(found, choice.spans, choice.words, first, pages)
    best, span, nothing = found[at], choice.spans[at], ExtractedAnswer(None, None, at)
    if fitted is None:
        return nothing
    if asked.direction:
        decided = decide(asked, [found[i].text for i in choice.order])
        return ExtractedAnswer(decided[0], fitted.compared, choice.order[decided[1]]) if decided else nothing
    p = float(choice.probability[first])
    others = tuple(v for v in (evidence.value_of(found[i], choice.spans[i]) for i in older) if v is not None)
    if best.value is None and span is not None and span.only and p >= LIKELY:
        return ExtractedAnswer(best.text[slice(*span.span)], p, at, others)
    denies = len(best.text.split()) <= DENIAL_WORDS and _DENIES.search(best.text)
    if denies and not _DENIES.search(asked.text):
        return nothing
    return ExtractedAnswer(shown(best.text, most, choice.middle(at)), p, at, others)


def shown(sentence: str, most: tuple[int, int], at: int = 0) -> str:
    """Cuts a sentence around the offset `at` to `most` words and characters; an ellipsis marks each cut.

    >>> shown("One two three four five six.", (3, 12), 8)
    '… two three …'
    """
    found = [m.span() for m in re.finditer(r"\S+", sentence)]
    if len(found) <= most[0] and len(sentence) <= most[1]:
        return sentence
    ends = [end for _, end in found]
    # About a third of the budget is spent before `at`.
    first = max(
        bisect_right(ends, at - most[1] // 3), min(bisect_right(ends, at), len(found) - 1) - most[0] // 3
    )
    start = found[first][0]
    stop = min(max(bisect_right(ends, start + most[1]), first + 1), first + most[0])
    text = sentence[start : min(found[stop - 1][1], start + most[1])]
    return ("… " if first else "") + text + (" …" if stop < len(found) else "")
