"""Two scored runs over the same questions: better, worse, the same, or cannot tell, and where it comes from.

Joins the questions by id. Reads the tables of finished runs, or files of predictions; computes no answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.parquet as pq

from raypipe.core import arrow
from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError, DataError
from raypipe.evaluation.judged_run import JudgedRun, judged_run, require_distinct, require_readable
from raypipe.evaluation.labels import PersonLabels
from raypipe.evaluation.result_table import each
from raypipe.metrics import crag
from raypipe.metrics.kinds import Measure, open_kind
from raypipe.metrics.kinds.qa import answer_values
from raypipe.metrics.paired import MARGIN, Conclusion, PairedDifference, conclude, holm, paired
from raypipe.metrics.routing import shared
from raypipe.recipes.fits import fits_of, has_seen
from raypipe.recipes.serialize import description
from raypipe.report.report import RunFolder
from raypipe.runs.changes import causes
from raypipe.runs.manifest import Manifest, answer_keys, read
from raypipe.store import Store

JUDGED = frozenset({"score", "accuracy", "hallucination"})
"""Measures that rest on a rule and a judge: two runs are compared by them only where these are the same."""
NOISE, UNKNOWN = "same inputs, another reply", "not known"
"""Causes that are no step: an engine's noise; a run without a manifest."""


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """What was measured of one run."""

    name: str  # as it was given
    rule: str
    judge: str  # its model; "": none
    values: Mapping[str, Mapping[str, float]]  # question id -> measure -> value; each question with a gold
    labels: Mapping[str, Mapping[str, str]]  # question id -> label -> value
    manifest: Manifest | None = None  # None: a file of predictions
    trim: str = ""  # how answers were cut before they were judged; "": not
    people: int = 0  # verdicts that people's labels changed
    kind: str = "crag"  # of the data
    verdicts: Mapping[str, str] = field(
        default_factory=dict
    )  # question id -> verdict, where a rule gave some
    seen: frozenset[str] = frozenset()  # ids of questions that a fit of its recipe has seen


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """One metric of two runs."""

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
    """One run against the first."""

    before: str
    after: str
    rule: str
    judge: str
    kind: str  # of the data
    measure: str  # what `score` is the difference of
    trim: str  # how answers were cut; "": not
    people: tuple[int, int]  # verdicts that people's labels changed, before and after
    seen: tuple[int, int]  # questions of `score` that a fit of the recipe has seen, before and after
    margin: float
    verdict: Conclusion
    p: float  # corrected for the number of runs compared (Holm)
    score: PairedDifference
    rates: tuple[MetricDifference, ...]  # the other measures, over the questions that both score by them
    only_before: tuple[str, ...]  # ids of questions that the other run does not have
    only_after: tuple[str, ...]
    unscored: tuple[str, ...]  # in both, and not scored in one of them: left out
    slices: tuple[SliceDifference, ...]
    causes: tuple[Cause, ...]  # by size of their share


@dataclass(slots=True)
class _Pairs:
    """The questions that both runs score, in order of id."""

    ids: list[str]
    before: list[float]  # values
    after: list[float]
    span: float  # how far apart two values can lie
    groups: list[str] | None = field(default=None)

    def of(self, chosen: Sequence[int]) -> _Pairs:
        some = None if self.groups is None else [self.groups[i] for i in chosen]
        return _Pairs(
            [self.ids[i] for i in chosen], [self.before[i] for i in chosen],
            [self.after[i] for i in chosen], self.span, some,
        )  # fmt: skip

    def difference(self) -> PairedDifference:
        return paired(self.before, self.after, self.span, self.groups)


