"""Two scored runs over the same questions: better, worse, the same, or cannot tell, and where it comes from.

Joins the questions by id. Knows what was measured of each (`scored_run`); reads no file and computes no
answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError, DataError, RaypipeError
from raypipe.evaluation.scored_run import ScoredRun
from raypipe.metrics.certainty import (
    MARGIN,
    Conclusion,
    Floats,
    PairedDifference,
    conclude,
    holm,
    paired,
)
from raypipe.metrics.kinds import Measure, group_of, grouped, open_kind
from raypipe.metrics.losses import by_label
from raypipe.runs.changes import causes
from raypipe.runs.record import Run, answer_keys
from raypipe.store import Store

JUDGED = frozenset({"score", "accuracy", "hallucination"})
"""Measures that rest on a rule and a judge: two runs are compared by them only where these are the same."""
NOISE, UNKNOWN = "same inputs, another reply", "not known"
"""Causes that are no step: an engine's noise; a run without a record."""


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """A metric of two runs."""

    metric: str
    found: PairedDifference


@dataclass(frozen=True, slots=True)
class SliceDifference:
    """The score of the questions that share one label."""

    label: str  # domain, question_type, ...
    value: str
    found: PairedDifference
    p: float  # corrected for the number of slices (Holm)
    verdict: Conclusion


@dataclass(frozen=True, slots=True)
class Cause:
    """The questions whose paths part at one place."""

    step: str  # the first with another result; one of changes.NO_STEP; NOISE; UNKNOWN
    field: str  # what differs in the recipe there or before: `rerank.model`; "" where nothing does
    moved: int  # questions with another answer or another path
    up: int  # of these: better scored than before
    down: int
    difference: float  # their share of the difference; all shares sum to it


@dataclass(frozen=True, slots=True)
class RunComparison:
    """A run against the first."""

    before: str
    after: str
    same_run: bool  # both name one run, so nothing can differ
    rule: str
    judge: str
    kind: str  # of the data
    measure: str  # what `score` is the difference of
    trim: str  # how answers were cut; "": not
    people: tuple[int, int]  # verdicts that people's labels changed, before and after
    seen: tuple[int, int]  # questions of `score` that a fit or adapter of the recipe saw, before and after
    margin: float
    verdict: Conclusion
    p: float  # corrected for the number of runs compared (Holm)
    score: PairedDifference
    rates: tuple[MetricDifference, ...]  # the other measures, over the questions that both score by them
    only_before: tuple[str, ...]  # ids of questions that the other run does not have
    only_after: tuple[str, ...]
    unscored: tuple[str, ...]  # in both, and not scored in one of them: left out
    other_questions: tuple[str, ...]  # ids that name another question in each: left out
    kept: tuple[str, ...]  # in both, and one of them kept an earlier run's answer: left out
    slices: tuple[SliceDifference, ...]  # but for a label's value that all n questions have
    causes: tuple[Cause, ...]  # by size of their share


@dataclass(slots=True)
class _Pairs:
    """The questions that both runs score, in order of id."""

    ids: list[str]
    before: Floats  # (questions,) values
    after: Floats
    span: float  # how far apart two values can lie
    groups: list[str] | None
    unscored: tuple[str, ...] = ()  # ids in both runs that are left out: see RunComparison
    other_questions: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, runs: tuple[ScoredRun, ScoredRun], ids: list[str], measure: Measure, groups: list[str] | None
    ) -> _Pairs:
        before, after = (np.array([r.values[q][measure.name] for q in ids], float) for r in runs)
        return cls(ids, before, after, measure.high - measure.low, groups)

    def difference(self, chosen: Sequence[int] | None = None) -> PairedDifference:
        """Compares all questions, or those in these places."""
        at = list(range(len(self.ids)) if chosen is None else chosen)
        groups = None if self.groups is None else [self.groups[i] for i in at]
        return paired(self.before[at], self.after[at], self.span, groups)

    def whole(self) -> bool:
        """Says if all values are whole numbers."""
        return all(np.array_equal(values, np.round(values)) for values in (self.before, self.after))


