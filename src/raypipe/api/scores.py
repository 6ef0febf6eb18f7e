"""Scores of files that any system may have written.

What a kind of file needs is imported by its call: a file of predictions needs no store, a ranking no judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raypipe.api.results import Result
from raypipe.api.session import Session
from raypipe.core.textfile import require_file, write_json_lines
from raypipe.metrics import ranking
from raypipe.metrics.crag import CragScore, Rule, RuleScore
from raypipe.metrics.kinds import MeasureSlice, MeasureSummary, open_kind
from raypipe.runs.run_parts import JudgeLine, RunFolder


@dataclass(frozen=True, slots=True, repr=False)
class CragScoreResult(Result):
    """The score of predictions by a rule; one row."""

    by_rule: RuleScore
    judge: JudgeLine | None  # None: none was asked now
    trim: str  # how the predictions were cut; "": not
    people: int  # verdicts that people's labels changed
    normalized: Mapping[str, int]  # what was normalized on reading -> how often

    def rows(self) -> Sequence[CragScore]:
        return (self.by_rule.score,)


@dataclass(frozen=True, slots=True, repr=False)
class QaScoreResult(Result, rows="measures"):
    """Measures of answers to anyone's questions; a row for each."""

    lead: str  # the measure of the slices
    measures: tuple[MeasureSummary, ...]
    measure_slices: tuple[MeasureSlice, ...]
    normalized: Mapping[str, int]  # what was normalized on reading -> how often


@dataclass(frozen=True, slots=True, repr=False)
class MeansResult(Result):
    """Means of measures; a row for each."""

    means: Mapping[str, float | None]
    about: str  # how many questions they are of
    missing: int = 0  # questions without a prediction: they count 0
    unranked: tuple[str, ...] = ()  # judged queries without a ranking: they count 0
    unjudged: tuple[str, ...] = ()  # ranked queries without judgements: they count nowhere
    per_query: Mapping[str, Mapping[str, float]] | None = None  # None: not asked for

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return [{"measure": name.strip(), "mean": mean} for name, mean in self.means.items()]


def score_crag(
    predictions: str | Path,
    rule: Rule | None = None,
    judge: str | None = None,
    trim: str | None = None,
    labels: str | Path | None = None,
    out: str | Path | None = None,
    session: Session | None = None,
) -> CragScoreResult:
    """Scores CRAG predictions: the folder of an eval, or a file of any system.

    A line of the `.jsonl[.gz]` holds `query, answer, alternatives?, prediction, judge_response?`, and so
    does a run's predictions.jsonl. `rule` is official (the published evaluator's intent) or accuracy (the
    earlier contest rule); None: official, and of a folder its own. `judge` decides what the rule leaves open,
    in place of the replies that are there; `trim` names the tokenizer that cuts answers to 75 tokens first;
    `labels` is a file of people's verdicts, which outrank the judge's. `out` gets the predictions as they
    were scored. Raises ConfError, DataError, ModelMissing.
    """
    from raypipe.api.judged_runs import opened
    from raypipe.evaluation.judged_run import prediction_lines, read_labels

    if out is not None:
        require_file(out, "--out")
    said = None if labels is None else read_labels(Path(labels))
    run = opened(session or Session(), Path(predictions), rule, judge, trim)
    marks, people = run.marks(said)
    if out is not None:
        write_json_lines(Path(out), prediction_lines(run, marks))
    return CragScoreResult(marks.total(), run.called, run.trim, people, run.normalized)


def score_qa(predictions: str | Path) -> QaScoreResult:
    """Scores answers of any system to anyone's questions by exact match, token F1 and containment, with
    SQuAD's normalization; the best of several truths counts.

    A line of the `.jsonl[.gz]` holds `query, answer, alternatives?, prediction, labels?`; `predictions` may
    be the folder of an eval, too. Raises DataError.
    """
    from raypipe.metrics.files import score_qa_file

    file = Path(predictions)
    if file.is_dir():
        from raypipe.runs.record import read

        read(file)  # raises where its eval was killed
        file = RunFolder(file).predictions
    scores, normalized = score_qa_file(file, open_kind("qa"))
    return QaScoreResult(scores.lead, scores.measures, scores.slices, normalized)


def score_qasper(gold: str | Path, predictions: str | Path, text_evidence_only: bool = False) -> MeansResult:
    """Scores answers about papers as QASPER's evaluator does. `gold` is its JSON of papers; a line of
    `predictions` holds `question_id, predicted_answer, predicted_evidence`. `text_evidence_only`: figures and
    tables are taken out of the golds' evidence. Raises DataError."""
    from raypipe.metrics.overlap import score_files

    found = score_files(Path(gold), Path(predictions), text_evidence_only)
    kinds = {f"  {kind}": mean for kind, mean in found.by_kind.items()}
    means = {"Answer F1": found.answer_f1, **kinds, "Evidence F1": found.evidence_f1}
    about = f"{found.questions} questions; {found.missing} have no prediction and count 0"
    return MeansResult(means, about, found.missing)


def score_ranking(run: str | Path, qrels: str | Path, per_query: bool = False) -> MeansResult:
    """Scores a TREC run against judgements. `per_query`: every query's measures too. Raises DataError."""
    found = ranking.score(ranking.read_run(Path(run)), ranking.read_qrels(Path(qrels)))
    about = f"mean of {len(found.per_query)} judged queries; {len(found.unranked)} had no ranking and count 0"
    each = found.per_query if per_query else None
    return MeansResult(found.means, about, 0, tuple(found.unranked), tuple(found.unjudged), each)