def scored_run(path: Path, rule: crag.Rule) -> ScoredRun:
    """What was measured in a run's folder, or in a file of predictions scored by `rule`. Raises DataError."""
    if not path.is_dir():
        return _from_file(path, rule)
    folder = RunFolder(path)
    values: dict[str, Mapping[str, float]] = {}
    verdicts: dict[str, str] = {}
    labels: dict[str, Mapping[str, str]] = {}
    seen: set[str] = set()
    people = 0
    for row in each(folder.results):
        people += row["reason"] == "person"
        if row.get("seen"):
            seen.add(row["id"])
        if (found := row.get("measures") or _of_verdict(row["verdict"])) is not None:
            values[row["id"]], labels[row["id"]] = found, row["labels"]
        if row["verdict"] is not None:
            verdicts[row["id"]] = row["verdict"]
    about = {k.decode(): v.decode() for k, v in pq.read_schema(folder.results).metadata.items()}
    kind = about.get("kind", "crag")
    return ScoredRun(
        str(path), about["rule"], about["judge"], values, labels, read(path), kind=kind, verdicts=verdicts,
        seen=frozenset(seen), people=people,
    )  # fmt: skip


def _of_verdict(verdict: str | None) -> Mapping[str, float] | None:
    """The measures of a verdict, of a run that kept nothing else; None: the question has no gold."""
    if verdict is None:
        return None
    value = crag.VALUES.get(verdict)
    if value is None:
        return {}
    return {"score": value, "accuracy": float(value > 0), "hallucination": float(value < 0)}


def judged_again(run: JudgedRun, people: PersonLabels | None) -> ScoredRun:
    """A run that was cut or judged again, with people's verdicts in place of others. Raises DataError for a
    question that stands there twice."""
    require_distinct(run)
    require_readable(run)
    marks, changed = run.marks(people)
    verdicts: dict[str, str] = {v.question: v.outcome for v in marks.verdicts}
    values = {r.question: {**answer_values(r), **(_of_verdict(verdicts[r.question]) or {})} for r in run.rows}
    labels = {r.question: dict(r.labels) for r in run.rows}
    return ScoredRun(
        run.name, marks.rule, run.judge, values, labels, run.manifest, run.trim, changed, verdicts=verdicts
    )


def stored_run(store: Store, manifest: Manifest, name: str = "") -> ScoredRun:
    """What was measured in a finished run as its store keeps it, with the labels of the questions there.
    `name`: as it was given. Raises DataError for a run of which it keeps nothing."""
    keys = answer_keys(store, manifest.run)
    found = {
        q: values for q, k in keys.items() if (values := k.measures or _of_verdict(k.verdict)) is not None
    }
    verdicts = {q: k.verdict for q, k in keys.items() if k.verdict is not None}
    name = name or f"run {manifest.run[:8]} of recipe {manifest.recipe['name']}"
    if not found:
        raise DataError(f"{store.uri}: {name} has no verdicts there. Run the eval again, or name its folder")
    golds = arrow.gold.records(store.rows("golds", "question", list(found)))
    labels = {**{q: {} for q in found}, **{g.question: shared(g.labels) for g in golds}}
    kind = manifest.kind or "crag"
    return ScoredRun(
        name, manifest.rule, manifest.judge, found, labels, manifest, kind=kind, verdicts=verdicts,
        seen=_seen(store, manifest, list(found)),
    )  # fmt: skip


def _seen(store: Store, manifest: Manifest, questions: Sequence[str]) -> frozenset[str]:
    """Those of some stored questions that a fit of the run's recipe has seen."""
    fits = fits_of(description(manifest.recipe)).values()
    if not fits:
        return frozenset()
    texts = store.rows("questions", "id", questions, ["id", "text"]).to_pylist()
    return frozenset(r["id"] for r in texts if has_seen(fits, r["text"]))


def _from_file(path: Path, rule: crag.Rule) -> ScoredRun:
    return judged_again(judged_run(path, rule), None)


