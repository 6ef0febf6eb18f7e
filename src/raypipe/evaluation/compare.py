"""Two scored runs over the same questions: better, worse, the same, or cannot tell, and where it comes from.

Joins the questions by id. Reads the tables of finished runs, or files of predictions; computes no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from raypipe.core import arrow
from raypipe.core.errors import DataError
from raypipe.evaluation.judged_run import JudgedRun, judged_run, require_distinct, require_readable
from raypipe.evaluation.labels import PersonLabels
from raypipe.evaluation.result_table import each
from raypipe.metrics import crag
from raypipe.metrics.paired import MARGIN, Conclusion, PairedDifference, conclude, holm, paired
from raypipe.report.report import RunFolder
from raypipe.runs.changes import causes
from raypipe.runs.manifest import Manifest, answer_keys, read
from raypipe.store import Store

CRAG_VALUES: Mapping[str, float] = {"exact": 1.0, "correct": 1.0, "missing": 0.0, "hallucination": -1.0}
"""Verdict -> what it adds to the score. A question that is not scored has no value."""
_RATES: Mapping[str, Sequence[str]] = {"accuracy": ("exact", "correct"), "hallucination": ("hallucination",)}
NOISE, UNKNOWN = "same inputs, another reply", "not known"
"""Causes that are no step: an engine's noise; a run without a manifest."""


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """The verdicts of one run."""

    name: str  # as it was given
    rule: str
    judge: str  # its model; "": none
    verdicts: Mapping[str, str]  # question id -> verdict; questions without a gold are not here
    labels: Mapping[str, Mapping[str, str]]  # question id -> label -> value
    manifest: Manifest | None = None  # None: a file of predictions
    trim: str = ""  # how answers were cut before they were judged; "": not
    people: int = 0  # verdicts that people's labels changed


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
    trim: str  # how answers were cut; "": not
    people: tuple[int, int]  # verdicts that people's labels changed, before and after
    margin: float
    verdict: Conclusion
    p: float  # corrected for the number of runs compared (Holm)
    score: PairedDifference
    rates: tuple[MetricDifference, ...]
    only_before: tuple[str, ...]  # ids of questions that the other run does not have
    only_after: tuple[str, ...]
    unscored: tuple[str, ...]  # in both, and not scored in one of them: left out
    slices: tuple[SliceDifference, ...]
    causes: tuple[Cause, ...]  # by size of their share


@dataclass(slots=True)
class _Pairs:
    """The questions that both runs score, in order of id."""

    ids: list[str]
    before: list[str]  # verdicts
    after: list[str]
    groups: list[str] | None = field(default=None)

    def of(self, chosen: Sequence[int]) -> _Pairs:
        some = None if self.groups is None else [self.groups[i] for i in chosen]
        return _Pairs(
            [self.ids[i] for i in chosen], [self.before[i] for i in chosen],
            [self.after[i] for i in chosen], some,
        )  # fmt: skip

    def score(self) -> PairedDifference:
        return self._differ(CRAG_VALUES.__getitem__, 2)

    def rate(self, verdicts: Sequence[str]) -> PairedDifference:
        return self._differ(lambda v: float(v in verdicts), 1)

    def _differ(self, value: Callable[[str], float], span: float) -> PairedDifference:
        a, b = ([value(v) for v in verdicts] for verdicts in (self.before, self.after))
        return paired(a, b, span, self.groups)


def scored_run(path: Path, rule: crag.Rule) -> ScoredRun:
    """The verdicts of a run's folder, or of a file of predictions scored by `rule`. Raises DataError."""
    if not path.is_dir():
        return _from_file(path, rule)
    folder = RunFolder(path)
    verdicts: dict[str, str] = {}
    labels: dict[str, Mapping[str, str]] = {}
    for row in each(folder.results):
        if row["verdict"] is not None:
            verdicts[row["id"]], labels[row["id"]] = row["verdict"], row["labels"]
    about = {k.decode(): v.decode() for k, v in pq.read_schema(folder.results).metadata.items()}
    return ScoredRun(str(path), about["rule"], about["judge"], verdicts, labels, read(path))


def judged_again(run: JudgedRun, people: PersonLabels | None) -> ScoredRun:
    """The verdicts of a run that was cut or judged again, with those of people in their place. Raises
    DataError for a question that stands there twice."""
    require_distinct(run)
    require_readable(run)
    marks, changed = run.marks(people)
    verdicts: dict[str, str] = {v.question: v.outcome for v in marks.verdicts}
    labels = {r.question: dict(r.labels) for r in run.rows}
    return ScoredRun(run.name, marks.rule, run.judge, verdicts, labels, run.manifest, run.trim, changed)


