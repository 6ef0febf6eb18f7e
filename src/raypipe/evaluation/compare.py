"""Comparison of two scored runs over the same questions: a verdict, and the stages that cause the difference.

The verdict is better, worse, the same, or cannot tell. It holds whatever the values of unscored questions
are. Questions are joined by id. `scored_run` provides the measures; this module computes no answers. It reads
stores only to find causes.
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
from raypipe.metrics.kinds import Measure, group_of, grouped, open_kind
from raypipe.metrics.losses import by_label
from raypipe.metrics.paired_tests import (
    MARGIN,
    Conclusion,
    Floats,
    PairedDifference,
    conclude,
    holm,
    paired,
)
from raypipe.runs.changes import causes
from raypipe.runs.record import Run, answer_keys
from raypipe.store import Store

JUDGED = frozenset({"score", "accuracy", "hallucination"})
"""Measures that depend on a rule and a judge. They are compared only if both runs have the same rule, judge
and trim."""
NOISE, UNKNOWN = "same inputs, another reply", "not known"
"""Causes that are not steps: noise of an engine, and a run without a record."""


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """Difference of two runs in one measure."""

    metric: str
    found: PairedDifference


@dataclass(frozen=True, slots=True)
class SliceDifference:
    """Difference of two runs on the questions that share one label."""

    label: str  # name of the label: domain, question_type, ...
    value: str
    found: PairedDifference
    p: float  # p value, Holm-corrected for the number of slices
    verdict: Conclusion


@dataclass(frozen=True, slots=True)
class Cause:
    """A step at which answers began to differ, and its share of the difference."""

    step: str  # first step with another result; or one of changes.NO_STEP; NOISE; UNKNOWN
    field: str  # recipe field that differs at or before this step: `rerank.model`; "": none
    moved: int  # questions with another answer or other intermediate results
    up: int  # moved questions that are scored better than before
    down: int  # moved questions that are scored worse
    difference: float  # share of the score difference; all shares sum to it


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Comparison of a run with the first run."""

    before: str
    after: str
    same_run: bool  # True: both names lead to one run, so nothing can differ
    rule: str
    judge: str
    kind: str  # kind of the data
    measure: str  # measure whose difference `score` is
    trim: str  # cut of the answers before judging; "": none
    people: tuple[int, int]  # verdicts that people's labels changed, before and after
    seen: tuple[int, int]  # questions of `score` that a fit or adapter has seen, before and after
    margin: float
    verdict: Conclusion
    p: float  # p value, Holm-corrected for the number of compared runs
    score: PairedDifference  # over the questions that both runs score
    at_worst: PairedDifference  # over the open questions too, each at its worst for the second run
    at_best: PairedDifference  # and each at its best; both are `score` if no question is open
    open: int  # open questions that could change the verdict; 0: it holds however a judge decides
    rates: tuple[MetricDifference, ...]  # the other measures, over the questions that have them in both runs
    only_before: tuple[str, ...]  # ids of questions that only the first run has
    only_after: tuple[str, ...]
    unscored: tuple[str, ...]  # ids in both runs, unscored in one of them: not in `score`
    other_questions: tuple[str, ...]  # ids that name different questions in the two runs: left out
    kept: tuple[str, ...]  # ids in both runs, with a kept answer of an earlier run: left out
    slices: tuple[SliceDifference, ...]  # without label values that all n questions share
    causes: tuple[Cause, ...]  # largest share first


Bounded = tuple[PairedDifference, PairedDifference, PairedDifference]
"""A difference over the scored questions; over the open ones too, at their worst; and at their best."""


def bounded(
    score: PairedDifference, bounds: Sequence[Floats], span: float, groups: Sequence[str] | None
) -> Bounded:
    """Adds the ends of a difference to that of the scored questions. `bounds`: (questions,) as `extremes`
    returns them; `groups`: of these questions."""
    if len(bounds[0]) == score.n:
        return score, score, score
    worst, best = (paired(np.zeros(len(d)), d, span, groups) for d in bounds)
    return score, worst, best


def agreed(found: Bounded, margin: float, ps: Sequence[float]) -> tuple[Conclusion, bool]:
    """Returns the conclusion that holds whatever the open questions' values are, and whether these could
    change the one of the scored questions. `ps`: corrected p of each of the three."""
    said = [conclude(d, margin, p) for d, p in zip(found, ps, strict=True)]
    return ("cannot tell", True) if len(set(said)) > 1 else (said[0], False)


def applies(runs: Sequence[ScoredRun], ids: Sequence[str], measure: str) -> list[str]:
    """Returns the questions that have a value of a measure, or would have one: those that a run scores. A
    judge can decide any answer."""
    return [q for q in ids if measure in JUDGED or any(measure in r.values[q] for r in runs)]


