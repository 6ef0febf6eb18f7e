"""labels.jsonl: what people say of answers. People outrank judges and rules.

A line is a prediction with a `label`: right, wrong, unclear, or null where it is still to be given. A label
belongs to an answer, not to a run: another answer to the same question is not labelled. Knows the file alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from raypipe.core.errors import DataError
from raypipe.metrics.crag import Marks, Prediction
from raypipe.metrics.textfile import filled
from raypipe.report.report import LabelLine

PersonLabel: TypeAlias = Literal["right", "wrong", "unclear"]
Picked: TypeAlias = Literal["random", "chosen"]
"""How an answer was chosen for its label: drawn at random, or chosen since something was odd about it. Only
those drawn at random say how often a judge errs."""

AnswerOf: TypeAlias = tuple[str, str]
"""Question id, and the answer as it was given."""


@dataclass(frozen=True, slots=True)
class LabelledAnswer:
    """What a person says of one answer."""

    label: PersonLabel
    picked: Picked


@dataclass(frozen=True, slots=True)
class PersonLabels:
    """A file of labels."""

    file: str
    by_answer: Mapping[AnswerOf, LabelledAnswer]
    open: Mapping[AnswerOf, Picked]  # answers whose label is still to be given: how they were chosen

    def of(self, row: Prediction) -> LabelledAnswer | None:
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
        for name in ("id", "prediction"):
            if not isinstance(record[name], str):
                raise line.error(f"text as {name!r}", record[name])
        id, answer, label = record["id"], record["prediction"], record["label"]
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


def labelled(rows: Sequence[Prediction], labels: PersonLabels) -> list[Prediction]:
    """The predictions with what people say of them; an unclear answer keeps its verdict."""
    said = [labels.of(r) for r in rows]
    known = [None if s is None or s.label == "unclear" else s.label == "right" for s in said]
    return [replace(r, person=right) for r, right in zip(rows, known, strict=True)]


def label_line(labels: PersonLabels, rows: Sequence[Prediction], marks: Marks) -> LabelLine:
    """What a file of labels did to a run."""
    found = sum(r.person is not None for r in rows)
    return LabelLine(labels.file, len(labels.by_answer), found, marks.people)


def require_none(path: Path) -> None:
    """Raises DataError for a file that is there: it may hold labels."""
    if path.exists():
        raise DataError(f"{path}: expected no file there, since it may hold labels. Name another --out")


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