def compare(
    runs: Sequence[ScoredRun], margin: float = MARGIN, group: str | None = None, measure: str | None = None
) -> tuple[RunComparison, ...]:
    """Each run against the first, `p` corrected for their number.

    `group`: the label whose values are groups of questions that count as one each; None: that of the kind of
    the data, if it has one. `measure`: what is compared; None: the first of the kind. Raises ConfError for a
    measure that the kind does not have, and DataError for runs of other kinds, rules or judges, and for runs
    without a common scored question.
    """
    first, *others = runs
    for other in others:
        _require_same(first, other, "kind", first.kind, other.kind)
    known = {m.name: m for m in measures_of(first.kind)}
    name = measure or next(iter(known))
    measure_of(f"measure {name!r}", name, first.kind)
    for other in others if name in JUDGED else ():
        for what in ("rule", "judge", "trim"):
            _require_same(first, other, what, *(getattr(r, what) or "none" for r in (first, other)))
    joined = [_joined(first, other, known[name], group) for other in others]
    scores = [pairs.difference() for pairs in joined]
    whole, out = holm([s.p for s in scores]), list[RunComparison]()
    own = group_label(first.kind)  # a paper is no slice
    for b, pairs, score, p in zip(others, joined, scores, whole, strict=True):
        a, members = first, by_label((first.labels[id], i) for i, id in enumerate(pairs.ids))
        parts = [(k, at) for k, at in sorted(members.items()) if len(at) < score.n and k[0] != own]
        slices = [(key, pairs.difference(chosen)) for key, chosen in parts]
        corrected = holm([found.p for _, found in slices])
        names = [(r.record.run, True) if r.record else (r.name, False) for r in (a, b)]
        found = RunComparison(
            before=a.name,
            after=b.name,
            same_run=names[0] == names[1],
            rule=a.rule,
            judge=a.judge,
            kind=a.kind,
            measure=name,
            trim=a.trim,
            people=(a.people, b.people),
            seen=(len(a.seen & set(pairs.ids)), len(b.seen & set(pairs.ids))),
            margin=margin,
            verdict=conclude(score, margin, p),
            p=p,
            score=score,
            rates=_rates(a, b, known, pairs, name),
            only_before=tuple(sorted(a.values.keys() - b.values.keys())),
            only_after=tuple(sorted(b.values.keys() - a.values.keys())),
            unscored=pairs.unscored,
            other_questions=pairs.other_questions,
            kept=pairs.kept,
            slices=tuple(
                SliceDifference(*key, found, p, conclude(found, margin, p))
                for (key, found), p in zip(slices, corrected, strict=True)
            ),
            causes=_causes(a, b, pairs),
        )
        out.append(found)
    return tuple(out)


def measures_of(kind: str) -> Sequence[Measure]:
    """The measures of a kind as a report names it: of one from outside without the digits of its source."""
    return open_kind(kind.partition("@")[0]).measures


def group_label(kind: str) -> str | None:
    """The label by which questions of a kind move together, by its name in a report; None: there is none."""
    return group_of(open_kind(kind.partition("@")[0]))


def measure_of(what: str, name: str, kind: str) -> Measure:
    """The measure of a kind of data that is named. Raises ConfError for one that the kind does not have.
    `what`: how it was given."""
    known = {m.name: m for m in measures_of(kind)}
    if name not in known:
        raise ConfError(f"{what}: kind {kind} has no such; {did_you_mean(name, known)}")
    return known[name]


def _require_same(a: ScoredRun, b: ScoredRun, what: str, one: str, two: str) -> None:
    if one != two:
        raise DataError(
            f"{a.name} and {b.name}: expected runs scored alike, found {what} {one} and {two}. Score "
            f"them alike with `raypipe compare ... --rejudge MODEL` (a rule with --rule, a trim with "
            f"--trim, a kind with `raypipe eval --kind`): what is cached is not asked again"
        )


def _joined(a: ScoredRun, b: ScoredRun, measure: Measure, group: str | None) -> _Pairs:
    common = sorted(a.values.keys() & b.values.keys())
    name = measure.name
    other = {q for q in common if q in a.texts and q in b.texts and not same_question(a.texts[q], b.texts[q])}
    kept = ((a.kept | b.kept) & set(common)) - other  # no answers of these recipes
    left = [q for q in common if q not in other | kept]
    scored = [q for q in left if name in a.values[q] and name in b.values[q]]
    if not scored:
        _refuse(a, b, common, name, other, kept)
    for q in scored if group is not None else ():
        if group not in a.labels[q]:
            raise DataError(
                f"{a.name}: expected a label {group!r} at every question, question {q} has "
                f"{', '.join(a.labels[q]) or 'none'}"
            )
    groups = grouped(group or group_label(a.kind), {q: a.labels[q] for q in scored})
    found = _Pairs.of((a, b), scored, measure, groups)
    found.unscored = tuple(q for q in left if q not in set(scored))
    found.other_questions, found.kept = (tuple(sorted(ids)) for ids in (other, kept))
    return found


