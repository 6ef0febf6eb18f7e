"""The answers of a run, scored: by rule, judge and people; which are right, and where the others were lost.

Knows metrics, judges and labels; computes no answer and writes no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from raypipe.evaluation.collect import Collected
from raypipe.evaluation.golds import Scoring
from raypipe.evaluation.judge import Judge, Spend
from raypipe.evaluation.labels import PersonLabels, label_line, labelled
from raypipe.metrics.crag import Marks, Prediction
from raypipe.metrics.kinds import DataKind, RunScores, kind_id, marks_of, right_of, score
from raypipe.metrics.kinds import golds_of as gold_form
from raypipe.metrics.losses import Losses, losses
from raypipe.report.report import JudgeLine, LabelLine
from raypipe.store import Store


@dataclass(frozen=True, slots=True)
class ScoredAnswers:
    """What was measured of a run's answers."""

    answers: Collected
    kind: DataKind
    rows: Sequence[Prediction]  # those with a gold, with what judge and people say of them
    marks: Marks
    scores: RunScores
    right: Mapping[str, bool | None]  # question id -> whether its answer is right; None: not scored
    lost: Losses | None  # where the misses were lost; None: not looked for
    judge: JudgeLine | None  # None: there was no judge
    labels: LabelLine | None  # None: no labels were given


def score_answers(
    store: Store, answers: Collected, scoring: Scoring, judge: Judge | None, labels: PersonLabels | None,
    fresh: bool, spend: Spend | None,
) -> ScoredAnswers:  # fmt: skip
    """Scores what was collected. `judge` decides what the rule leaves open, and `fresh` asks it again;
    `labels` outrank both. `spend` is told what the judge asks; None: nothing is capped."""
    rows, said = list(answers.rows), None
    if judge is not None:
        replies, said = judge.ask(store, rows, answers.texts, fresh, spend)
        rows = [replace(r, judge_response=replies.get(r.question)) for r in rows]
    if labels is not None:
        rows = labelled(rows, labels)
    marks, scores = marks_of(scoring.kind, rows), score(scoring.kind, kind_id(scoring.name), rows)
    right = verdicts(scoring.kind, rows, scores)
    return ScoredAnswers(
        answers=answers,
        kind=scoring.kind,
        rows=rows,
        marks=marks,
        scores=scores,
        right=right,
        lost=losses(right, answers.lost, answers.loss_notes),
        judge=said,
        labels=None if labels is None else label_line(labels, rows, marks),
    )


def verdicts(kind: DataKind, rows: Sequence[Prediction], scores: RunScores) -> dict[str, bool | None]:
    """Question -> whether its answer is right; None: not scored. One that failed has no verdict, whatever
    its kind measures of it."""
    rankings = gold_form(kind) == "grades"
    failed = {r.question for r in rows if (r.ranked if rankings else r.prediction) is None}
    values = ((r.question, scores.values[r.question]) for r in rows)
    return {id: None if id in failed else right_of(kind, v) for id, v in values}