def stored_run(store: Store, manifest: Manifest, name: str = "") -> ScoredRun:
    """The verdicts of a finished run as its store keeps them, with the labels of the questions there. `name`:
    as it was given. Raises DataError for a run of which it keeps none."""
    found = {q: k.verdict for q, k in answer_keys(store, manifest.run).items() if k.verdict is not None}
    name = name or f"run {manifest.run[:8]} of recipe {manifest.recipe['name']}"
    if not found:
        raise DataError(f"{store.uri}: {name} has no verdicts there. Run the eval again, or name its folder")
    golds = arrow.gold.records(store.rows("golds", "question", list(found)))
    labels = {**{q: {} for q in found}, **{g.question: g.labels for g in golds}}
    return ScoredRun(name, manifest.rule, manifest.judge, found, labels, manifest)


def _from_file(path: Path, rule: crag.Rule) -> ScoredRun:
    return judged_again(judged_run(path, rule), None)


def compare(
    runs: Sequence[ScoredRun], margin: float = MARGIN, group: str | None = None
) -> tuple[RunComparison, ...]:
    """Each run against the first, `p` corrected for their number.

    `group`: the label whose values are groups of questions that count as one each. Raises DataError for runs
    of other rules or judges, and for runs without a common scored question.
    """
    first, *others = runs
    for other in others:
        _require_same_rule(first, other)
    joined = [_joined(first, other, group) for other in others]
    scores = [pairs.score() for pairs, _ in joined]
    corrected = holm([s.p for s in scores])
    return tuple(
        _comparison(first, other, pairs, unscored, score, p, margin)
        for other, (pairs, unscored), score, p in zip(others, joined, scores, corrected, strict=True)
    )


def _require_same_rule(a: ScoredRun, b: ScoredRun) -> None:
    for what in ("rule", "judge", "trim"):
        one, two = (getattr(r, what) or "none" for r in (a, b))
        if one != two:
            raise DataError(
                f"{a.name} and {b.name}: expected runs scored alike, found {what} {one} and {two}. Score "
                f"them alike with `raypipe compare ... --rejudge MODEL` (a rule with --rule, a trim with "
                f"--trim): what is cached is not asked again"
            )


def _joined(a: ScoredRun, b: ScoredRun, group: str | None) -> tuple[_Pairs, tuple[str, ...]]:
    common = sorted(a.verdicts.keys() & b.verdicts.keys())
    scored = [q for q in common if "unscored" not in (a.verdicts[q], b.verdicts[q])]
    if not scored:
        ids = [next(iter(r.verdicts), "none") for r in (a, b)]
        raise DataError(
            f"{a.name} and {b.name}: expected questions that both score, found {len(common)} common ids of "
            f"{len(a.verdicts)} and {len(b.verdicts)} (first ids: {ids[0]}, {ids[1]}). "
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
    pairs = _Pairs(scored, [a.verdicts[q] for q in scored], [b.verdicts[q] for q in scored], groups)
    return pairs, tuple(q for q in common if q not in set(scored))


def _comparison(
    a: ScoredRun, b: ScoredRun, pairs: _Pairs, unscored: tuple[str, ...], score: PairedDifference, p: float,
    margin: float,
) -> RunComparison:  # fmt: skip
    return RunComparison(
        before=a.name,
        after=b.name,
        rule=a.rule,
        judge=a.judge,
        trim=a.trim,
        people=(a.people, b.people),
        margin=margin,
        verdict=conclude(score, margin, p),
        p=p,
        score=score,
        rates=tuple(MetricDifference(name, pairs.rate(verdicts)) for name, verdicts in _RATES.items()),
        only_before=tuple(sorted(a.verdicts.keys() - b.verdicts.keys())),
        only_after=tuple(sorted(b.verdicts.keys() - a.verdicts.keys())),
        unscored=unscored,
        slices=_slices(a, pairs, margin),
        causes=_causes(a, b, pairs),
    )


def _slices(a: ScoredRun, pairs: _Pairs, margin: float) -> tuple[SliceDifference, ...]:
    members: dict[tuple[str, str], list[int]] = {}
    for i, id in enumerate(pairs.ids):
        for label, value in a.labels[id].items():
            members.setdefault((label, value), []).append(i)
    found = [(key, pairs.of(chosen).score()) for key, chosen in sorted(members.items())]
    corrected = holm([f.p for _, f in found])
    return tuple(
        SliceDifference(label, value, f, p, conclude(f, margin, p))
        for ((label, value), f), p in zip(found, corrected, strict=True)
    )


def _causes(a: ScoredRun, b: ScoredRun, pairs: _Pairs) -> tuple[Cause, ...]:
    """Where the answers came to differ. The shares of the difference sum to it: a question whose verdict
    moved is in exactly one cause."""
    by_id, known = _parted(a, b), a.manifest and b.manifest and a.manifest.store == b.manifest.store
    grouped: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for id, before, after in zip(pairs.ids, pairs.before, pairs.after, strict=True):
        where = by_id.get(id)
        if where is None and before != after:
            where = (NOISE if known else UNKNOWN, "")
        if where is not None:
            grouped.setdefault(where, []).append((before, after))
    out = []
    for (step, changed), moved in grouped.items():
        gains = [CRAG_VALUES[after] - CRAG_VALUES[before] for before, after in moved]
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
