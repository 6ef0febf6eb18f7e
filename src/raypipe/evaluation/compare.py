"""Comparison of two scored runs over the same questions: a verdict, and the stages that cause the difference.

The verdict is better, worse, the same, or cannot tell. It holds for any values that unscored questions may
have. Questions are joined by id. `scored_run` provides the measures; this module computes no answers. It
reads stores only to find causes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError, DataError, RaypipeError
from raypipe.evaluation.bounded_difference import BoundedDifference, Values, bounded, extremes
from raypipe.evaluation.scored_run import ScoredRun
from raypipe.metrics.kinds import Measure, group_of, grouped, recorded_kind
from raypipe.metrics.losses import by_label
from raypipe.metrics.paired_tests import MARGIN, Conclusion, PairedDifference, holm, paired
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
    at_best: PairedDifference  # the same at their best; both ends are `score` if no question is open
    open: int  # open questions that could change the verdict; 0: it holds however a judge decides
    rates: tuple[MetricDifference, ...]  # the other measures, over the questions that have them in both runs
    only_before: tuple[str, ...]  # ids of questions that only the first run has
    only_after: tuple[str, ...]
    unscored: tuple[str, ...]  # ids in both runs, unscored in one or both: not in `score`
    other_questions: tuple[str, ...]  # ids that name different questions in the two runs: left out
    kept: tuple[str, ...]  # ids in both runs, with a kept answer of an earlier run: left out
    slices: tuple[SliceDifference, ...]  # without label values that all n questions share
    causes: tuple[Cause, ...]  # largest share first


def applicable(runs: Sequence[ScoredRun], ids: Sequence[str], measure: str) -> list[str]:
    """Returns the questions that at least one run scores by `measure`. A measure in JUDGED applies to all
    questions, since a judge can score any answer."""
    return [q for q in ids if measure in JUDGED or any(measure in r.values[q] for r in runs)]


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Values of the questions that two runs share."""

    ids: list[str]  # scored in both, in order of id; then open ones (`applicable`)
    scored: int  # questions that both runs score
    before: list[float | None]  # value of each question; None: not scored
    after: list[float | None]
    measure: Measure
    groups: list[str] | None
    unscored: tuple[str, ...]  # these three: ids in both runs that are not in `scored`, as in RunComparison
    other_questions: tuple[str, ...]
    kept: tuple[str, ...]

    def difference(self, chosen: Sequence[int]) -> BoundedDifference:
        """Compares the two runs over the questions at these indexes, in rising order."""
        before, after = ([values[i] for i in chosen] for values in (self.before, self.after))
        groups = None if self.groups is None else [self.groups[i] for i in chosen]
        return bounded(before, after, sum(i < self.scored for i in chosen), self.measure, groups)


def compare(
    runs: Sequence[ScoredRun], margin: float = MARGIN, group: str | None = None, measure: str | None = None
) -> tuple[RunComparison, ...]:
    """Compares each run with the first. Corrects `p` for the number of comparisons.

    `group` is a label whose values are groups of dependent questions; each group counts as one. If it is
    None, the kind of data may name a label. `measure` is the name of a measure; None: the first of the kind.
    Leaves out kept answers, and ids that name another question in each run. Raises ConfError if the kind
    lacks the measure. Raises DataError if the runs differ in kind, if a question lacks the label `group`, or
    if two runs have no common scored question; for a measure in JUDGED, also if rule, judge or trim differ.
    """
    first, *others = runs
    for other in others:
        _require_same(first, other, "kind")
    lead = measure_of(measure or recorded_kind(first.kind).measures[0].name, first.kind)
    for other in others if lead.name in JUDGED else ():
        _require_same(first, other, "rule", "judge", "trim")
    joined = [_joined(first, other, lead, group) for other in others]
    found = [pairs.difference(range(len(pairs.ids))) for pairs in joined]
    every = zip(others, joined, found, _corrected(found), strict=True)
    return tuple(_compared(first, other, pairs, d, ps, margin) for other, pairs, d, ps in every)


