"""Evidence without a language model: the sentence that answers best, where it stands, and a cautious extract.

Knows models through the kit. It cannot reason: it says what one sentence says, or that it does not know.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from raypipe.core.index import Index
from raypipe.core.protocols import Ask, Bound, Embed, Kit, Model, Reach, Score
from raypipe.core.records import ABSTAINED, ANSWERED, IDK, Question, Quote, Reply, Span, parse_chunk_id
from raypipe.text import compare, evidence
from raypipe.text.candidates import Sentence, SourceText, candidates
from raypipe.text.evidence import Fitted, Words
from raypipe.text.spans import AskedQuestion, TypedSpan, dates, read, typed_span
from raypipe.text.windows import require_splitter

COMPARED = 12  # best sentences that may decide a comparison
LIKELY = 0.65
"""Probability from which a span is said for its sentence. Were it always: .22 to .28 right on real text."""
DENIAL_WORDS = 15
"""Words of a sentence that denies a premise, at most. Of 14 sentences of NQ and SQuAD with a "not" that would
have been said, all of more words but one, 10 hold the answer: they deny something else."""
_DENIES = re.compile(r"\b(?:not(?! only\b|-)|never)\b|n't\b|\bnone\W*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extract:
    """Replies with the best sentence of the first `passages` passages of `order`, or "i don't know".

    A sentence lies in one block of its page (`text.blocks`); `fitted` says which is best, from the words it
    shares with the question, counting those of its title and heading, and from two models. What is said:

    - of a comparison the side that one sentence decides, or two that give a value each; else nothing;
    - the name, date or number in the best sentence that the question asks for, where it is right with a
      probability of .65 or more, and one thing is asked for;
    - else the sentence, of which at most `words` words are said.

    Nothing is said to a yes-or-no question that no comparison decides, nor to one about today from a text
    without a date, nor where the best sentence is short and denies ("has never won") while the question does
    not, nor where the probability of being right is below `threshold`; without fitted numbers, nothing is
    ever said. The first quote is the whole sentence either way: of an abstention it is the near miss. There
    is none where there are no passages.

    The first `sentences` of each passage are read (`bench/figures/extract.py --sentences` counts them), and
    models score the `scored` of them that share most words with the question.
    """

    embedder: Model
    maxsim: Model  # a reranker; made for loader maxsim
    passages: int = 5  # of order, whose sentences are candidates
    sentences: int = 40  # of each passage at most; passages that overlap share theirs
    scored: int = 12  # of all of them: those with most of the question's words, which models score
    threshold: float = 0.5  # of probability, 0..1
    words: int = 60  # of a sentence that are said, at most; its quote keeps all
    chars: int = 250  # of these words with their spaces, at most
    fitted: Fitted | None = None
    into: str = "extract"

    version: ClassVar[int] = 3

    def __post_init__(self) -> None:
        for name in ("passages", "sentences", "scored", "words", "chars"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, found {getattr(self, name)}")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold: expected a probability from 0 to 1, found {self.threshold}")
        if self.fitted is not None:
            require_fitted_with(self.fitted, self.embedder)

    def reads(self) -> frozenset[str]:
        return frozenset({"text", "asked_at", "order", "index.text", "index.hidden", "index.blocks"})

    def writes(self) -> frozenset[str]:
        return frozenset({f"replies.{self.into}"})

    def bound(self, question: Question, reach: Reach) -> Bound:
        each = min(self.sentences, reach.passage_chars, reach.passage_sentences)
        sentences = min(min(reach.order, self.passages) * each, self.scored)
        return Bound(2 * sentences + 1, reach, "never")  # vector and MaxSim of each, the question's vector

    def open(self, kit: Kit) -> Ask:
        require_splitter()
        embed, score, index = kit.embedder(self.embedder), kit.reranker(self.maxsim), kit.index()
        most = self.passages, self.sentences, self.scored

        async def ask(questions: list[Question]) -> list[Question]:
            texts = [q.text for q in questions]
            found, _ = await scored_sentences(index, questions, texts, most)
            scores = await sentence_scores(embed, score, texts, found)
            return [
                replace(q, replies={**q.replies, self.into: self._reply(q, c, *by)})
                for q, c, by in zip(questions, found, scores, strict=True)
            ]

        return ask

    def shown(self, kit: Kit) -> Callable[[Sequence[Question]], Awaitable[list[str]]]:
        index, most = kit.index(), (self.passages, self.sentences, self.scored)

        async def show(questions: Sequence[Question]) -> list[str]:
            found, _ = await scored_sentences(index, questions, [q.text for q in questions], most)
            return ["\n".join(s.text for s in some) for some in found]

        return show

    def _reply(
        self, question: Question, found: Sequence[Sentence], cosine: np.ndarray, maxsim: np.ndarray
    ) -> Reply:
        """`cosine` and `maxsim` are (candidates,), parallel to `found`."""
        if not found:
            return Reply(IDK, ABSTAINED)
        choice = choose(question.text, found, cosine, maxsim, self.fitted)
        said = say(choice, question.asked_at, self.fitted, (self.words, self.chars))
        quotes = tuple(Quote(found[i].source, found[i].span) for i in said.sentences)
        if said.text is None or said.probability is None or said.probability < self.threshold:
            return Reply(IDK, ABSTAINED, confidence=said.probability, quotes=quotes)
        return Reply(said.text, ANSWERED, confidence=said.probability, quotes=quotes)


def require_fitted_with(fitted: Fitted, embedder: Model) -> None:
    # an embedder without files computes from words alone: a stand-in for tests, under the real one's name
    if embedder.path and fitted.embedder and fitted.embedder != embedder.weights:
        raise ValueError(
            f"fitted: expected numbers fitted with {embedder.name} ({embedder.weights}), found "
            f"some that were fitted with {fitted.embedder}: fit them again "
            f"(python bench/figures/extract.py --fit --embedder {embedder.name}), or leave fitted out, and "
            "every question is abstained"
        )


async def scored_sentences(
    index: Index, questions: Sequence[Question], queries: Sequence[str], most: tuple[int, int, int]
) -> tuple[list[list[Sentence]], dict[str, SourceText]]:
    """The candidates of each question that models score, and the texts that they are of. `most`: passages,
    sentences of each, and sentences that are scored."""
    orders = [[parse_chunk_id(chunk) for chunk in q.order[: most[0]]] for q in questions]
    sources = list(dict.fromkeys(source for order in orders for source, _ in order))
    texts, blocks, hidden = await asyncio.gather(
        index.source_texts(sources), index.blocks(sources), index.hidden(sources)
    )
    rows = zip(sources, texts, blocks, hidden, strict=True)
    pages = {source: SourceText(text or "", b, h) for source, text, b, h in rows}
    found = (candidates(order, pages, most[1]) for order in orders)
    likely = [evidence.likely(query, some, most[2]) for query, some in zip(queries, found, strict=True)]
    return likely, pages


async def sentence_scores(
    embed: Embed, score: Score, queries: Sequence[str], found: Sequence[Sequence[Sentence]]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The cosine of each query with its sentences, and their scores by a reranker: (sentences,) float32 each.
    Equal texts are embedded once, and no query that has no sentence."""
    rows = {text: i for i, text in enumerate(dict.fromkeys(s.text for c in found for s in c))}
    asked = list(dict.fromkeys(query for query, c in zip(queries, found, strict=True) if c))
    pairs = [(query, s.text) for query, c in zip(queries, found, strict=True) for s in c]
    vectors, of_queries, matches = await asyncio.gather(  # where models are elsewhere, one way for three
        embed(list(rows), "passage"), embed(asked, "query"), score(pairs)
    )
    known, out, at = dict(zip(asked, of_queries, strict=True)), [], 0
    for query, c in zip(queries, found, strict=True):
        cosine = vectors[[rows[s.text] for s in c]] @ known[query] if c else np.zeros(0, np.float32)
        out.append((cosine, matches[at : at + len(c)]))
        at += len(c)
    return out


