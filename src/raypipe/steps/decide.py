"""Last step of a question: it decides which reply is the answer, or that there is none and why.

The answer's probability depends on the question, its replies and its hits' scores, not on the hits' texts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from raypipe.core import records
from raypipe.core.digests import FittedOn
from raypipe.core.protocols import Ask, Bound, Kit, Model, Reach
from raypipe.core.records import IDK, INVALID_QUESTION, TRACE, Fault, Question
from raypipe.steps.field_checks import require_positive
from raypipe.steps.hits import row_by_row
from raypipe.text.context import cut
from raypipe.text.replies import abstains
from raypipe.text.template import ByLabel
from raypipe.text.typed_answers import read
from raypipe.text.words import analyse

STANDARD = {records.ANSWERED, records.ABSTAINED, records.INVALID, records.SKIPPED, records.FAULT, TRACE}
"""Reply labels that are no class names. `features_of` makes no feature `label.R=X` for them."""
_TIMELY = re.compile(  # words of questions whose answer depends on the day they are asked
    r"\b(?:today|tonight|yesterday|tomorrow|now|current(?:ly)?|latest|newest|most recent(?:ly)?|recently"
    r"|at the moment|at present|(?:this|last) (?:week|month|year|night)|(?:next|last) (?:game|match))\b"
)
EDGE = 1e-4  # stated confidences are clipped to EDGE..1-EDGE, so log odds range from -9.2 to 9.2
_DENIES = re.compile(r"\b(?:no(?:t|ne|thing|body)?|never|neither|without)\b|n't\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AnswerProbability:
    """Logistic regression for the probability that an answer is right, and a threshold for giving it."""

    threshold: float  # least probability at which the answer is given, 0..1
    bias: float  # log odds if every feature has its mean
    weights: Mapping[str, float]  # feature -> log odds for each unit above its mean
    means: Mapping[str, float]  # feature -> its mean over the questions of the fit
    fitted_on: FittedOn

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold: expected a probability from 0 to 1, found {self.threshold}")
        if unlike := sorted(self.weights.keys() ^ self.means.keys()):
            raise ValueError(
                f"weights and means: expected the same features, found {unlike[0]!r} in only one"
            )
        for name in self.weights:
            if unknown(name):
                raise ValueError(f"weights: {name!r} is no feature; docs/tune.md lists them")

    def probability(self, features: Mapping[str, float]) -> float:
        """Returns the probability, 0..1, that an answer with these features is right."""
        lacking = {n: absent(n, mean) for n, mean in self.means.items()}
        found = ((w, features.get(n, lacking[n]) - self.means[n]) for n, w in self.weights.items())
        z = self.bias + math.fsum(w * x for w, x in found)
        return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))

    def of(self, question: Question, origin: str, prefer: Sequence[str]) -> float:
        """Returns the probability that the reply `origin` is right. `prefer` names all possible answers."""
        return self.probability(features_of(question, origin, prefer, self.weights))

    def reads(self) -> frozenset[str]:
        """Returns the question fields that the features need, except the replies in `Decide.prefer`."""
        found = set[str]()
        for kind, _, rest in (name.partition(".") for name in self.weights):
            if kind in ("best", "margin"):
                found |= {"hits", f"hits.{rest}"}
            elif kind == "label":
                found.add(f"replies.{rest.partition('=')[0]}")
            elif kind in ("asked", "share"):
                found.add("text")
        return frozenset(found)


_PLAIN = frozenset(
    {"confidence", "stated", "logprob", "logprob_word", "agrees", "alone", "words", "denies", "share"}
)
_NAMED = frozenset({"best", "margin", "label", "from", "asked"})


def absent(name: str, mean: float) -> float:
    """Returns the value of the feature `name` if it is missing: 0 if it states a class, else `mean`."""
    return 0.0 if name.startswith(("label.", "asked.", "from.")) else mean


def unknown(name: str) -> bool:
    kind, dot, rest = name.partition(".")
    return name not in _PLAIN and not (dot and rest and kind in _NAMED)


def features_of(
    question: Question, origin: str, prefer: Sequence[str], names: Collection[str] | None = None
) -> dict[str, float]:
    """Returns the features of the answer in the reply `origin`, as name -> value.

    `names` selects features; None means all. A feature without a value for this answer is left out.

    - confidence: log odds of the stated confidence; stated: 1 if the reply states a confidence.
    - logprob: log-probability summed over the reply's tokens; logprob_word: this sum per word.
    - best.S: the best score S of a hit; margin.S: best minus second best, 0 if only one hit has the score S.
    - agrees: largest share of words in common with another answer in `prefer`, 0..1; alone: 1 if none exists.
    - label.R=X: 1 if reply R has class X; from.R: 1 if the answer comes from reply R.
    - asked.K: 1 if the question asks for kind K (who, when, ...), for the present (timely), for yes or no
      (yes_no), or compares (choice).
    - words: log of (1 + the answer's word count); denies: 1 if the answer has "not" or a similar word.
    - share: share of the question's words that the answer contains, 0..1.
    """
    reply = question.replies[origin]
    kinds = None if names is None else {n.partition(".")[0] for n in names}

    def some(*of: str) -> bool:
        return kinds is None or not kinds.isdisjoint(of)

    found = {"stated": float(reply.confidence is not None)}
    if reply.confidence is not None:
        p = min(max(reply.confidence, EDGE), 1 - EDGE)
        found["confidence"] = math.log(p / (1 - p))
    if reply.logprob is not None:
        found["logprob"] = reply.logprob
        found["logprob_word"] = reply.logprob / max(1, len(reply.text.split()))
    if some("agrees", "alone"):
        found |= _agreement(question, origin, prefer)
    if some("from"):
        found |= {f"from.{r}": float(r == origin) for r in prefer}
    if some("label"):
        labels = None if names is None else {n.removeprefix("label.").partition("=")[0] for n in names}
        asked_for = question.replies if labels is None else question.replies.keys() & labels
        said = ((n, question.replies[n].label) for n in asked_for)
        found |= {f"label.{n}={label}": 1.0 for n, label in said if label not in STANDARD}
    if some("best", "margin"):
        found |= _ranks(question, names)
    if some("asked"):
        asked = read(question.text)
        rules = {"timely": _TIMELY.search(asked.text), "yes_no": asked.yes_no, "choice": asked.direction}
        found |= {f"asked.{asked.kind}": 1.0, **{f"asked.{n}": float(bool(v)) for n, v in rules.items()}}
    if some("words", "denies", "share"):
        found["words"] = math.log1p(len(reply.text.split()))
        found["denies"] = float(bool(_DENIES.search(reply.text)))
    if some("share"):
        found["share"] = _shared(question.text, reply.text)
    return found if names is None else {n: found[n] for n in names if n in found}


def _agreement(question: Question, origin: str, prefer: Sequence[str]) -> dict[str, float]:
    replies = [question.replies[n] for n in prefer if n != origin and n in question.replies]
    others = [r.text for r in replies if r.label == records.ANSWERED and not abstains(r.text)]
    own = question.replies[origin].text
    agrees = max((max(_shared(own, o), _shared(o, own)) for o in others), default=0.0)
    return {"agrees": agrees, "alone": float(not others)}


def _ranks(question: Question, names: Collection[str] | None) -> dict[str, float]:
    if names is None:
        scores = sorted({s for h in question.hits for s in h.scores})
    else:
        scores = sorted({n.partition(".")[2] for n in names if n.startswith(("best.", "margin."))})
    found = {}
    for score in scores:
        values = sorted((h.scores[score] for h in question.hits if score in h.scores), reverse=True)
        if values:
            found[f"best.{score}"] = float(values[0])
            found[f"margin.{score}"] = float(values[0] - values[1]) if len(values) > 1 else 0.0
    return found


def _shared(text: str, other: str) -> float:
    """Returns the share of the distinct words of `text` that `other` contains, 0..1."""
    own = np.unique(analyse(text, "stems")[0])
    return float(np.isin(own, analyse(other, "stems")[0]).mean()) if len(own) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide:
    """Takes the first reply of `prefer` that answers the question or calls the premise false.

    `prefer` may map each label of an earlier reply to a list; for an empty list, the answer is "i don't
    know". An answer that contains "i don't know", in any case, is an abstention.

    If no reply of `prefer` answers or calls the premise false, there are two outcomes. If a reply abstains or
    was skipped, and no earlier step gave the question a final fault, the answer is "i don't know". Otherwise
    the outcome is fault, without an answer; a question without a fault then gets the faults of the replies.

    With `fitted` (`raypipe fit decide`) the confidence of an answering reply becomes the probability that it
    is right. Below the fitted threshold the answer is "i don't know", and no later reply of `prefer` is
    tried, since the fit covers first choices only.
    """

    prefer: tuple[str, ...] | ByLabel[tuple[str, ...]]  # reply names, first choice first, or a table
    lower: bool = False  # answers in lower case, as CRAG's gold answers are
    answer_tokens: int | None = None  # longer answers are cut; CRAG's evaluator keeps 75
    tokenizer: Model | None = None  # counts answer_tokens; CRAG's evaluator uses Llama 2's for every model
    fitted: AnswerProbability | None = None  # probability and threshold of an answer; None: always answers

    version: ClassVar[int] = 3
    given_by_fit: ClassVar[frozenset[str]] = frozenset({"fitted"})

    def __post_init__(self) -> None:
        if not any(self._tables()):
            raise ValueError("prefer: expected at least one reply name, found none")
        if (self.answer_tokens is None) != (self.tokenizer is None):
            raise ValueError("answer_tokens and tokenizer: expected both or neither, found one")
        require_positive(self, "answer_tokens")

    def reads(self) -> frozenset[str]:
        by = self.prefer.reads() if isinstance(self.prefer, ByLabel) else frozenset()
        fitted = frozenset() if self.fitted is None else self.fitted.reads()
        return by | fitted | {f"replies.{r}" for r in self.prefers()}

    def writes(self) -> frozenset[str]:
        confident = () if self.fitted is None else self.prefers()
        return frozenset({"answer", "outcome", "origin", *(f"replies.{r}" for r in confident)})

    def prefers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r for names in self._tables() for r in names))

    def bound(self, question: Question, reach: Reach) -> Bound:
        return Bound(0, reach)

    def answer_cut(self) -> tuple[int, Model] | None:
        if self.answer_tokens is None or self.tokenizer is None:
            return None
        return self.answer_tokens, self.tokenizer

    def _tables(self) -> tuple[tuple[str, ...], ...]:
        """Returns all lists of reply names in `prefer`."""
        return self.prefer.values() if isinstance(self.prefer, ByLabel) else (self.prefer,)

    def open(self, kit: Kit) -> Ask:
        if (most := self.answer_tokens) is None or self.tokenizer is None:
            return row_by_row(lambda q: self._decide(q, str))
        tokenize = kit.tokenizer(self.tokenizer)
        return row_by_row(lambda q: self._decide(q, lambda text: cut(text, most, tokenize)))

    def _decide(self, question: Question, trim: Callable[[str], str]) -> Question:
        prefer = self.prefer.of(question) if isinstance(self.prefer, ByLabel) else self.prefer
        replies = {name: question.replies[name] for name in prefer if name in question.replies}
        for name, reply in replies.items():
            if reply.label == records.ANSWERED and not abstains(reply.text):
                text = trim(reply.text.lower() if self.lower else reply.text)
                if self.fitted is not None:
                    p = self.fitted.of(question, name, prefer)
                    known = {**question.replies, name: replace(reply, confidence=p)}
                    question = replace(question, replies=known)
                    if p < self.fitted.threshold:
                        return replace(question, answer=IDK, outcome="abstained", origin="")
                return replace(question, answer=text, outcome="answered", origin=name)
            if reply.label == records.INVALID:
                return replace(question, answer=INVALID_QUESTION, outcome="false_premise", origin=name)
        broken = any(not f.transient for f in question.faults)
        labels = {r.label for r in replies.values()}  # any ANSWERED here says "i don't know"
        if not broken and (not prefer or labels & {records.ABSTAINED, records.SKIPPED, records.ANSWERED}):
            return replace(question, answer=IDK, outcome="abstained", origin="")
        own = tuple(r.fault for r in replies.values() if r.fault is not None)
        said = (f"{name}: {replies[name].label if name in replies else 'not there'}" for name in prefer)
        detail = f"no reply answers or abstains: {', '.join(said)}"
        faults = question.faults or own or (Fault("decide", "no_reply", detail, transient=False),)
        return replace(question, answer="", outcome="fault", origin="", faults=faults)