def _compared(
    a: ScoredRun, b: ScoredRun, pairs: _Pairs, found: BoundedDifference, ps: Sequence[float], margin: float
) -> RunComparison:
    """Builds the comparison of `b` with run `a`. `ps` are the corrected p of the differences in `found`."""
    verdict, undecided = found.verdict(margin, ps)
    scored = set(pairs.ids[: pairs.scored])
    names = [(r.record.run, True) if r.record else (r.name, False) for r in (a, b)]
    return RunComparison(
        before=a.name,
        after=b.name,
        same_run=names[0] == names[1],
        rule=a.rule,
        judge=a.judge,
        kind=a.kind,
        measure=pairs.measure.name,
        trim=a.trim,
        people=(a.people, b.people),
        seen=(len(a.seen & scored), len(b.seen & scored)),
        margin=margin,
        verdict=verdict,
        p=ps[0],
        score=found.score,
        at_worst=found.at_worst,
        at_best=found.at_best,
        open=undecided,
        rates=_rates(a, b, pairs),
        only_before=tuple(sorted(a.values.keys() - b.values.keys())),
        only_after=tuple(sorted(b.values.keys() - a.values.keys())),
        unscored=pairs.unscored,
        other_questions=pairs.other_questions,
        kept=pairs.kept,
        slices=_slices(a, pairs, margin),
        causes=_causes(a, b, pairs),
    )


def _slices(run: ScoredRun, pairs: _Pairs, margin: float) -> tuple[SliceDifference, ...]:
    """Compares the runs on each value of each label. Skips the label by which the kind groups questions,
    values that all questions have, and values that no scored question has."""
    own = group_of(recorded_kind(run.kind))
    members = by_label((run.labels[id], i) for i, id in enumerate(pairs.ids))
    parts = {
        key: pairs.difference(at)
        for key, at in sorted(members.items())
        if at[0] < pairs.scored and len(at) < len(pairs.ids) and key[0] != own
    }
    corrected = zip(parts.items(), _corrected([*parts.values()]), strict=True)
    return tuple(
        SliceDifference(*key, of.score, ps[0], of.verdict(margin, ps)[0]) for (key, of), ps in corrected
    )


def _corrected(found: Sequence[BoundedDifference]) -> list[tuple[float, ...]]:
    """Corrects the three p of each comparison (scored, at worst, at best) for the number of comparisons."""
    ends = ([getattr(d, end).p for d in found] for end in ("score", "at_worst", "at_best"))
    return list(zip(*map(holm, ends), strict=True))


def open_text(c: RunComparison) -> str:
    """Formats how unscored questions affect the verdict. Returns "" if they cannot change it."""
    if not c.open:
        return ""
    how = "; --rejudge MODEL decides them, --rule words needs no judge" * (c.measure in JUDGED)
    ends = f"between {c.at_worst.difference:+.3f} and {c.at_best.difference:+.3f}"
    return f"{c.open} of {c.at_worst.n} questions are scored in only one run or in none, so it is {ends}{how}"


def measure_of(name: str, kind: str, setting: str = "") -> Measure:
    """Returns the measure `name` of the kind with the name `kind`. Raises ConfError if there is none."""
    known = {m.name: m for m in recorded_kind(kind).measures}
    if name not in known:
        hint = did_you_mean(name, known)
        raise ConfError(f"{setting or f'measure {name!r}'}: kind {kind} has no such; {hint}")
    return known[name]


def _require_same(a: ScoredRun, b: ScoredRun, *names: str) -> None:
    """Raises DataError if two runs differ in one of the fields `names` of ScoredRun."""
    for what in names:
        one, two = (getattr(r, what) or "none" for r in (a, b))
        if one != two:
            raise DataError(
                f"{a.name} and {b.name}: expected runs scored alike, found {what} {one} and {two}. Score "
                f"them alike with `raypipe compare ... --rejudge MODEL` (a rule with --rule, a trim with "
                f"--trim, a kind with `raypipe eval --kind`): what is cached is not asked again"
            )


def require_label(name: str, group: str, labels: Mapping[str, Mapping[str, str]]) -> None:
    """Raises DataError if a question lacks the label `group`. `labels` maps question ids to their labels."""
    if (q := next((q for q, own in labels.items() if group not in own), None)) is not None:
        known = ", ".join(labels[q]) or "none"
        raise DataError(f"{name}: expected a label {group!r} at every question, question {q} has {known}")


def _joined(a: ScoredRun, b: ScoredRun, measure: Measure, group: str | None) -> _Pairs:
    common = sorted(a.values.keys() & b.values.keys())
    name = measure.name
    other = {q for q in common if q in a.texts and q in b.texts and not same_question(a.texts[q], b.texts[q])}
    kept = ((a.kept | b.kept) & set(common)) - other  # answers of other recipes
    left = [q for q in common if q not in other | kept]
    scored = {q: None for q in left if name in a.values[q] and name in b.values[q]}
    if not scored:
        _refuse(a, b, common, name, other, kept)
    ids = [*scored, *(q for q in applicable((a, b), left, name) if q not in scored)]
    if group is not None:
        require_label(a.name, group, {q: a.labels[q] for q in ids})
    before, after = ([run.values[q].get(name) for q in ids] for run in (a, b))
    return _Pairs(
        ids,
        len(scored),
        before,
        after,
        measure,
        grouped(group or group_of(recorded_kind(a.kind)), {q: a.labels[q] for q in ids}),
        unscored=tuple(q for q in left if q not in scored),
        other_questions=tuple(sorted(other)),
        kept=tuple(sorted(kept)),
    )


