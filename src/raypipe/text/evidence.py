"""Ranking of candidate answers: their features, their probabilities, and versions of a statement.

A candidate is a sentence or a table fact of a passage (`text.candidates`). All functions are pure; callers
compute candidates and cosines with their models and index. The numbers of `Fitted` come from a file that
`bench/figures/extract.py --fit` writes.

Versions of a statement are candidates with nearly the same words and different values, each from another
source. A source is dated by its title, else by its file's name, its field `date`, its first lines or its
file's time. A source whose title or first lines call it superseded or replaced counts as the oldest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import numpy as np

from raypipe.core.digests import FittedOn
from raypipe.core.records import Quote
from raypipe.text import typed_answers
from raypipe.text.bm25 import lucene_idf
from raypipe.text.candidates import Sentence, SourceText
from raypipe.text.typed_answers import AskedQuestion, TypedSpan, dates, day_of, numbers, read, with_unit
from raypipe.text.words import analyse

ANALYZER = "stems"

FEATURES: Mapping[str, str] = {
    "cosine": "cosine of question and sentence",
    "ahead": "its cosine minus the best cosine of another candidate",
    "overlap": "share of the question's words in the sentence, weighted by their rarity among the candidates",
    "around": "overlap of the question with the sentence, its title and its heading",
    "fact": "1 for a fact of a table",
    "fact_cosine": "cosine of the question and the fact after the title of its page",
    "row": "weighted share of the question's words in the fact with its row, title and heading",
    "title": "1 for the title of a page",
    "titled": "1 for a title with a version, if the question asks for one",
    "typed": "1 if the question asks for a person, date, weekday, number or version, and the candidate has "
    "one; a title counts only for a version",
    "lacks": "1 if the question asks for one of these, and `typed` is 0",
    "absent": "1 if the candidate, its row, title and heading lack a name or number of the question",
    "rank": "1 / (1 + rank of its passage, from 0)",
}
"""Feature of a candidate -> meaning. `cosine`, `ahead`, `overlap` and `around` are 0 for facts; `fact_cosine`
and `row` are 0 for sentences."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Logistic regression over `FEATURES`: the probability that a candidate holds the answer."""

    embedder: str  # identity of the embedder's weights (`Model.weights`); "": any embedder
    bias: float
    weights: Mapping[str, float]  # feature -> log odds per unit; missing features weigh 0
    compared: float  # probability that a decided comparison is right, 0..1; the same for all
    fitted_on: FittedOn

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.weights) - set(FEATURES)):
            raise ValueError(f"weights: unknown feature {unknown[0]!r}; known: {', '.join(FEATURES)}")
        if not 0 <= self.compared <= 1:
            raise ValueError(f"compared: expected a probability from 0 to 1, found {self.compared}")

    def probability(self, features: np.ndarray) -> np.ndarray:
        """Returns probabilities (..., n) float64, 0..1, for `features` (..., n, len(FEATURES))."""
        z = self.bias + features @ np.array([self.weights.get(name, 0.0) for name in FEATURES])
        return np.array(1 / (1 + np.exp(-np.clip(z, -500, 500))))


_ORDER = {"cosine": 3.0, "around": 3.0, "fact_cosine": 3.0, "row": 3.0, "typed": 1.0, "title": -2.0}
UNFITTED = Fitted("", -3.0, _ORDER, 0.5, FittedOn("", "", ""))
"""Numbers for use without a fit. They suit any embedder; their probabilities only rank candidates."""

_ASKING = re.compile(
    r"\b(?:who|whom|whose|what|which|when|where|why|how(?: (?:long|many|much|often|old|big|far|high))?"
    r"|did|does|do|has|have|had|can|you|me)\b"
)
"""Words of a question that a right answer need not repeat; they are not compared with candidates."""
_NAMES = re.compile(r"(?<=\s)[A-Z][\w'-]*+|\b[^\W\d]*+\d[\w.-]*+")


@dataclass(frozen=True, slots=True)
class Words:
    """Words that a question shares with each of its candidates."""

    overlap: np.ndarray  # (candidates,) float64: weighted share of the question's words in each, 0..1
    around: np.ndarray  # (candidates,) float64: that share in each with its context (`Sentence.around`)
    label: np.ndarray  # (candidates,) float64: share of the label's words that the question has; 0: no label
    absent: np.ndarray  # (candidates,) bool: candidate and context lack a name or number of the question
    marks: tuple[tuple[int, ...], ...]  # per candidate, the offsets at which words of the question start


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
    """Returns the candidates that share most words with a question, up to `most`, in the order of `found`.

    The words of title, heading, row and label count, too; otherwise sentences that repeat the title would
    win. A fact is dropped if the question already contains the fact's value, such as the name of a row. No
    fact is dropped for a yes/no question or a comparison, or if no candidate would be left.
    """
    asked, _ = analyse(question, ANALYZER)
    if not (kind := read(question)).yes_no and not kind.direction:
        values = (analyse(s.text[len(s.label) + 2 :] if s.value else "", ANALYZER)[0] for s in found)
        told = (len(v) and np.isin(v, asked).all() for v in values)
        found = [s for s, known in zip(found, told, strict=True) if not known] or found
    words = words_of(question, found)
    best = np.argsort(-(words.around + words.label), kind="stable")[:most]
    return [found[i] for i in sorted(best.tolist())]


def overlaps(question: np.ndarray, *texts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Computes the weighted share of the question's words in each text; one array for each list of texts.
    The arrays are (texts,) float64, 0..1; `question` and each text are word hashes, uint64. A word weighs
    more if fewer texts of the first list contain it."""
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
    """Computes the features of one or more candidates: (candidates, len(FEATURES)) float64. `spans` has each
    candidate's typed answer or None; `cosine` (candidates,) compares each with the question."""
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


HEAD_CHARS = 300  # first characters of a text that may date it: a title and a first paragraph
ALIKE = 0.6  # least share of words that two versions of a statement have in common, values left out
ABOUT = 0.05  # a version's `overlap` + `around` may be lower than the candidate's by at most this
_SUPERSEDED = re.compile(
    r"\bsuperseded\b|\b(?:replaced|obsoleted|withdrawn) by\b|\bno longer (?:valid|in force)\b", re.IGNORECASE
)


def value_of(s: Sentence, span: TypedSpan | None) -> Quote | None:
    """Returns a quote of a candidate's value, or None. The value of a fact is its cell. The value of a
    sentence is its typed answer `span`, if this has a digit. Otherwise it is the sentence's number with its
    unit; a sentence with no number or with several has no value."""
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
    """Lists the versions of the statement of candidate `at`, newest first, as indices in `found`. They are
    `at` and, for each other value, the first candidate with nearly the same words (`ALIKE`, `ABOUT`). A
    source gives one version. If `at` has no value, returns [at]. Equally old versions keep their order."""
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
        """Returns a sort key, greater for a newer source; the file's time decides within one day."""
        page = pages[found[i].source]
        head = page.text[:HEAD_CHARS]
        title = next((page.text[b.start : b.end] for b in page.blocks if b.kind in ("title", "heading")), "")
        name, modified = (unquote(page.file.url), page.file.modified) if page.file else ("", "")
        name = typed_answers.DAY_IN_NAME.sub(r" \1-\2-\3 ", name).replace("_", " ")
        said = (title, name, "" if "T" in modified else modified, head, modified[:10])
        days = ([d for s in dates(t) if (d := day_of(t[slice(*s)])) is not None] for t in said)
        return not _SUPERSEDED.search(f"{title} {head}"), max(next(filter(None, days), [0.0])), modified

    return sorted(group, key=age, reverse=True)
