"""A run's predictions with what a judge and people say of them: to be scored, judged again, or compared.

Reads the folder of a finished eval, or a file of predictions of any system, and labels.jsonl. A line of that
is a prediction with a `label`: right, wrong, unclear, or null where it is still to be given. A label belongs
to an answer, not to a run: another answer to the same question is not labelled. People outrank judges.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from raypipe.core.errors import DataError
from raypipe.core.textfile import filled
from raypipe.metrics import crag
from raypipe.metrics.files import read_predictions
from raypipe.runs.run_parts import JudgeLine, RunFolder

if TYPE_CHECKING:
    from raypipe.runs.record import Run


PersonLabel: TypeAlias = Literal["right", "wrong", "unclear"]
Picked: TypeAlias = Literal["random", "chosen"]
"""The way an answer was chosen for its label: drawn at random, or chosen since something was odd about it.
Only those drawn at random say how often a judge errs."""

AnswerOf: TypeAlias = tuple[str, str]
"""Question id, and the answer as it was given."""


@dataclass(frozen=True, slots=True)
class LabelledAnswer:
    """A person's label of an answer."""

    label: PersonLabel
    picked: Picked


@dataclass(frozen=True, slots=True)
class PersonLabels:
    """A file of labels."""

    file: str
    by_answer: Mapping[AnswerOf, LabelledAnswer]
    open: Mapping[AnswerOf, Picked]  # answers whose label is still to be given: how they were chosen

    def of(self, row: crag.Prediction) -> LabelledAnswer | None:
        """The label of this prediction; None: it has none."""
        return self.by_answer.get((row.question, (row.prediction or "").strip()))


def read_labels(path: Path) -> PersonLabels:
    """Reads labels. A later line of the same answer takes the place of an earlier one. Raises DataError."""
    found: dict[AnswerOf, LabelledAnswer] = {}
    open_: dict[AnswerOf, Picked] = {}
    for line in filled(path):
        record = line.object()
        if not {"id", "prediction", "label"} <= record.keys():
            raise line.error("the fields id, prediction and label", record)
        id, answer, label = record["id"], record["prediction"], record["label"]
        for name in ("id", "prediction"):
            if not isinstance(record[name], str):
                raise line.error(f"text as {name!r}", record[name])
        if label is not None and label not in get_args(PersonLabel):
            raise line.error(f"a label of {', '.join(get_args(PersonLabel))}, or null", label)
        if (picked := record.get("picked", "chosen")) not in get_args(Picked):
            raise line.error("picked: random, or chosen", picked)
        key = id, answer.strip()
        if label is not None:
            found[key] = LabelledAnswer(label, picked)
            open_.pop(key, None)
        elif key not in found:
            open_[key] = picked
    return PersonLabels(str(path), found, open_)


def labelled(rows: Sequence[crag.Prediction], labels: PersonLabels) -> list[crag.Prediction]:
    """The predictions with what people say of them; an unclear answer keeps its verdict."""
    known = {"right": True, "wrong": False}
    said = (labels.of(r) for r in rows)
    return [replace(r, person=known.get(s.label) if s else None) for r, s in zip(rows, said, strict=True)]