def same_question(one: str, two: str) -> bool:
    """Returns whether two texts are the same question; only white space may differ."""
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
    expected = f"{a.name} and {b.name}: expected questions that both score"
    said = f"found {len(common)} common ids of {len(a.values)} and {len(b.values)}"
    if other:
        id = min(other)
        said += f" of which {len(other)} name other questions ({id}: {a.texts[id]!r} and {b.texts[id]!r})"
    elif kept:
        said += f", of which --only-new kept {len(kept)} from an earlier run: eval without it"
    elif common:
        scored = [sum(measure in run.values[q] for q in common) for run in (a, b)]
        raise DataError(
            f"{expected} by {measure}; of {len(common)} common ones the first scores {scored[0]}, the second "
            f"{scored[1]}. --rejudge MODEL scores what a rule leaves open; --measure names another measure"
        )
    else:
        said += f" (first ids: {next(iter(a.values))}, {next(iter(b.values))})"
    raise DataError(f"{expected}, {said}. Compare runs of the same data")


def _rates(a: ScoredRun, b: ScoredRun, pairs: _Pairs) -> tuple[MetricDifference, ...]:
    """Compares two runs by their other common measures. Skips JUDGED ones if rule, judge or trim differ. If
    the values of `pairs` are whole numbers, skips measures with fractions, because their p takes seconds."""
    n = pairs.scored
    drawn = not _whole(pairs.before[:n] + pairs.after[:n])
    alike = (a.rule, a.judge, a.trim) == (b.rule, b.judge, b.trim)
    found = []
    for m in recorded_kind(a.kind).measures:
        chosen = [i for i, q in enumerate(pairs.ids) if m.name in a.values[q] and m.name in b.values[q]]
        if m == pairs.measure or not chosen or (m.name in JUDGED and not alike):
            continue
        before, after = ([run.values[pairs.ids[i]][m.name] for i in chosen] for run in (a, b))
        if drawn or _whole(before + after):
            groups = None if pairs.groups is None else [pairs.groups[i] for i in chosen]
            found.append(MetricDifference(m.name, paired(before, after, m.high - m.low, groups)))
    return tuple(found)


def _whole(values: Values) -> bool:
    return all(v is not None and float(v).is_integer() for v in values)


def _causes(a: ScoredRun, b: ScoredRun, pairs: _Pairs) -> tuple[Cause, ...]:
    """Returns the causes of the differences. As each changed question has one cause, the shares add up."""
    by_id: dict[str, tuple[str, str]] = {}
    stores = [_store_of(*pair) for pair in ((a.record, b.record), (b.record, a.record))]
    if a.record and b.record and (before := stores[0]) and (after := stores[1]):
        for id, c in causes((before, after), a.record, b.record).items():
            changed = f"{c.because.stage}.{c.because.field}" if c.because else ""
            by_id[id] = (NOISE if c.noise else c.step, changed)
    unnamed = (NOISE if all(stores) else UNKNOWN, "")
    before_of, after_of = (values[: pairs.scored] for values in (pairs.before, pairs.after))
    gains, _ = extremes(before_of, after_of, pairs.measure)  # scored in both: the ends are equal
    by_cause: dict[tuple[str, str], list[float]] = {}
    for id, gain in zip(pairs.ids, gains.tolist(), strict=False):
        if id in by_id or gain:
            by_cause.setdefault(by_id.get(id, unnamed), []).append(gain)
    out = []
    for (step, changed), of in by_cause.items():
        up, down = sum(g > 0 for g in of), sum(g < 0 for g in of)
        out.append(Cause(step, changed, len(of), up, down, sum(of) / pairs.scored))
    return tuple(sorted(out, key=lambda c: (-abs(c.difference), -c.moved, c.step)))


def _store_of(run: Run | None, other: Run | None) -> Store | None:
    """Returns the store with a run's answers: its own, or a copy in that of the other run; else None."""
    if run is None or other is None:
        return None
    for uri in dict.fromkeys((run.store, other.store)):
        with suppress(RaypipeError):  # a store that cannot be reached is skipped
            if (store := Store.find(uri)) is not None and answer_keys(store, run.run):
                return store
    return None