@dataclass(frozen=True, slots=True)
class BestSentence:
    """The candidates of a question in their order, with the features of the best."""

    asked: AskedQuestion
    found: tuple[Sentence, ...]
    order: tuple[int, ...]  # places of the candidates, best first
    words: Words
    span: TypedSpan | None  # of the best
    features: np.ndarray  # (candidates, len(evidence.RANKING)) float64
    answer: dict[str, float]  # of evidence.ANSWER, of the best

    @property
    def best(self) -> int:
        return self.order[0]


def choose(
    question: str, found: Sequence[Sentence], cosine: np.ndarray, maxsim: np.ndarray, fitted: Fitted | None
) -> BestSentence:
    """The best of at least one sentence by its scores (sentences,); the first of equals."""
    asked, words = read(question), evidence.words_of(question, found)
    spans = [typed_span(question, asked.kind, s.text, m) for s, m in zip(found, words.marks, strict=True)]
    features = evidence.ranking_features(asked, found, words, spans, cosine, maxsim)
    ranked = evidence.scores(features, fitted.rank if fitted else evidence.UNFITTED)
    order = tuple(np.argsort(-ranked, kind="stable").tolist())
    answer = evidence.answer_features(asked, features, ranked, order[0])
    return BestSentence(asked, tuple(found), order, words, spans[order[0]], features, answer)


