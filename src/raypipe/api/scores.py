"""Scores of files that any system may have written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypipe.api.results import Result, as_json
from raypipe.api.session import Session
from raypipe.metrics.crag import Rule
from raypipe.metrics.files import score_ranking_files, score_to_json
from raypipe.metrics.kinds import open_kind
from raypipe.metrics.ranking import MAP_CUT_20_MIN, MEASURES
from raypipe.metrics.textfile import require_file, write_json_lines
from raypipe.report.report import RunFolder

if TYPE_CHECKING:
    from raypipe.metrics.qasper import QasperScore


@dataclass(frozen=True, slots=True)
class _FoundScores(Result):
    """Numbers as the command prints them."""

    found: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return as_json(**self.found)


class CragScoreResult(_FoundScores):
    """The score of CRAG predictions; one row."""

    __slots__ = ()

    def rows(self) -> list[Mapping[str, Any]]:
        return [{k: v for k, v in self.found.items() if not isinstance(v, Mapping)}]


class QaScoreResult(_FoundScores):
    """The measures of answers to anyone's questions; a row for each: its mean, over how many questions."""

    __slots__ = ()
    SCHEMA = "measure mean:float64 scored:int64 of:int64"
    ROWS = "found.measures"


class RankingScoreResult(_FoundScores):
    """The measures of a TREC run; a row for the mean of each."""

    __slots__ = ()

    def rows(self) -> Iterator[Mapping[str, Any]]:
        for name in (*MEASURES, MAP_CUT_20_MIN):
            yield {"measure": name, "mean": self.found[name]}


@dataclass(frozen=True, slots=True)
class QasperScoreResult(Result):
    """The means of QASPER's evaluator; a row for each."""

    found: QasperScore

    @property
    def title(self) -> str:
        return f"{self.found.questions} questions; {self.found.missing} have no prediction and count 0"

    def rows(self) -> Iterator[Mapping[str, Any]]:
        yield {"measure": "Answer F1", "mean": self.found.answer_f1}
        for kind, mean in self.found.by_kind.items():
            yield {"measure": f"  {kind}", "mean": mean}
        yield {"measure": "Evidence F1", "mean": self.found.evidence_f1}

    def to_json(self) -> dict[str, Any]:
        return as_json(**self.found.to_json())


def score_crag(
    predictions: str | Path, rule: Rule | None = None, judge: str | None = None, trim: str | None = None,
    labels: str | Path | None = None, out: str | Path | None = None, session: Session | None = None,
) -> CragScoreResult:  # fmt: skip
    """Scores CRAG predictions: the folder of an eval, or a file of any system.

    A line of the `.jsonl[.gz]` holds `query, answer, alternatives?, prediction, judge_response?`, and so
    does a run's predictions.jsonl. `rule` is official (the published evaluator's intent) or accuracy (the
    earlier contest rule); None: official, and of a folder its own. `judge` decides what the rule leaves open,
    in place of the replies that are there; `trim` names the tokenizer that cuts answers to 75 tokens first;
    `labels` is a file of people's verdicts, which outrank the judge's. `out` gets the predictions as they
    were scored. Raises ConfError, DataError, ModelMissing.
    """
    from raypipe.api.judged_runs import JudgingOptions, opened
    from raypipe.evaluation import judged_run as judging
    from raypipe.evaluation.labels import read_labels

    if out is not None:
        require_file(out, "--out")
    options = JudgingOptions(judge, trim, None if labels is None else read_labels(Path(labels)))
    run = opened(session or Session(), Path(predictions), rule, options)
    marks, people = run.marks(options.labels)
    if out is not None:
        write_json_lines(Path(out), judging.prediction_lines(run, marks))
    found = score_to_json(marks, run.normalized)
    called = asdict(run.called) if run.called else None
    return CragScoreResult({**found, "judge": called, "trim": run.trim, "people": people})


def score_qa(predictions: str | Path) -> QaScoreResult:
    """Scores answers of any system to anyone's questions by exact match, token F1 and containment, with
    SQuAD's normalization; the best of several truths counts.

    A line of the `.jsonl[.gz]` holds `query, answer, alternatives?, prediction, labels?`; `predictions` may
    be the folder of an eval, too. Raises DataError.
    """
    from raypipe.metrics.files import score_qa_file

    path = Path(predictions)
    file = RunFolder(path).predictions if path.is_dir() else path
    return QaScoreResult(score_qa_file(file, open_kind("qa")))


def score_qasper(
    gold: str | Path, predictions: str | Path, text_evidence_only: bool = False
) -> QasperScoreResult:
    """Scores answers about papers as QASPER's evaluator does. `gold` is its JSON of papers; a line of
    `predictions` holds `question_id, predicted_answer, predicted_evidence`. `text_evidence_only`: figures and
    tables are taken out of the golds' evidence. Raises DataError."""
    from raypipe.metrics.qasper_files import score_files

    return QasperScoreResult(score_files(Path(gold), Path(predictions), text_evidence_only))


def score_ranking(run: str | Path, qrels: str | Path, per_query: bool = False) -> RankingScoreResult:
    """Scores a TREC run against judgements. `per_query`: every query's measures too. Raises DataError."""
    return RankingScoreResult(score_ranking_files(Path(run), Path(qrels), per_query))
