"""Evidence for an answer: features of candidates, the probability that each is right, and its versions.

Pure functions over candidates, word hashes and cosines that others computed. The numbers of `Fitted` come
from a file; `bench/figures/extract.py --fit` makes them. Knows no model and no index.

A version of a statement is another source that gives another value. It is dated by its title, else by the
name of its file, its field `date`, its first lines, or the time of its file. One that says in title or
first lines that it is superseded is older than any that does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import numpy as np

from raypipe.core.digests import FittedOn
from raypipe.core.records import Quote
from raypipe.text.bm25 import lucene_idf
from raypipe.text.candidates import Sentence, SourceText
from raypipe.text.spans import DAY_IN_NAME, AskedQuestion, TypedSpan, dates, day_of, numbers, read, with_unit
from raypipe.text.words import analyse

ANALYZER = "stems"

FEATURES: Mapping[str, str] = {
    "cosine": "of question and sentence",
    "ahead": "by how much it is above the best other candidate's",
    "overlap": "share of the question's words in the sentence, the rarer among the candidates the heavier",
    "around": "the same with its title and heading",
    "fact": "1 for a fact of a table",
    "fact_cosine": "of question and fact, under the title of its page",
    "row": "share of the question's words in the fact, its row, title and heading",
    "title": "1 for the title of a page",
    "titled": "1 for a title with the version that is asked for",
    "typed": "1 where a person, date, weekday, number or version is asked for, and it has one",
    "lacks": "1 where such a thing is asked for, and it has none",
    "absent": "1 where it lacks a name or number of the question, with its title and heading",
    "rank": "1 / (1 + rank of its passage)",
}
"""Features of the one fitted probability. Those of a sentence are 0 for a fact, and the other way."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A logistic regression over `FEATURES`: the probability that what is said holds the answer."""

    embedder: str  # identity of the embedder's weights (`Model.weights`); "": numbers for any embedder
    bias: float
    weights: Mapping[str, float]  # feature -> log odds for each unit; one that is not named weighs nothing
    compared: float  # probability that a comparison which was decided is right, 0..1
    fitted_on: FittedOn

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.weights) - set(FEATURES)):
            raise ValueError(f"weights: unknown feature {unknown[0]!r}; known: {', '.join(FEATURES)}")
        if not 0 <= self.compared <= 1:
            raise ValueError(f"compared: expected a probability from 0 to 1, found {self.compared}")

    def probability(self, features: np.ndarray) -> np.ndarray:
        """(..., n) float64, 0..1, of (..., n, len(FEATURES))."""
        z = self.bias + features @ np.array([self.weights.get(name, 0.0) for name in FEATURES])
        return np.array(1 / (1 + np.exp(-np.clip(z, -500, 500))))


_ORDER = {"cosine": 3.0, "around": 3.0, "fact_cosine": 3.0, "row": 3.0, "typed": 1.0, "title": -2.0}
UNFITTED = Fitted("", -3.0, _ORDER, 0.5, FittedOn("", "", ""))
"""Numbers that order candidates where none are fitted."""

_ASKING = re.compile(
    r"\b(?:who|whom|whose|what|which|when|where|why|how(?: (?:long|many|much|often|old|big|far|high))?"
    r"|did|does|do|has|have|had|can|you|me)\b"
)
"""Words of a question that its answer does not repeat."""
_NAMES = re.compile(r"(?<=\s)[A-Z][\w'-]*+|\b[^\W\d]*+\d[\w.-]*+")


@dataclass(frozen=True, slots=True)
class Words:
    """The words of the candidates of one question, as far as it needs them."""

    overlap: np.ndarray  # (candidates,) float64: weighted share of the question's words in each, 0..1
    around: np.ndarray  # the same of each with what it stands under
    label: np.ndarray  # share of the words of its label that the question has, 0..1
    absent: np.ndarray  # (candidates,) bool: a name or number of the question is not in `around`
    marks: tuple[tuple[int, ...], ...]  # of each: where words of the question start


def words_of(question: str, found: Sequence[Sentence]) -> Words:
    asked, _ = analyse(_ASKING.sub(" ", question.lower()), ANALYZER)
    own = [analyse(s.text, ANALYZER) for s in found]
    wider = [
        np.concatenate((h, analyse(s.around, ANALYZER)[0])) for s, (h, _) in zip(found, own, strict=True)
    ]
    labels = [analyse(s.label, ANALYZER)[0] for s in found]
    overlap, around = overlaps(asked, [h for h, _ in own], wider)
    label = np.array([np.isin(h, asked).mean() if len(h) else 0.0 for h in labels])
    marks = tuple(tuple(starts[np.isin(h, asked)].tolist()) for h, starts in own)
    names = analyse(" ".join(_NAMES.findall(question)), ANALYZER)[0]
    absent = np.array([not np.isin(names, h).all() for h in wider], bool)
    return Words(overlap, around, label, absent, marks)