@dataclass(frozen=True, slots=True)
class Said:
    """Facts of a choice, before the threshold."""

    text: str | None  # None: nothing, whatever the probability
    probability: float | None  # of being right; None: no fitted numbers, or a rule forbids to say anything
    sentences: tuple[int, ...]  # places of the candidates that it rests on, best first


def say(choice: BestSentence, asked_at: str, fitted: Fitted | None, most: tuple[int, int]) -> Said:
    """The answer that a choice gives, with the probability that it is right. `most`: words and characters."""
    asked, best = choice.asked, choice.found[choice.best]
    nothing = Said(None, None, (choice.best,))
    if fitted is None:
        return nothing
    p = fitted.sentence.probability(choice.answer)
    if asked.choice or asked.yes_no:
        first = choice.order[:COMPARED]
        decided = compare.decide(asked, [choice.found[i].text for i in first])
        if decided is None:
            return nothing
        return Said(decided.text, fitted.compared, tuple(first[i] for i in decided.sentences))
    if (asked.timely or asked.today) and not _dated(asked, best, asked_at):
        return nothing
    text, span = best.text, choice.span
    if span is not None and not asked.plural:
        features = evidence.span_features(asked, choice.words, choice.best, span, p)
        if (p_span := fitted.span.probability(features)) >= LIKELY:
            return Said(text[slice(*span.span)], p_span, (choice.best,))
    if len(text.split()) <= DENIAL_WORDS and _DENIES.search(text) and not _DENIES.search(asked.text):
        return nothing
    said = shown(text, most, choice.words.marks[choice.best], span.span if span else None)
    return Said(said, p, (choice.best,))


def _dated(asked: AskedQuestion, sentence: Sentence, asked_at: str) -> bool:
    """Returns whether a sentence says of which time it is: by a date in it, before it or above it. Where the
    time of asking is known ("03/05/2024, ..."), one of that year or the year before; for today, of a month
    around."""
    text = f"{sentence.text} {sentence.before} {sentence.around}"
    days = [d for span in dates(text) if (d := compare.day_of(text[slice(*span)])) is not None]
    now = re.match(r"(\d\d)/(\d\d)/(\d{4})", asked_at)
    if now is None:
        return bool(days)
    at = compare.day_of(f"{now[3]}-{now[1]}-{now[2]}") or 0.0
    if asked.today:
        return any(at - compare.MONTH <= d <= at + compare.MONTH for d in days)
    return any(int(now[3]) - 1 <= d // compare.YEAR <= int(now[3]) for d in days)


def shown(sentence: str, most: tuple[int, int], marks: Sequence[int], span: Span | None = None) -> str:
    """A sentence, or as much of it around `span` with most of the question's words (`marks`: where they
    start) as `most` words and characters hold; an ellipsis for what is left out.

    >>> shown("One two three four five six.", (3, 80), [14, 19])
    '… three four five …'
    """
    found = [m.span() for m in re.finditer(r"\S+", sentence)]
    if len(found) <= most[0] and len(sentence) <= most[1]:
        return sentence
    for words in range(min(most[0], len(found)), 0, -1):
        first = _window(found, words, marks, span)
        start, end = found[first][0], found[first + words - 1][1]
        if end - start <= most[1]:
            return ("… " if first else "") + sentence[start:end] + (" …" if end < found[-1][1] else "")
    return sentence[: most[1]]


def _window(found: Sequence[Span], words: int, marks: Sequence[int], span: Span | None) -> int:
    """The first of `words` words that hold `span` and most of `marks`; of equal ones the first."""
    has = [sum(a <= m < b for m in marks) for a, b in found]
    inside = [i for i, (a, b) in enumerate(found) if span and a < span[1] and span[0] < b]
    starts = range(len(found) - words + 1)
    around = [i for i in starts if inside and i <= inside[0] and inside[-1] < i + words]
    return max(around or starts, key=lambda i: (sum(has[i : i + words]), -i))
