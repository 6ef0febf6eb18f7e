"""Predictions with a judge's replies and people's labels, ready to be scored, judged again, or compared.

Predictions come from the folder of a finished eval, or from a predictions file of any system. A line of
labels.jsonl is a prediction with a `label`: right, wrong, unclear, or null if a person still has to label it.
A label belongs to the text of an answer: another answer to the same question has no label. A label right or
wrong outranks rule and judge, except on an abstention.
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
from raypipe.metrics import verdict_rules
from raypipe.metrics.prediction_files import read_predictions
from raypipe.runs.run_parts import JudgeLine, RunFolder

if TYPE_CHECKING:
    from raypipe.runs.record import Run


PersonLabel: TypeAlias = Literal["right", "wrong", "unclear"]
Picked: TypeAlias = Literal["random", "chosen"]
"""The way an answer was picked for labelling: drawn at random, or chosen because it looked doubtful. Only
answers drawn at random measure how often a judge errs."""

AnswerOf: TypeAlias = tuple[str, str]
"""Question id, and the text of the answer."""


@dataclass(frozen=True, slots=True)
class LabelledAnswer:
    """A person's label of an answer."""

    label: PersonLabel
    picked: Picked


@dataclass(frozen=True, slots=True)
class PersonLabels:
    """People's labels of answers, from one file."""

    file: str
    by_answer: Mapping[AnswerOf, LabelledAnswer]
    open: Mapping[AnswerOf, Picked]  # answers that still need a label -> how they were picked

    def of(self, row: verdict_rules.Prediction) -> LabelledAnswer | None:
        """Returns the label of a prediction, or None."""
        return self.by_answer.get((row.question, (row.prediction or "").strip()))


def read_labels(path: Path) -> PersonLabels:
    """Reads a file of labels. The last label of an answer counts. Raises DataError for a malformed line."""
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


def labelled(
    rows: Sequence[verdict_rules.Prediction], labels: PersonLabels
) -> list[verdict_rules.Prediction]:
    """Adds people's labels to the predictions. A prediction labelled unclear keeps its verdict."""
    known = {"right": True, "wrong": False}
    return [replace(r, person=known.get(s.label) if (s := labels.of(r)) else None) for r in rows]


def add_label(path: Path, id: str, answer: str, label: PersonLabel) -> None:
    """Appends a person's label to a file of labels, which is made if needed. The line's `picked` is copied
    from an earlier line with this answer, else `chosen`. Raises DataError if the file has malformed lines."""
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
"""Reasons of verdicts that a judge's reply decided."""


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """Predictions with truths, and the rule and judge for them."""

    name: str  # as given on the command line
    rule: verdict_rules.Rule
    judge: str  # name of the judge's model; "": none, or unknown
    trim: str  # cut of the predictions before judging; "": none
    rows: tuple[verdict_rules.Prediction, ...]
    texts: Mapping[str, str]  # question id -> question
    record: Run | None = None  # None: a predictions file
    normalized: Mapping[str, int] = field(default_factory=dict)  # repairs made on reading -> their number
    called: JudgeLine | None = None  # calls of a new judgement; None: not judged again
    kept: frozenset[str] = frozenset()  # ids of questions whose answers come from an earlier run

    def marks(self) -> verdict_rules.Marks:
        return verdict_rules.mark(self.rows, self.rule)

    def labelled(self, labels: PersonLabels | None) -> JudgedRun:
        """Adds people's labels to the predictions. `labels` None changes nothing."""
        return self if labels is None else replace(self, rows=tuple(labelled(self.rows, labels)))


def judged_run(path: Path, rule: verdict_rules.Rule | None = None) -> JudgedRun:
    """Reads a run's folder, or a file of predictions. `rule` is the scoring rule; None: the run's own, or the
    default. Leaves out a run's questions without gold answers, and its judge replies by another rule. Raises
    DataError for an unreadable path, and for a file with replies by another rule."""
    if not path.is_dir():
        chosen = rule or "official"
        found = read_predictions(path, chosen)
        return JudgedRun(
            str(path), chosen, found.judge, found.trim, found.rows, found.texts, normalized=found.normalized
        )
    from raypipe.evaluation.result_table import each  # imported here: a file of predictions needs no Arrow
    from raypipe.runs.record import read

    record, rows, texts, kept = read(path), list[verdict_rules.Prediction](), dict[str, str](), set[str]()
    own = bool(record.rule) and (rule is None or verdict_rules.rule_id(rule) == record.rule)
    for r in each(RunFolder(path).results, record.run):
        if r["golds"]:
            said = r["judge_response"] if own else None
            cut = any(x["step"] == r["origin"] and x["finish"] == "length" for x in r["replies"])
            truths, labels = tuple(r["golds"]), r["labels"]
            rows.append(verdict_rules.Prediction(r["id"], r["answer"], truths, said, labels, cut=cut))
            texts[r["id"]] = r["query"]
            kept |= {r["id"]} if r["kept"] else set()
    by = record.rule.partition("@")[0] if own else rule or verdict_rules.DEFAULT_RULE
    judge = record.judged_by if own else ""
    return JudgedRun(str(path), by, judge, "", tuple(rows), texts, record, kept=frozenset(kept))


def prediction_lines(run: JudgedRun, marks: verdict_rules.Marks) -> list[dict[str, Any]]:
    """Returns the lines of a predictions file, one for each prediction, with verdict and judge."""
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
    """Raises DataError if a question occurs twice."""
    for id, count in Counter(row.question for row in run.rows).items():
        if count > 1:
            raise DataError(
                f"{run.name}: expected each question once, found {id!r} twice. Remove one of its lines"
            )
