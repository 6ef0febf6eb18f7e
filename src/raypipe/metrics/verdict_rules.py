"""Scoring rules, which give each answer a verdict: right, wrong, missing or unscored. Pure functions; they
read the replies of a judge and call no judge. A truth is an accepted answer to the question.

- `official`: the evident intent of CRAG's published evaluator. A prediction that contains "i don't know" is
  missing. A prediction is right if it equals a truth, or if it and a truth contain "invalid". It is wrong if
  it contains "invalid" and no truth does, or if all truths contain "invalid" and it does not. A judge decides
  everything else, and replies in JSON with `score` 0 or 1.
- `words`: raypipe's own rule for answers in sentences, without a judge. An answer that contains "i don't
  know" is missing. An answer is right if it contains the words of a truth, one after the other, else wrong.
  It is also wrong if it has over MOST_WORDS words, or if its reply was cut at the length limit. A truth that
  is a boolean or one stop word is ignored; if no other truth is left, the answer is unscored.
- `accuracy`: the evaluator of earlier CRAG contests, by which most published runs were scored. A prediction
  that contains "i don't know" is missing. It is right if it equals a truth, or if the judge's reply contains
  "true".

`official` and `accuracy` compare texts in lower case, without white space at the ends, but with punctuation:
"yes." is not "yes". A prediction has one judge reply, which says whether it meets any of its truths. The
reply counts only if the rule leaves a truth open. A prediction that needs a judge and has no reply is
`unscored`: it counts in the total, but not in shares such as the accuracy.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeAlias, get_args

from raypipe.core import plugins
from raypipe.core.errors import ConfError
from raypipe.core.plugins import Plugin, is_path
from raypipe.core.records import FAULT, IDK, INVALID_QUESTION, RANKED, AnnotatorAnswer, Gold, Question
from raypipe.metrics.losses import by_size, shared
from raypipe.metrics.overlap import contains, exact_match, normalized
from raypipe.metrics.paired_tests import Interval, rate_interval, score_interval
from raypipe.text.replies import parse_response
from raypipe.text.words import STOP_WORDS

Rule: TypeAlias = str
"""A name of RULES, or the path of a rule of your own, such as `mypkg.metrics:verdict`. Its object is a
function of a `Prediction` that returns a `VerdictOutcome`."""
RULES: tuple[Rule, ...] = ("official", "accuracy", "words")
DEFAULT_RULE: Rule = "official"

VerdictOutcome: TypeAlias = Literal["correct", "exact", "missing", "hallucination", "unscored"]
"""`exact` is a correct prediction that equals a truth; it also counts in `n_correct`."""

Reason: TypeAlias = Literal[
    "equal",  # exact
    "both_invalid",  # correct: "invalid" in the prediction and in a truth
    "judge",  # correct or hallucination: the judge's reply decided
    "judge_unreadable",  # hallucination: the judge's reply is no judgement
    "one_invalid",  # hallucination: only the prediction has "invalid", or all truths and not the prediction
    "abstained",  # missing
    "no_judge_reply",  # unscored
    "no_prediction",  # unscored: the question failed
    "words",  # correct or hallucination by rule words: the answer contains a truth, or none
    "cut",  # hallucination by rule words: the reply was cut at its length
    "wordy",  # hallucination by rule words: over MOST_WORDS words
    "no_words",  # unscored by rule words: no truth has words to look for
    "rule",  # a rule from outside decided it
    "person",  # a person decided it: people outrank judges
]


RIGHT = ("exact", "correct")
"""Outcomes of a right answer."""
VALUES: Mapping[str, float] = {"exact": 1.0, "correct": 1.0, "missing": 0.0, "hallucination": -1.0}
"""Outcome of a verdict -> its value in the score. An unscored question has no value."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A prediction with everything that a rule needs to score it."""

    question: str  # question id
    prediction: str | None  # None: the question failed
    truths: tuple[str, ...]  # the answer, then its alternatives; () only if there are grades
    judge_response: str | None = None  # as the judge wrote it, may be ""; None: no reply
    labels: Mapping[str, str] = field(default_factory=dict)  # domain, question_type, ...
    grades: Mapping[str, int] = field(default_factory=dict)  # judged document -> relevance
    ranked: tuple[str, ...] | None = None  # ids of documents, best first; None: failed, or not scored by rank
    annotators: tuple[AnnotatorAnswer, ...] = ()  # annotators' answers to a question about a paper
    evidence: tuple[str, ...] = ()  # paragraphs of the paper that the answer rests on
    cut: bool = False  # the reply that became the answer was cut at its length
    person: bool | None = None  # a person's verdict: right or wrong; None: no verdict


@dataclass(frozen=True, slots=True)
class Verdict:
    question: str  # question id
    outcome: VerdictOutcome
    reason: Reason


@dataclass(frozen=True, slots=True)
class CragScore:
    """Score of predictions. Shares are over the scored ones, `total - n_unscored`; None if there are none."""

    score: float | None  # accuracy - hallucination, -1..1
    accuracy: float | None  # 0..1
    hallucination: float | None  # 0..1
    missing: float | None  # 0..1
    exact_accuracy: float | None  # 0..1, share of answers that equal a truth
    n_miss: int
    n_correct: int  # exact ones included
    n_correct_exact: int
    n_hallucination: int
    n_unscored: int
    total: int  # all predictions, unscored ones included