def likely(question: str, found: Sequence[Sentence], most: int) -> list[Sentence]:
    """The `most` candidates that share most words with a question, in order: those of title, heading, row and
    label count, too. Those of the sentence alone would prefer what repeats the title. A fact whose value the
    question says itself, such as the name of the row that it asks of, is no answer but to yes or no."""
    asked, _ = analyse(question, ANALYZER)
    if not (kind := read(question)).yes_no and not kind.direction:
        values = (analyse(s.text[len(s.label) + 2 :] if s.value else "", ANALYZER)[0] for s in found)
        told = (len(v) and np.isin(v, asked).all() for v in values)
        found = [s for s, known in zip(found, told, strict=True) if not known] or found
    words = words_of(question, found)
    best = np.argsort(-(words.around + words.label), kind="stable")[:most]
    return [found[i] for i in sorted(best.tolist())]


def overlaps(question: np.ndarray, *texts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The weighted share of the question's words in each of some texts: (texts,) float64, 0..1, of each list.

    `question` and each text are word hashes, uint64; a word weighs the more the fewer of the first list have
    it."""
    terms = np.unique(question)
    has = [np.array([np.isin(terms, w) for w in t], bool).reshape(len(t), len(terms)) for t in texts]
    weights = lucene_idf(len(texts[0]), has[0].sum(0))
    return [h @ weights / max(float(weights.sum()), 1e-9) for h in has]


def features(
    asked: AskedQuestion,
    found: Sequence[Sentence],
    words: Words,
    spans: Sequence[TypedSpan | None],
    cosine: np.ndarray,
) -> np.ndarray:
    """(candidates, len(FEATURES)) float64."""
    top = np.sort(cosine)[::-1]
    others = np.where(np.arange(len(cosine)) == cosine.argmax(), top[1] if len(top) > 1 else 0.0, top[0])
    fact = np.array([s.value is not None for s in found], float)
    title = np.array([s.kind == "title" for s in found], float)
    version, strict = asked.kind == "version", float(asked.kind != "other")
    typed = np.array([s is not None for s in spans], float) * strict * (1 if version else 1 - title)
    named = {
        "cosine": cosine * (1 - fact),
        "ahead": (cosine - others) * (1 - fact),
        "overlap": words.overlap * (1 - fact),
        "around": words.around * (1 - fact),
        "fact": fact,
        "fact_cosine": cosine * fact,
        "row": words.around * fact,
        "title": title,
        "titled": title * typed,
        "typed": typed,
        "lacks": strict - typed,
        "absent": words.absent.astype(float),
        "rank": np.array([1 / (1 + s.rank) for s in found]),
    }
    return np.stack([named[name] for name in FEATURES], 1)


HEAD_CHARS = 300  # of a text that may date it: a title and a first paragraph
ALIKE = 0.6  # share of their words, but for the values, that two sentences with one statement have in common
ABOUT = 0.05  # by how much less of the question's words the other may share: else it is of something else
_SUPERSEDED = re.compile(
    r"\bsuperseded\b|\b(?:replaced|obsoleted|withdrawn) by\b|\bno longer (?:valid|in force)\b", re.IGNORECASE
)


def value_of(s: Sentence, span: TypedSpan | None) -> Quote | None:
    """Returns where the value of a candidate stands: that of a fact, or the date or number of a sentence that
    is asked for, else the one number that it has."""
    if s.value is not None:
        return Quote(s.source, s.value)
    asked = span is not None and any(map(str.isdigit, s.text[slice(*span.span)]))
    values = [span.span] if span and asked else [with_unit(s.text, n) for n in numbers(s.text)]
    place = s.span[0]
    return Quote(s.source, (place + values[0][0], place + values[0][1])) if len(values) == 1 else None


def versions(
    found: Sequence[Sentence],
    spans: Sequence[TypedSpan | None],
    words: Words,
    at: int,
    pages: Mapping[str, SourceText],
) -> list[int]:
    """The place `at` and those of other sources that state another value, newest first; of one age as
    found."""
    quotes = [value_of(s, span) for s, span in zip(found, spans, strict=True)]
    shares, group, values = words.around + words.overlap, [at], list[str]()
    for i in (at, *range(len(found))):
        s, quote = found[i], quotes[i]
        if quote is None or (i != at and not values):
            continue
        start, end = (x - s.span[0] for x in quote.span)
        value = "".join(re.findall(r"\w+", pages[s.source].text[slice(*quote.span)].lower()))
        rest = np.unique(analyse(s.label if s.value else s.text[:start] + s.text[end:], ANALYZER)[0])
        if not values:
            values, statement = [value], rest
        elif value not in values and s.source not in {found[j].source for j in group}:
            alike = len(np.intersect1d(statement, rest)) >= ALIKE * max(len(np.union1d(statement, rest)), 1)
            if alike and shares[i] >= shares[at] - ABOUT:
                group.append(i)
                values.append(value)

    def age(i: int) -> tuple[bool, float, str]:
        """Sorts sources by age, the newest last; of one day by the times of their files."""
        page = pages[found[i].source]
        head = page.text[:HEAD_CHARS]
        title = next((page.text[b.start : b.end] for b in page.blocks if b.kind in ("title", "heading")), "")
        name, modified = (unquote(page.file.url), page.file.modified) if page.file else ("", "")
        name = DAY_IN_NAME.sub(r" \1-\2-\3 ", name).replace("_", " ")
        said = (title, name, "" if "T" in modified else modified, head, modified[:10])
        days = ([d for s in dates(t) if (d := day_of(t[slice(*s)])) is not None] for t in said)
        return not _SUPERSEDED.search(f"{title} {head}"), max(next(filter(None, days), [0.0])), modified

    return sorted(group, key=age, reverse=True)