def same_question(one: str, two: str) -> bool:
    """Returns whether two texts are one question; how it is spaced does not count."""
    return one.split() == two.split()


def _refuse(
    a: ScoredRun, b: ScoredRun, common: Sequence[str], measure: str, other: Set[str], kept: Set[str]
) -> NoReturn:
    """Raises DataError for two runs without a question that both score."""
    if empty := next((run for run in (a, b) if not run.values), None):
        raise DataError(
            f"{empty.name}: expected questions with golds, found none, so nothing is scored. Compare runs "
            "over data with answers or judged documents"
        )
    said = f"found {len(common)} common ids of {len(a.values)} and {len(b.values)}"
    if other:
        id = min(other)
        said += f" of which {len(other)} name other questions ({id}: {a.texts[id]!r} and {b.texts[id]!r})"
    elif kept:
        said += (
            f", of which {len(kept)} are answers that --only-new kept from an earlier run: eval without it"
        )
    elif common:
        scored = [sum(measure in run.values[q] for q in common) for run in (a, b)]
        raise DataError(
            f"{a.name} and {b.name}: expected questions that both score by {measure}; of {len(common)} "
            f"common ones the first scores {scored[0]}, the second {scored[1]}. --rejudge MODEL scores what "
            "a rule leaves open; --measure names another measure"
        )
    else:
        said += f" (first ids: {next(iter(a.values))}, {next(iter(b.values))})"
    raise DataError(
        f"{a.name} and {b.name}: expected questions that both score, {said}. Compare runs of the same data"
    )


def _rates(
    a: ScoredRun, b: ScoredRun, known: Mapping[str, Measure], pairs: _Pairs, lead: str
) -> tuple[MetricDifference, ...]:
    """The other measures. Those that rest on a judge only where the runs have the same, and those with
    fractions, whose p is drawn and takes seconds, only where the first measure has some, too."""
    drawn = not pairs.whole()
    alike = (a.rule, a.judge, a.trim) == (b.rule, b.judge, b.trim)
    found = []
    for name, measure in known.items():
        chosen = [i for i, q in enumerate(pairs.ids) if name in a.values[q] and name in b.values[q]]
        if name == lead or not chosen or (name in JUDGED and not alike):
            continue
        groups = None if pairs.groups is None else [pairs.groups[i] for i in chosen]
        some = _Pairs.of((a, b), [pairs.ids[i] for i in chosen], measure, groups)
        if drawn or some.whole():
            found.append(MetricDifference(name, some.difference()))
    return tuple(found)


def _causes(a: ScoredRun, b: ScoredRun, pairs: _Pairs) -> tuple[Cause, ...]:
    """Returns where the answers differ. The shares of the difference sum to it: a question whose value moved
    is in exactly one cause."""
    by_id: dict[str, tuple[str, str]] = {}
    stores = [_store_of(*pair) for pair in ((a.record, b.record), (b.record, a.record))]
    known = all(stores)
    if a.record and b.record and (before := stores[0]) and (after := stores[1]):
        for id, c in causes((before, after), a.record, b.record).items():
            changed = f"{c.because.stage}.{c.because.field}" if c.because else ""
            by_id[id] = (NOISE if c.noise else c.step, changed)
    grouped: dict[tuple[str, str], list[float]] = {}
    for id, gain in zip(pairs.ids, (pairs.after - pairs.before).tolist(), strict=True):
        where = by_id.get(id) or ((NOISE if known else UNKNOWN, "") if gain else None)
        if where is not None:
            grouped.setdefault(where, []).append(gain)
    out = []
    for (step, changed), gains in grouped.items():
        up, down = sum(g > 0 for g in gains), sum(g < 0 for g in gains)
        out.append(Cause(step, changed, len(gains), up, down, sum(gains) / len(pairs.ids)))
    return tuple(sorted(out, key=lambda c: (-abs(c.difference), -c.moved, c.step)))


def _store_of(run: Run | None, other: Run | None) -> Store | None:
    """The store that has the answers of a run: where it ran, else where the other one did, which may be a
    copy; None: neither is there and has them."""
    if run is None or other is None:
        return None
    for uri in dict.fromkeys((run.store, other.store)):
        with suppress(RaypipeError):  # a store that cannot be reached says nothing
            if (store := Store.find(uri)) is not None and answer_keys(store, run.run):
                return store
    return None