def unseen_alone(runs: Sequence[ScoredRun]) -> list[ScoredRun]:
    """The runs without the questions that a fit of any of them has seen. Raises DataError where none is
    left."""
    seen = frozenset[str]().union(*(r.seen for r in runs))
    rest = [replace(r, values={q: v for q, v in r.values.items() if q not in seen}) for r in runs]
    for before, after in zip(runs, rest, strict=True):
        if before.values and not after.values:
            raise DataError(f"{before.name}: a fit has seen all of its {len(before.values)} scored questions")
    return rest


def compare(
    runs: Sequence[ScoredRun], margin: float = MARGIN, group: str | None = None, measure: str | None = None
) -> tuple[RunComparison, ...]:
    """Each run against the first, `p` corrected for their number.

    `group`: the label whose values are groups of questions that count as one each. `measure`: what is
    compared; None: the first of the kind of the data. Raises ConfError for a measure that the kind does not
    have, and DataError for runs of other kinds, rules or judges, and for runs without a common scored
    question.
    """
    first, *others = runs
    for other in others:
        _require_same(first, other, "kind", first.kind, other.kind)
    known = {m.name: m for m in measures_of(first.kind)}
    name = measure or next(iter(known))
    if name not in known:
        raise ConfError(f"measure {name!r}: kind {first.kind} has no such; {did_you_mean(name, known)}")
    for other in others if name in JUDGED else ():
        for what in ("rule", "judge", "trim"):
            _require_same(first, other, what, *(getattr(r, what) or "none" for r in (first, other)))
    joined = [_joined(first, other, known[name], group) for other in others]
    scores = [pairs.difference() for pairs, _ in joined]
    corrected = holm([s.p for s in scores])
    return tuple(
        _comparison(first, other, known, name, pairs, unscored, score, p, margin)
        for other, (pairs, unscored), score, p in zip(others, joined, scores, corrected, strict=True)
    )


def measures_of(kind: str) -> Sequence[Measure]:
    """The measures of a kind as a report names it: of one from outside without the digits of its source."""
    return open_kind(kind.partition("@")[0]).measures


def _require_same(a: ScoredRun, b: ScoredRun, what: str, one: str, two: str) -> None:
    if one != two:
        raise DataError(
            f"{a.name} and {b.name}: expected runs scored alike, found {what} {one} and {two}. Score "
            f"them alike with `raypipe compare ... --rejudge MODEL` (a rule with --rule, a trim with "
            f"--trim, a kind with `raypipe eval --kind`): what is cached is not asked again"
        )


def _joined(
    a: ScoredRun, b: ScoredRun, measure: Measure, group: str | None
) -> tuple[_Pairs, tuple[str, ...]]:
    common = sorted(a.values.keys() & b.values.keys())
    name = measure.name
    scored = [q for q in common if name in a.values[q] and name in b.values[q]]
    if not scored:
        ids = [next(iter(r.values), "none") for r in (a, b)]
        raise DataError(
            f"{a.name} and {b.name}: expected questions that both score, found {len(common)} common ids of "
            f"{len(a.values)} and {len(b.values)} (first ids: {ids[0]}, {ids[1]}). "
            "Compare runs of the same data"
        )
    groups = None
    if group is not None:
        lacking = [q for q in scored if group not in a.labels[q]]
        if lacking:
            raise DataError(
                f"{a.name}: expected a label {group!r} at every question, question {lacking[0]} has "
                f"{', '.join(a.labels[lacking[0]]) or 'none'}"
            )
        groups = [a.labels[q][group] for q in scored]
    before, after = ([r.values[q][name] for q in scored] for r in (a, b))
    pairs = _Pairs(scored, before, after, measure.high - measure.low, groups)
    return pairs, tuple(q for q in common if q not in set(scored))


