"""Fits conf/fitted/local-extract.yaml: which sentence is best, and how likely what is said is right.

Three linear models. Which sentence: a softmax over the sentences of a question, of which those that hold a
gold are right. Whether the best one holds a gold, and whether its span does: logistic regressions. All with
a ridge on standardised features, and written back for raw ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from extract_sets import Case, holds, strictly
from scipy.optimize import minimize
from scipy.special import logsumexp

from raypipe.core.protocols import Kit
from raypipe.core.records import parse_chunk_id
from raypipe.steps.extract import COMPARED, BestSentence, Extract, choose, shown
from raypipe.text import compare, evidence
from raypipe.text.candidates import Sentence, SourceText, candidates
from raypipe.text.evidence import Fitted, Logistic
from raypipe.text.fitted_on import FittedOn

AT_ONCE = 20  # questions per call of a model
FITTED_ON_BEST = (
    12  # sentences of a question; a right one is among them for all but 3 % of those that have one
)
RIDGE = 10.0  # on standardised features; .1 to 30 differ by less than .02 in log loss on held-out rows


@dataclass(frozen=True, slots=True)
class Scored:
    """A case with its candidate sentences and what both models say of them."""

    case: Case
    found: list[Sentence]
    cosine: np.ndarray  # (candidates,)
    maxsim: np.ndarray
    weight: float  # of the case in the fit

    def choice(self, fitted: Fitted | None) -> BestSentence:
        return choose(self.case.text, self.found, self.cosine, self.maxsim, fitted)


async def scored(
    cases: Sequence[Case], pages: dict[str, Any], step: Extract, kit: Kit, weight: float
) -> list[Scored]:
    """The cases that have candidates, as `extract` scores them."""
    texts = {s: SourceText(p.text, p.blocks, p.hidden) for s, p in pages.items()}
    embed, score, out = kit.embedder(step.embedder), kit.reranker(step.maxsim), []
    for at in range(0, len(cases), AT_ONCE):
        some = cases[at : at + AT_ONCE]
        found = [candidates(map(parse_chunk_id, c.order), texts, step.sentences) for c in some]
        found = [evidence.likely(c.text, f, step.scored) for c, f in zip(some, found, strict=True)]
        rows = {t: i for i, t in enumerate(dict.fromkeys(s.text for f in found for s in f))}
        vectors, queries = await embed(list(rows), "passage"), await embed([c.text for c in some], "query")
        matches = await score([(c.text, s.text) for c, f in zip(some, found, strict=True) for s in f])
        first = 0
        for case, f, query in zip(some, found, queries, strict=True):
            if f:
                cosine = vectors[[rows[s.text] for s in f]] @ query
                out.append(Scored(case, f, cosine, matches[first : first + len(f)], weight))
            first += len(f)
        print(f"\r{at + len(some)} of {len(cases)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return out


def fit(rows: Sequence[Scored], step: Extract, fitted_on: FittedOn) -> Fitted:
    """All numbers of the file."""
    open_rows = [(r, c) for r in rows if not ((c := r.choice(None)).asked.choice or c.asked.yes_no)]
    rank = _rank([(c.features, _right(r), r.weight) for r, c in open_rows])
    none = Logistic(0.0, {})
    made = Fitted(step.embedder.weights, rank, none, none, 0.5, fitted_on)
    chosen = [(r, r.choice(made)) for r, _ in open_rows]
    weights = np.array([r.weight for r, _ in chosen])
    right = np.array([_says(r, c, (step.words, step.chars)) for r, c in chosen])
    sentence = _logistic([c.answer for _, c in chosen], right, weights, evidence.ANSWER)
    spans = [(r, c) for r, c in chosen if c.span is not None and not c.asked.plural]
    features = [_span(c, sentence) for _, c in spans]
    held = np.array(
        [holds(c.found[c.best].text[slice(*c.span.span)], r.case.golds) for r, c in spans if c.span]
    )
    span = _logistic(features, held, np.array([r.weight for r, _ in spans]), evidence.SPAN)
    return Fitted(step.embedder.weights, rank, sentence, span, _compared(rows, made), fitted_on)


def _right(row: Scored) -> np.ndarray:
    return np.array([holds(s.text, row.case.golds) for s in row.found])


def _says(row: Scored, choice: BestSentence, most: tuple[int, int]) -> bool:
    span = choice.span.span if choice.span else None
    text = shown(choice.found[choice.best].text, most, choice.words.marks[choice.best], span)
    return holds(text, row.case.golds)


def _span(choice: BestSentence, sentence: Logistic) -> dict[str, float]:
    assert choice.span is not None
    p = sentence.probability(choice.answer)
    return evidence.span_features(choice.asked, choice.words, choice.best, choice.span, p)


def _compared(rows: Sequence[Scored], fitted: Fitted) -> float:
    """The share of decided comparisons that are right, as the rule of succession has it."""
    right = decided = 0
    for row in rows:
        choice = row.choice(fitted)
        if not (choice.asked.choice or choice.asked.yes_no):
            continue
        best = [choice.found[i].text for i in choice.order[:COMPARED]]
        if (said := compare.decide(choice.asked, best)) is not None:
            decided += 1
            right += strictly(choice.asked, said.text, row.case.golds)
    print(f"comparisons: {right} right of {decided} decided")
    return round((right + 1) / (decided + 2), 3)


def _standard(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return raw.mean(0), np.where(raw.std(0) > 1e-9, raw.std(0), 1.0)


def _rank(groups: Sequence[tuple[np.ndarray, np.ndarray, float]]) -> dict[str, float]:
    """Weights of `evidence.RANKING`, from the questions where some sentence is right and some is not."""
    kept = [g for g in groups if g[1].any() and not g[1].all()]
    mean, scale = _standard(np.concatenate([x for x, _, _ in kept]))
    parts = [((x - mean) / scale, right, w) for x, right, w in kept]

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        total, slope = float(RIDGE * w @ w / 2), RIDGE * w
        for x, right, weight in parts:
            z = x @ w
            all_, good = logsumexp(z), logsumexp(z[right])
            total += weight * (all_ - good)
            slope = slope + weight * (np.exp(z - all_) @ x - np.exp(z[right] - good) @ x[right])
        return total, slope

    w = _least(loss, len(evidence.RANKING)) / scale
    return {n: round(float(v), 4) for n, v in zip(evidence.RANKING, w, strict=True)}


def _logistic(
    rows: Sequence[dict[str, float]], right: np.ndarray, weights: np.ndarray, names: Sequence[str]
) -> Logistic:
    raw = np.array([[r[n] for n in names] for r in rows])
    mean, scale = _standard(raw)
    x, sign = (raw - mean) / scale, np.where(right, 1.0, -1.0)

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        z = sign * (x @ w[1:] + w[0])
        slope = -sign * weights / (1 + np.exp(z))
        penalty = RIDGE * w[1:]
        value = float((weights * np.logaddexp(0, -z)).sum() + penalty @ w[1:] / 2)
        return value, np.concatenate([[slope.sum()], x.T @ slope + penalty])

    w = _least(loss, x.shape[1] + 1)
    raw_weights = w[1:] / scale
    bias = round(float(w[0] - raw_weights @ mean), 4)
    return Logistic(bias, {n: round(float(v), 4) for n, v in zip(names, raw_weights, strict=True)})


def _least(loss: Callable[[np.ndarray], tuple[float, np.ndarray]], size: int) -> np.ndarray:
    found: np.ndarray = minimize(loss, np.zeros(size), jac=True, method="L-BFGS-B").x
    return found


def write(fitted: Fitted, path: Path) -> None:
    on = fitted.fitted_on
    tree = {
        "embedder": fitted.embedder,
        "rank": dict(fitted.rank),
        "sentence": {"bias": fitted.sentence.bias, "weights": dict(fitted.sentence.weights)},
        "span": {"bias": fitted.span.bias, "weights": dict(fitted.span.weights)},
        "compared": fitted.compared,
        "fitted_on": {"data": on.data, "split": on.split, "metric": on.metric, "n": on.n, "seen": on.seen},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    head = (
        "# Which sentence `extract` takes, and the probability that what it says is right. Made by\n"
        "# `bench/figures/extract.py --fit`. `embedder` is the identity of the weights it was fitted with:\n"
        "# with others these numbers are refused.\n"
    )
    path.write_text(head + yaml.safe_dump(tree, sort_keys=False, width=100), encoding="utf-8")