def add_label(path: Path, id: str, answer: str, label: PersonLabel) -> None:
    """Adds what a person says of an answer to a file of labels, which it makes where there is none. An answer
    that the file has keeps how it was picked; others are chosen. Raises DataError for a file of other lines.
    """
    key = id, answer.strip()
    there = read_labels(path) if path.exists() else PersonLabels(str(path), {}, {})
    before = there.by_answer.get(key)
    picked = before.picked if before else there.open.get(key, "chosen")
    line = {"id": id, "prediction": answer, "label": label, "picked": picked}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as out:
        ended = not out.tell() or path.read_bytes()[-1:] == b"\n"
        out.write(b"" if ended else b"\n")
        out.write((json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode())


NEEDS_JUDGE = ("judge", "judge_unreadable")
"""Reasons of verdicts that a judge's reply decides."""

FEW = 10  # replies of which none can be read may be the judge's own doing; more are of another rule


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """Predictions that have a truth, and how they are judged."""

    name: str  # as it was given
    rule: crag.Rule
    judge: str  # its model; "": none, or not known
    trim: str  # how the predictions were cut before they were judged; "": not
    rows: tuple[crag.Prediction, ...]
    texts: Mapping[str, str]  # question id -> question
    record: Run | None = None  # None: a file of predictions
    normalized: Mapping[str, int] = field(default_factory=dict)  # on reading: what -> how often
    called: JudgeLine | None = None  # what judging again cost; None: not judged again
    kept: frozenset[str] = frozenset()  # ids of questions whose answers an earlier run's recipe gave

    def marks(self, labels: PersonLabels | None = None) -> tuple[crag.Marks, int]:
        """Scores it, people's labels first, and counts the verdicts that those changed."""
        marks = crag.mark(self.rows if labels is None else labelled(self.rows, labels), self.rule)
        return marks, marks.people


def judged_run(path: Path, rule: crag.Rule | None = None) -> JudgedRun:
    """A run's folder, or a file of predictions. `rule`: of a file, and of a folder that another rule scored;
    None: the folder's own, and official for a file. Raises DataError."""
    if not path.is_dir():
        chosen = rule or "official"
        found = read_predictions(path, chosen)
        return JudgedRun(
            str(path), chosen, found.judge, found.trim, found.rows, found.texts, normalized=found.normalized
        )
    from raypipe.evaluation.result_table import each  # which import Arrow
    from raypipe.runs.record import read  # a file needs neither

    record, rows, texts, kept = read(path), list[crag.Prediction](), dict[str, str](), set[str]()
    own = bool(record.rule) and (rule is None or crag.rule_id(rule) == record.rule)
    for r in each(RunFolder(path).results, record.run):
        if r["golds"]:
            said = r["judge_response"] if own else None
            cut = any(x["step"] == r["origin"] and x["finish"] == "length" for x in r["replies"])
            rows.append(crag.Prediction(r["id"], r["answer"], tuple(r["golds"]), said, r["labels"], cut=cut))
            texts[r["id"]] = r["query"]
            kept |= {r["id"]} if r["kept"] else set()
    by = record.rule.partition("@")[0] if own else rule or crag.DEFAULT_RULE
    judge = record.judged_by if own else ""
    return JudgedRun(str(path), by, judge, "", tuple(rows), texts, record, kept=frozenset(kept))


def prediction_lines(run: JudgedRun, marks: crag.Marks) -> list[dict[str, Any]]:
    """The predictions as a file of them has them, a line each, with what judged them."""
    lines = []
    for row, verdict in zip(run.rows, marks.verdicts, strict=True):
        line: dict[str, Any] = {
            "id": row.question,
            "query": run.texts[row.question],
            "answer": row.truths[0],
            "alternatives": list(row.truths[1:]),
            "prediction": row.prediction,
            "labels": dict(row.labels),
            "verdict": verdict.outcome,
            "reason": verdict.reason,
            "judge": run.judge,
            "trim": run.trim,
        }
        if row.judge_response is not None:
            line |= {"judge_response": row.judge_response, "judge_rule": run.rule}
        lines.append(line)
    return lines


def require_distinct(run: JudgedRun) -> None:
    """Raises DataError for a question that stands there twice."""
    seen = Counter(row.question for row in run.rows)
    if twice := next((id for id, n in seen.items() if n > 1), None):
        raise DataError(
            f"{run.name}: expected each question once, found {twice!r} twice. Remove one of its lines"
        )


def require_readable(run: JudgedRun) -> None:
    """Raises DataError for many replies of a judge of which none is a judgement by the rule: they were made
    by another one, and each would count as a hallucination."""
    reasons = [crag.judge(r, run.rule).reason for r in run.rows if r.judge_response is not None]
    decided = [reason for reason in reasons if reason in NEEDS_JUDGE]
    if len(decided) >= FEW and set(decided) == {"judge_unreadable"}:
        found = next(r.judge_response for r in run.rows if r.judge_response is not None)
        raise DataError(
            f"{run.name}: expected judge replies by the rule {run.rule}, found {len(decided)} that cannot "
            f"be read, such as {found[:60]!r}. Name the rule that they were made by with --rule"
        )


def decided_by_judge(run: JudgedRun, verdicts: Sequence[crag.Verdict]) -> list[tuple[crag.Prediction, bool]]:
    """The predictions that the judge decided, and whether it called them right."""
    pairs = zip(run.rows, verdicts, strict=True)
    return [(row, v.outcome == "correct") for row, v in pairs if v.reason in NEEDS_JUDGE]
