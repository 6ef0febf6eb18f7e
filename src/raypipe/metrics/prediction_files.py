"""Files of predictions, which any system may write: their reader, and scores without a judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raypipe.core.errors import DataError
from raypipe.core.textfile import TextLine, lines, written
from raypipe.metrics import verdict_rules
from raypipe.metrics.kinds import Qa, RunScores, score
from raypipe.text.replies import parse_response


def score_qa_file(path: Path) -> tuple[RunScores, Mapping[str, int]]:
    """Scores a file of predictions without a judge. Also returns how often each normalization was made on
    reading. Raises DataError as `read_predictions` does, and if no line has an answer."""
    found = read_predictions(path, None)
    if not found.rows:
        raise DataError(f"{path}: expected lines with an answer to score against, found none")
    return score(Qa(), "qa", found.rows), found.normalized


@dataclass(frozen=True, slots=True)
class PredictionFile:
    """Predictions of a file that have an answer to score against."""

    rows: tuple[verdict_rules.Prediction, ...]
    texts: Mapping[str, str]  # question id -> question
    judge: str  # judge of the replies, as the lines state; "": not stated
    trim: str  # how the predictions were cut, as the lines state; "": not cut
    normalized: Mapping[str, int]  # normalization on reading -> number of times


def read_predictions(path: Path, rule: verdict_rules.Rule | None) -> PredictionFile:
    """Reads a `.jsonl[.gz]` file of predictions. If `rule` is None, replies of a judge are ignored.

    A line has `query`, `answer` and `prediction`. It may have `id`, `alternatives`, `judge`,
    `judge_response`, `judge_rule`, `trim` and `labels`. Without labels, CRAG_LABELS are read; without an id,
    the question is the id. A null prediction means that the question failed. A line with a null answer (the
    dataset has none) is left out and counted as `no_answer`. Numbers are read as text. Raises DataError for a
    malformed line, a judge's reply by another rule, and lines of several judges or trims. Raises DataError
    also if fewer than half of the judge's replies have the rule's form.
    """
    normalized: Counter[str] = Counter()
    rows: list[verdict_rules.Prediction] = []
    texts: dict[str, str] = {}
    stated: dict[str, str] = {}
    if (ending := path.suffix).lower() in (".csv", ".tsv", ".parquet"):
        raise DataError(f"{path}: expected lines of JSON (.jsonl or .jsonl.gz), found {ending}. Convert it")
    for line in lines(path):
        if not line.text.strip():
            normalized["blank_line"] += 1
            continue
        record = line.object()
        if "answer" in record and record["answer"] is None:
            normalized["no_answer"] += 1
            continue
        rows.append(_row(line, record, rule, normalized))
        texts[rows[-1].question] = "" if record["query"] is None else str(record["query"])
        for name in ("judge", "trim"):
            value = str(record.get(name) or "")
            if (first := stated.setdefault(name, value)) != value:
                raise line.error(f"{name} {first or 'none'}, as the lines before it say", value or "none")
    if rule is not None:
        _require_fitting(path, [r.judge_response for r in rows if r.judge_response is not None], rule)
    judge, trim = stated.get("judge", ""), stated.get("trim", "")
    return PredictionFile(tuple(rows), texts, judge, trim, dict(normalized))


REPLIES: Mapping[verdict_rules.Rule, str] = {
    "official": "JSON with a score of 0 or 1",
    "accuracy": 'texts with "true" or "false"',
}
"""Rule -> form of its judge's replies."""


def _require_fitting(path: Path, replies: list[str], rule: verdict_rules.Rule) -> None:
    """Raises DataError if REPLIES has a form for the rule, and fewer than half of the replies have it."""
    fitting = dict.fromkeys(REPLIES, 0)
    for reply in replies:  # a reply in JSON counts for official, even with "true" in it
        if parse_response(reply).score != -1:
            fitting["official"] += 1
        elif "true" in reply.lower() or "false" in reply.lower():
            fitting["accuracy"] += 1
    if 2 * fitting.get(rule, len(replies)) >= len(replies):
        return
    best = max(fitting, key=lambda known: fitting[known])
    others = f"found {fitting[rule]} in {len(replies)}; the others fit no other rule. Ask a judge: --judge"
    if 2 * fitting[best] > len(replies):
        others = f"{fitting[best]} of {len(replies)} are {REPLIES[best]}: score with --rule {best}"
    raise DataError(f"{path}: expected a judge's replies by the rule {rule}, {REPLIES[rule]}; {others}")


CRAG_LABELS = ("domain", "question_type", "static_or_dynamic", "popularity")  # fields of CRAG's lines


def _row(
    line: TextLine, record: dict[str, Any], rule: verdict_rules.Rule | None, normalized: Counter[str]
) -> verdict_rules.Prediction:
    for name in ("query", "answer", "prediction"):
        if name not in record:
            raise line.error(f"a field {name!r}", sorted(record))

    def text(name: str, value: Any) -> str:
        if isinstance(value, int | float) and not isinstance(value, bool):
            normalized[f"{name}_number"] += 1
            return written(value)
        if not isinstance(value, str):
            raise line.error(f"text as {name!r}", value)
        return value

    answer = text("answer", record["answer"])
    if not answer.strip():
        raise line.error("an answer to score against", answer)
    if not isinstance(alternatives := record.get("alternatives"), list | None):
        raise line.error("a list of texts as 'alternatives'", alternatives)
    prediction, judged = record["prediction"], record.get("judge_response") if rule is not None else None
    if judged is not None and (by := record.get("judge_rule", rule)) != rule:
        raise line.error(f"a judge's reply by the rule {rule}; score with --rule {by}", f"one by {by}")
    labels = record.get("labels")  # as a run writes them, else CRAG's own fields
    if labels is None:
        labels = {name: str(record[name]) for name in CRAG_LABELS if record.get(name) is not None}
    if not isinstance(labels, dict) or not all(isinstance(v, str) for v in labels.values()):
        raise line.error("labels: an object of texts", labels)
    return verdict_rules.Prediction(
        question=text("id", record["id"]) if "id" in record else text("query", record["query"]),
        prediction=None if prediction is None else text("prediction", prediction),
        truths=(answer, *(text("alternatives", a) for a in alternatives or ())),
        judge_response=None if judged is None else text("judge_response", judged),
        labels=labels,
    )
