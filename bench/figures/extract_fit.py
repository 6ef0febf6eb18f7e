"""Fits conf/fitted/local-extract.yaml: how likely a candidate holds an answer.

A logistic regression over `text.evidence.FEATURES`, with a ridge on standardised features, written back for
raw ones. A row is a candidate; those of a question share its weight, the better ones the more of it: by how
well the fit before it ranks them. Then the probability is scaled to be right for the best candidate of each
question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import yaml
from extract_sets import Case, QuestionSet, holds, strictly
from scipy.optimize import minimize

from raypipe.core.digests import FittedOn
from raypipe.core.protocols import Kit
from raypipe.core.records import Question
from raypipe.steps.extract import (
    Extract,
    RankedCandidates,
    choose,
    cosines_of,
    likely_candidates,
    shown,
)
from raypipe.text.evidence import FEATURES, Fitted
from raypipe.text.typed_answers import decide

RIDGE = 3.0  # on standardised features
ROUNDS = 4  # of weighing candidates by the fit before


@dataclass(frozen=True, slots=True)
class Scored:
    """A case with its ranked candidates."""

    case: Case
    choice: RankedCandidates
    weight: float  # of the case in the fit


async def scored(asked: QuestionSet, step: Extract, kit: Kit, weight: float) -> list[Scored]:
    """The cases of a set that have candidates, as `extract` ranks them without fitted numbers."""
    questions = [Question(c.id, c.text, order=c.order) for c in asked.cases]
    texts, most = [q.text for q in questions], (step.passages, step.sentences, step.scored)
    found, _ = await likely_candidates(kit.index(), questions, texts, most)
    cosines = await cosines_of(kit.embedder(step.embedder), texts, found)
    rows = zip(asked.cases, found, cosines, strict=True)
    return [Scored(c, choose(c.text, f, cosine, None), weight) for c, f, cosine in rows if f]


def fit(rows: Sequence[Scored], step: Extract, on: FittedOn) -> Fitted:
    """All numbers of the file."""
    open_rows = [r for r in rows if not (r.choice.asked.direction or r.choice.asked.yes_no)]
    x = np.concatenate([r.choice.features for r in open_rows])
    sizes = [len(r.choice.found) for r in open_rows]
    group, case_weights = np.repeat(np.arange(len(sizes)), sizes), np.array([r.weight for r in open_rows])
    right = np.array(
        [
            holds(_whole(r, i, step), r.case.golds)
            for r, n in zip(open_rows, sizes, strict=True)
            for i in range(n)
        ]
    )
    w = np.zeros(x.shape[1] + 1)
    for _ in range(ROUNDS):
        share = np.exp(x @ w[1:])
        w = _logistic(x, right, case_weights[group] * share / np.bincount(group, share)[group])
    ends = np.cumsum([0, *sizes])
    best = [int(np.argmax(x[a:b] @ w[1:])) for a, b in pairwise(ends)]
    first = ends[:-1] + best
    shift, scale = _logistic((x[first] @ w[1:] + w[0])[:, None], right[first], case_weights)
    w = np.concatenate([[shift + scale * w[0]], scale * w[1:]])
    named = {n: round(float(v), 4) for n, v in zip(FEATURES, w[1:], strict=True)}
    made = Fitted(step.embedder.weights, round(float(w[0]), 4), named, 0.5, on)
    return replace(made, compared=_compared(rows, made))


def _whole(row: Scored, i: int, step: Extract) -> str:
    return shown(row.choice.found[i].text, (step.words, step.chars), row.choice.middle(i))


def _logistic(raw: np.ndarray, right: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(1 + features,) float64: bias and weights."""
    mean, scale = raw.mean(0), np.where(raw.std(0) > 1e-9, raw.std(0), 1.0)
    x, sign = (raw - mean) / scale, np.where(right, 1.0, -1.0)

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        z = sign * (x @ w[1:] + w[0])
        slope = -sign * weights / (1 + np.exp(np.clip(z, -500, 500)))
        penalty = RIDGE * w[1:]
        value = float((weights * np.logaddexp(0, -z)).sum() + penalty @ w[1:] / 2)
        return value, np.concatenate([[slope.sum()], x.T @ slope + penalty])

    w: np.ndarray = minimize(loss, np.zeros(x.shape[1] + 1), jac=True, method="L-BFGS-B").x
    return np.concatenate([[w[0] - (w[1:] / scale) @ mean], w[1:] / scale])


def _compared(rows: Sequence[Scored], fitted: Fitted) -> float:
    """The share of decided comparisons that are right, as the rule of succession has it."""
    right = decided = 0
    for row in rows:
        asked, p = row.choice.asked, fitted.probability(row.choice.features)
        if asked.direction:
            best = [row.choice.found[i].text for i in np.argsort(-p, kind="stable")]
            if (said := decide(asked, best)) is not None:
                decided += 1
                right += strictly(asked, said[0], row.case.golds)
    return round((right + 1) / (decided + 2), 3)


def write(fitted: Fitted, path: Path) -> None:
    on = fitted.fitted_on
    tree = {
        "embedder": fitted.embedder,
        "bias": fitted.bias,
        "weights": dict(fitted.weights),
        "compared": fitted.compared,
        "fitted_on": {"data": on.data, "split": on.split, "metric": on.metric, "n": on.n, "seen": on.seen},
    }
    head = (
        "# Probability that what `extract` says is right. Made by `bench/figures/extract.py --fit`.\n"
        "# `embedder` is the identity of the weights it was fitted with: with others these are refused.\n"
    )
    path.write_text(head + yaml.safe_dump(tree, sort_keys=False, width=100_000), encoding="utf-8")
