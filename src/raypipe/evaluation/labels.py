"""labels.jsonl: what people say of answers. People outrank judges and rules.

A line is a prediction with a `label`: right, wrong, unclear, or null where it is still to be given. A label
belongs to an answer, not to a run: another answer to the same question is not labelled. Knows the file alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from raypipe.core.errors import DataError
from raypipe.metrics.crag import Prediction, Verdict
from raypipe.metrics.textfile import TextLine, filled, replaced

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
    unlabelled: int  # lines whose label is null

    def of(self, row: Prediction) -> LabelledAnswer | None:
        """The label of this prediction; None: it has none."""
        return self.by_answer.get((row.question, (row.prediction or "").strip()))


def read_labels(path: Path) -> PersonLabels:
    """Reads labels. A later line of the same answer takes the place of an earlier one. Raises DataError."""
    found: dict[AnswerOf, LabelledAnswer] = {}
    unlabelled = 0
    for line in filled(path):
        record = _record(line)
        id, answer, label = record["id"], record["prediction"], record["label"]
        if label is None:
            unlabelled += 1
            continue
        if label not in get_args(PersonLabel):
            raise line.error(f"a label of {', '.join(get_args(PersonLabel))}, or null", label)
        if (picked := record.get("picked", "chosen")) not in get_args(Picked):
            raise line.error("picked: random, or chosen", picked)
        found[id, answer.strip()] = LabelledAnswer(label, picked)
    return PersonLabels(str(path), found, unlabelled)


def _record(line: TextLine) -> dict[str, Any]:
    try:
        record = json.loads(line.text)
    except (ValueError, RecursionError) as e:
        raise line.error(f"a JSON object ({e})", line.text) from e
    if not isinstance(record, dict) or not {"id", "prediction", "label"} <= record.keys():
        raise line.error("the fields id, prediction and label", record)
    for name in ("id", "prediction"):
        if not isinstance(record[name], str):
            raise line.error(f"text as {name!r}", record[name])
    return record


def outranked(
    rows: Sequence[Prediction], verdicts: Sequence[Verdict], labels: PersonLabels
) -> tuple[tuple[Verdict, ...], int]:
    """The verdicts with those of people in their place, and how many differ. "i don't know" is no answer that
    could be right; an unclear one keeps its verdict."""
    out, changed = [], 0
    for row, verdict in zip(rows, verdicts, strict=True):
        said = labels.of(row)
        if said is None or said.label == "unclear" or verdict.outcome == "missing" or row.prediction is None:
            out.append(verdict)
            continue
        right = verdict.outcome in ("exact", "correct")
        if verdict.outcome == "unscored" or right != (said.label == "right"):
            outcome: Literal["correct", "hallucination"] = (
                "correct" if said.label == "right" else "hallucination"
            )
            verdict = Verdict(row.question, outcome, "person")
            changed += 1
        out.append(verdict)
    return tuple(out), changed


def write_to_label(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Writes answers for people to label. Raises DataError for a file that is there: it may hold labels."""
    if path.exists():
        raise DataError(f"{path}: expected no file there, since it may hold labels. Name another --out")
    with replaced(path) as out:
        for line in lines:
            out.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