@dataclass(frozen=True, slots=True)
class Slice:
    """Score of the predictions that share one label."""

    label: str  # domain, question_type, ...
    value: str
    score: CragScore
    interval: tuple[float, float] | None  # 95 % interval of the score; None if nothing was scored


@dataclass(frozen=True, slots=True)
class RuleScore:
    """Score of a run by one rule."""

    rule: str  # as `rule_id` names it
    score: CragScore
    interval: tuple[float, float] | None  # 95 % interval of the score; None if nothing was scored
    bounds: tuple[float, float] | None  # score over all rows if unscored ones are all wrong, and if all right
    controls: Mapping[str, CragScore]  # constant answer -> its score on the same truths
    slices: tuple[Slice, ...]
    words: float | None = None  # mean words of answers that do not abstain; None: no such answer


@dataclass(frozen=True, slots=True)
class Marks(RuleScore):
    """Score of a run, with its verdicts."""

    verdicts: tuple[Verdict, ...] = ()  # one per prediction, in order

    def total(self) -> RuleScore:
        """Returns the score without the verdicts."""
        return RuleScore(**{f.name: getattr(self, f.name) for f in fields(RuleScore)})

    @property
    def people(self) -> int:
        return sum(v.reason == "person" for v in self.verdicts)


def judge(row: Prediction, rule: Rule) -> Verdict:
    """Gives the verdict on one prediction. A person's verdict outranks the rule, except if the prediction
    abstains or the question failed. Raises ValueError for a row without truths."""
    if not row.truths:
        raise ValueError(f"question {row.question!r} has no truth to score against")
    outcome, reason = _outcome(row, rule)
    silent = row.person is None or row.prediction is None or outcome == "missing"
    if silent or (outcome != "unscored" and (outcome in RIGHT) == row.person):
        return Verdict(row.question, outcome, reason)
    return Verdict(row.question, "correct" if row.person else "hallucination", "person")


def _outcome(row: Prediction, rule: Rule) -> tuple[VerdictOutcome, Reason]:
    if row.prediction is None:
        return "unscored", "no_prediction"
    if is_path(rule):
        verdict = _from_outside(rule)[0]
        with plugins.own_code("rule", rule, f"question {row.question}", "a verdict"):
            said: VerdictOutcome = verdict(row)
        if said not in (known := get_args(VerdictOutcome)):
            raise ConfError(f"{rule}: expected a verdict, one of {', '.join(known)}; found {said!r:.80}")
        return said, "rule"
    prediction = row.prediction.strip().lower()
    truths = [t.strip().lower() for t in row.truths]
    if IDK in prediction:
        return "missing", "abstained"
    if rule == "words":
        return _by_words(row)
    if prediction in truths:
        return "exact", "equal"
    if rule == "official":
        invalid = ["invalid" in t for t in truths]
        if "invalid" in prediction:
            return ("correct", "both_invalid") if any(invalid) else ("hallucination", "one_invalid")
        if all(invalid):
            return "hallucination", "one_invalid"
    if row.judge_response is None:
        return "unscored", "no_judge_reply"
    if rule == "accuracy":
        return ("correct" if "true" in row.judge_response.lower() else "hallucination"), "judge"
    score = parse_response(row.judge_response).score
    outcome: VerdictOutcome = "correct" if score == 1 else "hallucination"
    return outcome, "judge_unreadable" if score == -1 else "judge"


# An answer three times as long as a page's longest gold names nearly everything.
MOST_WORDS = 40  # most words of a right answer by rule words
_BOOLEANS = frozenset({"yes", "no", "true", "false"})


def _by_words(row: Prediction) -> tuple[VerdictOutcome, Reason]:
    """Gives the verdict by rule `words` on an answer that does not abstain."""
    words = [normalized(t) for t in row.truths]
    truths = [t for t, w in zip(row.truths, words, strict=True) if w and w not in STOP_WORDS | _BOOLEANS]
    if not truths:
        return "unscored", "no_words"
    if row.cut:
        return "hallucination", "cut"
    if len((row.prediction or "").split()) > MOST_WORDS:
        return "hallucination", "wordy"
    if exact_match(row.prediction or "", truths):
        return "exact", "equal"
    return ("correct" if contains(row.prediction or "", truths) else "hallucination"), "words"


@functools.cache
def _from_outside(rule: Rule) -> tuple[Callable[[Prediction], VerdictOutcome], Plugin]:
    verdict, plugin = plugins.load(rule, "a rule of scoring")
    if not callable(verdict):
        raise ConfError(f"{rule}: expected a function of a Prediction, found {verdict!r:.80}")
    return verdict, plugin


def rule_id(rule: Rule) -> str:
    """Returns a rule's name in reports. The name of a plugin's rule is its path with a digest of its source.
    Raises ConfError for an unknown rule."""
    if is_path(rule):
        return f"{rule}@{_from_outside(rule)[1].source[:8]}"
    if rule not in RULES:
        raise ConfError(f"unknown rule {rule!r}: expected {', '.join(RULES)}, or MODULE:NAME")
    return rule


