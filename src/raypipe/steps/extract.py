"""Evidence without a language model: the sentence that answers best, where it stands, and a cautious extract.

Knows models through the kit. It cannot reason: it says what one sentence says, or that it does not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach
from raypipe.core.records import ABSTAINED, ANSWERED, IDK, Question, Quote, Reply, parse_chunk_id
from raypipe.text import evidence
from raypipe.text.evidence import Fitted, Sentence
from raypipe.text.sentences import require_splitter
from raypipe.text.spans import kind_of, typed_span
from raypipe.text.words import analyse

ANALYZER = "stems"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extract:
    """Replies with the best sentence of the first `passages` passages of `order`, or "i don't know".

    A sentence's score is .4 cosine + .3 MaxSim + .3 overlap of words weighted by rarity. For who, when, how
    many and how much the text is a span of the sentence where one is found. The reply is answered where the
    fitted probability of being right reaches `threshold`; without fitted numbers it is always abstained.
    Its first quote is the sentence either way; there is none where there are no passages.

    The first `sentences` of each passage are read, so that a list of single words cannot cost a thousand
    calls. The default leaves out none. Sentences of the passages of 700 characters, at the 95th percentile
    and at most (`bench/extract.py --sentences`): Natural Questions 6 and 8, SQuAD 6 and 9, ten real CRAG
    questions 10 and 19, the demo 10 and 33.
    """

    embedder: Model
    maxsim: Model  # a reranker; made for loader maxsim
    passages: int = 5  # of order, whose sentences are candidates
    sentences: int = 40  # of each passage at most; passages that overlap share theirs
    threshold: float = 0.5  # of probability, 0..1
    fitted: Fitted | None = None
    into: str = "extract"

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.passages < 1:
            raise ValueError(f"passages: expected at least 1, found {self.passages}")
        if self.sentences < 1:
            raise ValueError(f"sentences: expected at least 1, found {self.sentences}")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold: expected a probability from 0 to 1, found {self.threshold}")

    def reads(self) -> frozenset[str]:
        return frozenset({"text", "order", "index.text"})

    def writes(self) -> frozenset[str]:
        return frozenset({f"replies.{self.into}"})

    def bound(self, question: Question, reach: Reach) -> Bound:
        each = min(self.sentences, reach.passage_chars, reach.passage_sentences)
        sentences = min(reach.order, self.passages) * each
        return Bound(2 * sentences + 1, reach, "never")  # vector and MaxSim of each, the question's vector

    def open(self, kit: Kit) -> Ask:
        require_splitter()
        embed, score, index = kit.embedder(self.embedder), kit.reranker(self.maxsim), kit.index()

        async def ask(questions: list[Question]) -> list[Question]:
            chunks = list(dict.fromkeys(c for q in questions for c in q.order[: self.passages]))
            texts = dict(zip(chunks, await index.texts(chunks), strict=True))
            found = [self._candidates(q, texts) for q in questions]
            rows = {text: i for i, text in enumerate(dict.fromkeys(s.text for c in found for s in c))}
            pairs = [(q.text, s.text) for q, c in zip(questions, found, strict=True) for s in c]
            vectors, queries, matches = await asyncio.gather(  # where models are elsewhere, one way for three
                embed(list(rows), "passage"), embed([q.text for q in questions], "query"), score(pairs)
            )
            out, at = [], 0
            for q, query, c in zip(questions, queries, found, strict=True):
                cosine = vectors[[rows[s.text] for s in c]] @ query
                reply = self._reply(q.text, c, cosine, matches[at : at + len(c)])
                out.append(replace(q, replies={**q.replies, self.into: reply}))
                at += len(c)
            return out

        return ask

    def _candidates(self, question: Question, texts: dict[str, str]) -> list[Sentence]:
        order = question.order[: self.passages]
        passages = ((*parse_chunk_id(chunk), texts[chunk]) for chunk in order)
        return evidence.candidates(passages, self.sentences)

    def _reply(self, text: str, found: Sequence[Sentence], cosine: np.ndarray, maxsim: np.ndarray) -> Reply:
        """`cosine` and `maxsim` are (candidates,), parallel to `found`."""
        if not found:
            return Reply(IDK, ABSTAINED)
        choice = choose(text, [s.text for s in found], cosine, maxsim)
        best = found[choice.best]
        quotes = (Quote(best.source, best.span),)
        if self.fitted is None:
            return Reply(IDK, ABSTAINED, quotes=quotes)
        p = self.fitted.probability(choice.features)
        if p < self.threshold:
            return Reply(IDK, ABSTAINED, confidence=p, quotes=quotes)
        return Reply(choice.text, ANSWERED, confidence=p, quotes=quotes)


@dataclass(frozen=True, slots=True)
class BestSentence:
    """The best of some sentences, and what would be said."""

    best: int  # its place among the candidates
    text: str  # the sentence, or the span of it that answers
    features: dict[str, float]  # for Fitted.probability


def choose(question: str, texts: Sequence[str], cosine: np.ndarray, maxsim: np.ndarray) -> BestSentence:
    """The best of at least one sentence by its scores (sentences,); the first of equals."""
    asked, _ = analyse(question, ANALYZER)
    words = [analyse(t, ANALYZER) for t in texts]
    overlap = evidence.overlaps(asked, [hashes for hashes, _ in words])
    kind = kind_of(question)
    typed = [
        typed_span(question, kind, t, starts[np.isin(hashes, asked)].tolist())
        for t, (hashes, starts) in zip(texts, words, strict=True)
    ]
    scores = evidence.combined(cosine, maxsim, overlap, np.array([t is not None for t in typed]))
    best = int(np.argmax(scores))
    parts = {"cosine": float(cosine[best]), "maxsim": float(maxsim[best]), "overlap": float(overlap[best])}
    features = evidence.features(scores, best, parts, len(words[best][0]), kind, typed[best])
    span = typed[best]
    said = texts[best] if span is None or span.choices > 1 else texts[best][slice(*span.span)]
    return BestSentence(best, said, features)
