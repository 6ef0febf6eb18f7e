"""Rankings without a model: `Fuse` combines scores; `ReadAll` takes all cited pages, as a baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from raypipe.core.digests import FittedOn
from raypipe.core.protocols import Ask, Bound, Kit, Reach
from raypipe.core.records import Fault, Hit, Question, chunk_id
from raypipe.steps.field_checks import require_positive
from raypipe.steps.hits import add_hits, add_scores, best_first, grown, row_by_row

Norm = Literal["none", "minmax", "max"]


@dataclass(frozen=True, slots=True)
class FusionWeights:
    weights: Mapping[str, float]  # score name -> weight
    fitted_on: FittedOn


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuse:
    """Fuses several scores of each hit into the score `into`, and makes the `top` best hits the new `order`.

    Candidates are the hits that have a score with a weight other than 0. The method `rrf` gives a candidate
    the sum of weight / (k + rank); ranks start at 1 within each score. The method `weighted` gives it the sum
    of weight x score. Before that, `norms` may rescale a score over the hits of the question. `none`, the
    default, changes nothing. `minmax` maps the score to 0..1 (1 if it is equal for all hits). `max` divides
    the score by the largest value (0 if no value is above 0).

    If a candidate lacks one of the scores, `missing` decides. `fault`: the question gets a fault and an empty
    `order`. `zero`: the missing score adds nothing. `min`: the candidate gets the rank after the last one, or
    the smallest normalised score. Only the ratio of the weights affects the order. `raypipe fit fuse` fits
    the weights to the data set's measure and writes a file. In a recipe, `fitted` names this file.
    """

    weights: Mapping[str, float] = field(default_factory=dict)  # score name -> weight
    top: int  # most passages of the new order
    method: Literal["rrf", "weighted"] = "rrf"
    norms: Mapping[str, Norm] = field(default_factory=dict)  # for `weighted`: score name -> norm
    k: float = 60.0  # for `rrf`; Cormack, Clarke and Büttcher 2009
    missing: Literal["fault", "zero", "min"] = "fault"
    into: str = "fuse"
    fitted: FusionWeights | None = None  # replaces `weights`

    version: ClassVar[int] = 1
    given_by_fit: ClassVar[frozenset[str]] = frozenset({"weights", "top", "fitted"})

    def __post_init__(self) -> None:
        if not self.used():
            raise ValueError("weights: expected at least one score with a weight other than 0, found none")
        weights = self.weighed()
        if bad := [n for n, w in weights.items() if not math.isfinite(w)]:
            raise ValueError(f"weights: expected finite numbers, found {weights[bad[0]]} for {bad[0]!r}")
        if self.method == "rrf" and self.norms:
            raise ValueError("norms: rrf uses ranks, not scores. Leave norms out, or use method: weighted")
        if unknown := sorted(set(self.norms) - {*weights, *self.weights}):
            raise ValueError(f"norms: {unknown[0]!r} has no weight; weights name {', '.join(weights)}")
        require_positive(self, "top")

    def reads(self) -> frozenset[str]:
        return frozenset({"hits", *(f"hits.{n}" for n in self.used())})

    def writes(self) -> frozenset[str]:
        return frozenset({"order", f"hits.{self.into}"})

    def bound(self, question: Question, reach: Reach) -> Bound:
        behind = replace(reach, order=min(self.top, reach.hits))
        return Bound(0, behind, "any" if self.missing == "fault" else "never")

    def open(self, kit: Kit) -> Ask:
        return row_by_row(self.fused)

    def weighed(self) -> Mapping[str, float]:
        """Returns score name -> weight, from `fitted` if it is set, else from `weights`."""
        return self.weights if self.fitted is None else self.fitted.weights

    def used(self) -> tuple[str, ...]:
        return tuple(n for n, w in self.weighed().items() if w != 0)

    def fused(self, question: Question) -> Question:
        used = self.used()
        hits = [h for h in question.hits if any(n in h.scores for n in used)]
        if self.missing == "fault":
            for n in used:
                if lacking := sum(n not in h.scores for h in hits):
                    advice = "score them all, drop the weight, or set missing: zero or min"
                    detail = f"{lacking} of {len(hits)} candidates have no score {n!r}; {advice}"
                    fault = Fault("fuse", "missing_score", detail, transient=False)
                    return replace(question, order=(), faults=(*question.faults, fault))
        weights = self.weighed()
        columns = [[weights[n] * part for part in self.column(n, hits)] for n in used]
        # fsum is exact, so passages with equal parts tie in any order of the weights.
        fused = {h.chunk: math.fsum(c[i] for c in columns) for i, h in enumerate(hits)}
        return replace(add_scores(question, self.into, fused), order=best_first(fused, self.top))

    def column(self, name: str, hits: Sequence[Hit]) -> list[float]:
        """Returns what the score `name` adds to each of `hits` if its weight is 1. A hit without this score
        gets 0, or the worst value if `missing` is "min"."""
        scores = {h.chunk: h.scores[name] for h in hits if name in h.scores}
        if self.method == "rrf":
            parts = {c: 1 / (self.k + rank) for rank, c in enumerate(best_first(scores), start=1)}
            worst = 1 / (self.k + len(parts) + 1)
        else:
            parts = normalised(scores, self.norms.get(name, "none"))
            worst = min(parts.values(), default=0.0)
        other = worst if self.missing == "min" else 0.0
        return [parts.get(h.chunk, other) for h in hits]


def normalised(scores: Mapping[str, float], norm: Norm) -> dict[str, float]:
    """Normalises one ranker's scores for one question to the scale that `norm` names.

    >>> normalised({"a": 2.0, "b": 4.0}, "max"), normalised({"a": 2.0, "b": 4.0}, "minmax")
    ({'a': 0.5, 'b': 1.0}, {'a': 0.0, 'b': 1.0})
    """
    if norm == "none" or not scores:
        return dict(scores)
    low, high = min(scores.values()), max(scores.values())
    if norm == "minmax":
        return {c: (s - low) / (high - low) if high > low else 1.0 for c, s in scores.items()}
    return {c: s / high if high > 0 else 0.0 for c, s in scores.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAll:
    """Makes the cited pages and papers the new `order`. Each is one passage, in the order of the citations.

    Snippets, names and pages without text are left out. The score `into` is 1 for the first page, 1/2 for the
    second, 1/3 for the third. Without citations, `order` becomes empty: the step never reads a whole store.
    """

    into: str = "read_all"

    version: ClassVar[int] = 1

    def reads(self) -> frozenset[str]:
        return frozenset({"citations", "index.text"})

    def writes(self) -> frozenset[str]:
        return frozenset({"hits", f"hits.{self.into}", "order"})

    def bound(self, question: Question, reach: Reach) -> Bound:
        pages = len(_pages(question))
        longest = math.inf if pages else reach.passage_chars  # the length of a page is unknown
        return Bound(0, replace(grown(reach, pages), order=pages, passage_chars=longest), "never")

    def open(self, kit: Kit) -> Ask:
        index = kit.index()

        async def ask(questions: list[Question]) -> list[Question]:
            distinct = list(dict.fromkeys(s for q in questions for s in _pages(q)))
            texts = dict(zip(distinct, await index.source_texts(distinct), strict=True))
            return [self._read(q, {s: texts[s] or "" for s in _pages(q)}) for q in questions]

        return ask

    def _read(self, question: Question, texts: dict[str, str]) -> Question:
        spans = [(s, (0, len(text))) for s, text in texts.items() if text.strip()]
        hits = [
            Hit(chunk_id(s, span), s, span, {self.into: 1 / rank}) for rank, (s, span) in enumerate(spans, 1)
        ]
        return replace(add_hits(question, hits), order=tuple(h.chunk for h in hits))


def _pages(question: Question) -> list[str]:
    """Returns the distinct pages and papers that a question cites, in order."""
    return list(dict.fromkeys(c.page for c in question.citations or () if c.page is not None))
