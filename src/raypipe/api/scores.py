"""Scores of files that any system may have written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raypipe.api.results import Result
from raypipe.api.session import Session
from raypipe.metrics.crag import Rule
from raypipe.metrics.files import score_ranking_files, score_to_json
from raypipe.metrics.named_kinds import open_kind
from raypipe.metrics.ranking import MAP_CUT_20_MIN, MEASURES
from raypipe.metrics.textfile import require_file, write_json_lines
from raypipe.runs.report import RunFolder


@dataclass(frozen=True, slots=True)
class ScoreResult(Result):
    """Numbers as the command prints them; a row for each measure, of CRAG's one row."""

    ROWS, FLAT, HIDDEN = "measures", "found", "measures about"
    found: Mapping[str, Any]
    measures: tuple[Mapping[str, Any], ...]
    about: str = ""  # how many questions they are of


def score_crag(
    predictions: str | Path, rule: Rule | None = None, judge: str | None = None, trim: str | None = None,
    labels: str | Path | None = None, out: str | Path | None = None, session: Session | None = None,
) -> ScoreResult:  # fmt: skip
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
    found = score_to_json(marks, run.normalized)
    called = asdict(run.called) if run.called else None
    found |= {"judge": called, "trim": run.trim, "people": people}
    return ScoreResult(found, ({k: v for k, v in found.items() if not isinstance(v, Mapping)},))


def score_qa(predictions: str | Path) -> ScoreResult:
    """Scores answers of any system to anyone's questions by exact match, token F1 and containment, with
    SQuAD's normalization; the best of several truths counts.

    A line of the `.jsonl[.gz]` holds `query, answer, alternatives?, prediction, labels?`; `predictions` may
    be the folder of an eval, too. Raises DataError.
    """
    from raypipe.metrics.files import score_qa_file

    file = Path(predictions)
    if file.is_dir():
        from raypipe.runs.manifest import read

        read(file)  # raises where its eval was killed
        file = RunFolder(file).predictions
    found = score_qa_file(file, open_kind("qa"))
    names = ("measure", "mean", "scored", "of")
    return ScoreResult(found, tuple({name: m[name] for name in names} for m in found["measures"]))


def score_qasper(gold: str | Path, predictions: str | Path, text_evidence_only: bool = False) -> ScoreResult:
    """Scores answers about papers as QASPER's evaluator does. `gold` is its JSON of papers; a line of
    `predictions` holds `question_id, predicted_answer, predicted_evidence`. `text_evidence_only`: figures and
    tables are taken out of the golds' evidence. Raises DataError."""
    from raypipe.metrics.qasper import score_files

    found = score_files(Path(gold), Path(predictions), text_evidence_only)
    kinds = {f"  {kind}": mean for kind, mean in found.by_kind.items()}
    means = {"Answer F1": found.answer_f1, **kinds, "Evidence F1": found.evidence_f1}
    rows = tuple({"measure": name, "mean": mean} for name, mean in means.items())
    about = f"{found.questions} questions; {found.missing} have no prediction and count 0"
    return ScoreResult(found.to_json(), rows, about)


def score_ranking(run: str | Path, qrels: str | Path, per_query: bool = False) -> ScoreResult:
    """Scores a TREC run against judgements. `per_query`: every query's measures too. Raises DataError."""
    found = score_ranking_files(Path(run), Path(qrels), per_query)
    names = (*MEASURES, MAP_CUT_20_MIN)
    return ScoreResult(found, tuple({"measure": name, "mean": found[name]} for name in names))