def extremes(a: ScoredRun, b: ScoredRun, ids: Sequence[str], measure: Measure) -> tuple[Floats, Floats]:
    """Returns the least and the largest difference, `b` less `a`, of each question: (questions,) float64. An
    unscored question may have any value of the measure."""

    def values(run: ScoredRun, unscored: float) -> Floats:
        return np.array([run.values[q].get(measure.name, unscored) for q in ids], float)

    low, high = measure.low, measure.high
    return values(b, low) - values(a, high), values(b, high) - values(a, low)


@dataclass(slots=True)
class _Pairs:
    """Values of the questions that both runs score, in order of id, and bounds for the open ones."""

    ids: list[str]  # scored ones, then open ones (`applies`)
    before: Floats  # (scored,) values
    after: Floats
    span: float  # width of the measure's range
    groups: list[str] | None  # of all ids
    bounds: tuple[Floats, Floats]  # least and largest difference of all ids (`extremes`)
    unscored: tuple[str, ...] = ()  # ids in both runs that are left out, as in RunComparison
    other_questions: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        runs: tuple[ScoredRun, ScoredRun],
        ids: list[str],
        measure: Measure,
        groups: list[str] | None,
        scored: int | None = None,
    ) -> _Pairs:
        """`scored`: number of ids that both runs score; None: all."""
        before, after = (np.array([r.values[q][measure.name] for q in ids[:scored]], float) for r in runs)
        return cls(ids, before, after, measure.high - measure.low, groups, extremes(*runs, ids, measure))

    def found(self, chosen: Sequence[int] | None = None) -> Bounded:
        """Compares the two runs over all questions, or over those at the indexes `chosen`."""
        at = list(range(len(self.ids)) if chosen is None else chosen)
        named = None if self.groups is None else [self.groups[i] for i in at]
        both = [i for i in at if i < len(self.before)]
        known = None if named is None else named[: len(both)]
        score = paired(self.before[both], self.after[both], self.span, known)
        return bounded(score, [b[at] for b in self.bounds], self.span, named)

    def whole(self) -> bool:
        """Returns whether all values are whole numbers."""
        return all(np.array_equal(values, np.round(values)) for values in (self.before, self.after))