def open_truths(row: Prediction, rule: Rule) -> tuple[str, ...]:
    """Returns the truths that a rule leaves to a judge, in order; () if none, or if the question failed."""
    if _outcome(replace(row, judge_response=None), rule) != ("unscored", "no_judge_reply"):
        return ()
    return tuple(t for t in row.truths if rule == "accuracy" or "invalid" not in t.lower())


def total(verdicts: Iterable[Verdict]) -> CragScore:
    """Computes the score of these verdicts.

    >>> total([Verdict("a", "exact", "equal"), Verdict("b", "missing", "abstained")]).score
    0.5
    """
    n = Counter(v.outcome for v in verdicts)
    exact, miss, wrong = n["exact"], n["missing"], n["hallucination"]
    correct = n["correct"] + exact
    scored = correct + miss + wrong

    def share(count: int) -> float | None:
        return count / scored if scored else None

    overall = (2 * correct + miss) / scored - 1 if scored else None
    shares = share(correct), share(wrong), share(miss), share(exact)
    return CragScore(overall, *shares, miss, correct, exact, wrong, n["unscored"], scored + n["unscored"])


def score(rows: Iterable[Prediction], rule: Rule) -> CragScore:
    return total(judge(r, rule) for r in rows)


def bounds(score: CragScore) -> tuple[float, float] | None:
    """Returns the least and the largest possible score over all predictions. The least counts unscored ones
    as wrong, the largest counts them as right. None without predictions."""
    if not score.total:
        return None
    low = (2 * score.n_correct + score.n_miss) / score.total - 1
    return low, low + 2 * score.n_unscored / score.total


def controls(rows: Sequence[Prediction], rule: Rule) -> dict[str, CragScore]:
    """Scores two constant answers to every question, "i don't know" and "invalid question", as a floor.

    No judge rates these answers. "invalid question" is wrong unless the rule accepts it without a judge. By
    rule `words`, it is unscored if no truth has words to look for.
    """
    return {
        answer: score((replace(r, prediction=answer, judge_response="", person=None) for r in rows), rule)
        for answer in (IDK, INVALID_QUESTION)
    }


def interval(score: CragScore) -> Interval | None:
    """Computes the 95 % interval of the score, as questions are a sample. Returns None without a score."""
    counts = score.n_correct, score.n_miss, score.n_hallucination
    return None if score.score is None else score_interval(*counts)


def rate_intervals(score: CragScore) -> dict[str, Interval]:
    """Computes 95 % intervals of the shares of right, wrong and missing answers. {} if nothing was scored.

    >>> low, high = rate_intervals(total([Verdict("a", "exact", "equal")] * 10))["accuracy"]
    >>> round(low, 2), round(high, 2)
    (0.72, 1.0)
    """
    if not (scored := score.total - score.n_unscored):
        return {}
    counts = {"accuracy": score.n_correct, "hallucination": score.n_hallucination, "missing": score.n_miss}
    return {name: rate_interval(n, scored) for name, n in counts.items()}


def slices(rows: Sequence[Prediction], verdicts: Sequence[Verdict]) -> tuple[Slice, ...]:
    """Scores the predictions of each value of each label. Labels are in the order met; of a label's values,
    the one with most predictions comes first, and equal ones are ordered by name."""
    members = by_size(zip((r.labels for r in rows), verdicts, strict=True))
    return tuple(Slice(*key, part, interval(part)) for key, of in members for part in [total(of)])


def mark(rows: Sequence[Prediction], rule: Rule) -> Marks:
    verdicts = tuple(judge(r, rule) for r in rows)
    overall = total(verdicts)
    sure, parts = (interval(overall), bounds(overall)), (controls(rows, rule), slices(rows, verdicts))
    said = [r.prediction for r in rows if r.prediction is not None and IDK not in r.prediction.lower()]
    words = sum(len(text.split()) for text in said) / len(said) if said else None
    return Marks(rule_id(rule), overall, *sure, *parts, words, verdicts)


NO_MARKS = Marks("", total([]), None, None, {}, ())
"""Marks of a run that no rule scores."""


def pair(
    questions: Iterable[Question], golds: Mapping[str, Gold], judged: Mapping[str, str]
) -> tuple[list[Prediction], list[str]]:
    """Joins answered questions with their truths in `golds` and judge replies in `judged`, by question id.

    Returns the predictions in order, and the ids of the questions without a truth, which cannot be scored. If
    a question ended in a fault, or only ranked passages, its prediction is None: it is unscored, neither
    wrong nor missing.
    """
    rows, without = list[Prediction](), list[str]()
    for q in questions:
        gold = golds.get(q.id)
        if gold is None or not gold.answers:
            without.append(q.id)
            continue
        said = None if q.outcome in ("", FAULT, RANKED) else q.answer
        labels, notes = shared(gold.labels), gold.annotators
        rows.append(Prediction(q.id, said, gold.answers, judged.get(q.id), labels, annotators=notes))
    return rows, without