def _rates(
    a: ScoredRun, b: ScoredRun, known: Mapping[str, Measure], pairs: _Pairs, lead: str
) -> tuple[MetricDifference, ...]:
    """The other measures. Those that rest on a judge only where the runs have the same, and those with
    fractions, whose p is drawn and takes seconds, only where the first measure has some, too."""
    drawn = not _whole((*pairs.before, *pairs.after))
    alike = (a.rule, a.judge, a.trim) == (b.rule, b.judge, b.trim)
    found = []
    for name, measure in known.items():
        chosen = [i for i, q in enumerate(pairs.ids) if name in a.values[q] and name in b.values[q]]
        if name == lead or not chosen or (name in JUDGED and not alike):
            continue
        some = pairs.of(chosen)
        before, after = ([r.values[q][name] for q in some.ids] for r in (a, b))
        if not drawn and not _whole((*before, *after)):
            continue
        some = _Pairs(some.ids, before, after, measure.high - measure.low, some.groups)
        found.append(MetricDifference(name, some.difference()))
    return tuple(found)


def _whole(values: Sequence[float]) -> bool:
    return all(v.is_integer() for v in map(float, values))


def _comparison(
    a: ScoredRun, b: ScoredRun, known: Mapping[str, Measure], measure: str, pairs: _Pairs,
    unscored: tuple[str, ...], score: PairedDifference, p: float, margin: float,
) -> RunComparison:  # fmt: skip
    return RunComparison(
        before=a.name,
        after=b.name,
        rule=a.rule,
        judge=a.judge,
        kind=a.kind,
        measure=measure,
        trim=a.trim,
        people=(a.people, b.people),
        seen=(len(a.seen & set(pairs.ids)), len(b.seen & set(pairs.ids))),
        margin=margin,
        verdict=conclude(score, margin, p),
        p=p,
        score=score,
        rates=_rates(a, b, known, pairs, measure),
        only_before=tuple(sorted(a.values.keys() - b.values.keys())),
        only_after=tuple(sorted(b.values.keys() - a.values.keys())),
        unscored=unscored,
        slices=_slices(a, pairs, margin),
        causes=_causes(a, b, pairs),
    )


def _slices(a: ScoredRun, pairs: _Pairs, margin: float) -> tuple[SliceDifference, ...]:
    members: dict[tuple[str, str], list[int]] = {}
    for i, id in enumerate(pairs.ids):
        for label, value in a.labels[id].items():
            members.setdefault((label, value), []).append(i)
    found = [(key, pairs.of(chosen).difference()) for key, chosen in sorted(members.items())]
    corrected = holm([f.p for _, f in found])
    return tuple(
        SliceDifference(label, value, f, p, conclude(f, margin, p))
        for ((label, value), f), p in zip(found, corrected, strict=True)
    )


def _causes(a: ScoredRun, b: ScoredRun, pairs: _Pairs) -> tuple[Cause, ...]:
    """Where the answers differ. The shares of the difference sum to it: a question whose value moved
    is in exactly one cause."""
    by_id, known = _parted(a, b), a.manifest and b.manifest and a.manifest.store == b.manifest.store
    grouped: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for id, before, after in zip(pairs.ids, pairs.before, pairs.after, strict=True):
        where = by_id.get(id)
        if where is None and before != after:
            where = (NOISE if known else UNKNOWN, "")
        if where is not None:
            grouped.setdefault(where, []).append((before, after))
    out = []
    for (step, changed), moved in grouped.items():
        gains = [after - before for before, after in moved]
        up, down = sum(g > 0 for g in gains), sum(g < 0 for g in gains)
        out.append(Cause(step, changed, len(moved), up, down, sum(gains) / len(pairs.ids)))
    return tuple(sorted(out, key=lambda c: (-abs(c.difference), -c.moved, c.step)))


def _parted(a: ScoredRun, b: ScoredRun) -> dict[str, tuple[str, str]]:
    """Question id -> step at which its paths part, and what differs in the recipe there; of those that do."""
    if a.manifest is None or b.manifest is None or a.manifest.store != b.manifest.store:
        return {}
    return {
        id: (NOISE if c.noise else c.step, f"{c.because.stage}.{c.because.field}" if c.because else "")
        for id, c in causes(Store.open(a.manifest.store), a.manifest, b.manifest).items()
    }