def compare(
    runs: Sequence[ScoredRun], margin: float = MARGIN, group: str | None = None, measure: str | None = None
) -> tuple[RunComparison, ...]:
    """Compares each run with the first. Corrects `p` for the number of comparisons.

    `group`: label whose values are groups of dependent questions; each group counts as one. None: the label
    of the kind of data, if it has one. `measure`: name of the measure; None: the first of the kind. Raises
    ConfError if the kind lacks the measure. Raises DataError if the runs differ in kind, if a question lacks
    the label `group`, and if two runs have no common scored question. For a measure in JUDGED, raises
    DataError also if the runs differ in rule, judge or trim.
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
    scores, out = [pairs.found() for pairs in joined], list[RunComparison]()
    whole = _corrected(scores)
    own = group_label(first.kind)  # such as the paper of a question: not worth a slice
    for b, pairs, bounds, ps in zip(others, joined, scores, whole, strict=True):
        a, members = first, by_label((first.labels[id], i) for i, id in enumerate(pairs.ids))
        score, at_worst, at_best = bounds
        scored = set(pairs.ids[: score.n])
        parts = [
            (k, at)
            for k, at in sorted(members.items())
            if at[0] < score.n and len(at) < len(pairs.ids) and k[0] != own
        ]
        slices = [pairs.found(at) for _, at in parts]
        verdict, undecided = agreed(bounds, margin, ps)
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
            seen=(len(a.seen & scored), len(b.seen & scored)),
            margin=margin,
            verdict=verdict,
            p=ps[0],
            score=score,
            at_worst=at_worst,
            at_best=at_best,
            open=undecided * (len(pairs.ids) - score.n),
            rates=_rates(a, b, known, pairs, name),
            only_before=tuple(sorted(a.values.keys() - b.values.keys())),
            only_after=tuple(sorted(b.values.keys() - a.values.keys())),
            unscored=pairs.unscored,
            other_questions=pairs.other_questions,
            kept=pairs.kept,
            slices=tuple(
                SliceDifference(*key, of[0], own_ps[0], agreed(of, margin, own_ps)[0])
                for (key, _), of, own_ps in zip(parts, slices, _corrected(slices), strict=True)
            ),
            causes=_causes(a, b, pairs),
        )
        out.append(found)
    return tuple(out)


def _corrected(found: Sequence[Bounded]) -> list[tuple[float, ...]]:
    """Corrects the p of each of the three differences for the number of comparisons."""
    return list(zip(*(holm([d.p for d in same]) for same in zip(*found, strict=True)), strict=True))


def open_text(c: RunComparison) -> str:
    """Says what unscored questions leave open; "": the verdict holds whatever their values are."""
    if not c.open:
        return ""
    how = "; --rejudge MODEL decides them, --rule words needs no judge" * (c.measure in JUDGED)
    ends = f"{c.at_worst.difference:+.3f} and {c.at_best.difference:+.3f}"
    return f"{c.open} of {c.at_worst.n} questions are not scored in both, so it is between {ends}{how}"


def measures_of(kind: str) -> Sequence[Measure]:
    """Returns the measures of a kind. `kind`: as reports name it: NAME@DIGEST for one from outside."""
    return open_kind(kind.partition("@")[0]).measures


def group_label(kind: str) -> str | None:
    """Returns the label that groups dependent questions of a kind, or None. `kind`: as reports name it."""
    return group_of(open_kind(kind.partition("@")[0]))


def measure_of(what: str, name: str, kind: str) -> Measure:
    """Returns the named measure of a kind. Raises ConfError if the kind lacks it. `what`: the setting, for
    the message."""
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
    kept = ((a.kept | b.kept) & set(common)) - other  # answers of other recipes
    left = [q for q in common if q not in other | kept]
    scored = [q for q in left if name in a.values[q] and name in b.values[q]]
    if not scored:
        _refuse(a, b, common, name, other, kept)
    ids = [*scored, *(q for q in applies((a, b), left, name) if q not in set(scored))]
    for q in ids if group is not None else ():
        if group not in a.labels[q]:
            raise DataError(
                f"{a.name}: expected a label {group!r} at every question, question {q} has "
                f"{', '.join(a.labels[q]) or 'none'}"
            )
    groups = grouped(group or group_label(a.kind), {q: a.labels[q] for q in ids})
    found = _Pairs.of((a, b), ids, measure, groups, len(scored))
    found.unscored = tuple(q for q in left if q not in set(scored))
    found.other_questions, found.kept = (tuple(sorted(ids)) for ids in (other, kept))
    return found


def same_question(one: str, two: str) -> bool:
    """Returns whether two texts are the same question, apart from white space."""
    return one.split() == two.split()


def _refuse(
    a: ScoredRun, b: ScoredRun, common: Sequence[str], measure: str, other: Set[str], kept: Set[str]
) -> NoReturn:
    """Raises DataError with the reason why two runs have no question that both score."""
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
    """Compares two runs by all measures except `lead`. Skips measures in JUDGED if rule, judge or trim
    differ. If the values of `lead` are whole numbers, skips measures with fractions: resampling for their p
    takes seconds."""
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
            found.append(MetricDifference(name, some.found()[0]))
    return tuple(found)


def _causes(a: ScoredRun, b: ScoredRun, pairs: _Pairs) -> tuple[Cause, ...]:
    """Returns the causes of the differences. A question whose value changed counts in exactly one cause, so
    the shares sum to the difference."""
    by_id: dict[str, tuple[str, str]] = {}
    stores = [_store_of(*pair) for pair in ((a.record, b.record), (b.record, a.record))]
    known = all(stores)
    if a.record and b.record and (before := stores[0]) and (after := stores[1]):
        for id, c in causes((before, after), a.record, b.record).items():
            changed = f"{c.because.stage}.{c.because.field}" if c.because else ""
            by_id[id] = (NOISE if c.noise else c.step, changed)
    grouped: dict[tuple[str, str], list[float]] = {}
    for id, gain in zip(pairs.ids, (pairs.after - pairs.before).tolist(), strict=False):
        where = by_id.get(id) or ((NOISE if known else UNKNOWN, "") if gain else None)
        if where is not None:
            grouped.setdefault(where, []).append(gain)
    out = []
    for (step, changed), gains in grouped.items():
        up, down = sum(g > 0 for g in gains), sum(g < 0 for g in gains)
        out.append(Cause(step, changed, len(gains), up, down, sum(gains) / len(pairs.before)))
    return tuple(sorted(out, key=lambda c: (-abs(c.difference), -c.moved, c.step)))


def _store_of(run: Run | None, other: Run | None) -> Store | None:
    """Returns the store with the answers of a run, or None. Tries the run's own store, then that of the other
    run, which may be a copy."""
    if run is None or other is None:
        return None
    for uri in dict.fromkeys((run.store, other.store)):
        with suppress(RaypipeError):  # a store that cannot be reached is skipped
            if (store := Store.find(uri)) is not None and answer_keys(store, run.run):
                return store
    return None
