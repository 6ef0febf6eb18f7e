"""A folder of training labels: labels.parquet, a row for each question, and labels.json, what they are. And
the file in which people correct labels before they are written.

`raypipe labels` writes it, and training an adapter reads it. Knows the files alone; not how a label came
about, which `training_labels` does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from raypipe.core.errors import ConfError, DataError
from raypipe.core.llm import Chat, Message
from raypipe.core.records import Gold, Question, Reply, digest
from raypipe.core.textfile import TextLine, filled, replacing, write_json, write_json_lines

FORMAT = 1  # of both files
ROWS, ABOUT = "labels.parquet", "labels.json"

LabelRule: TypeAlias = Literal["1", "2", "3.1", "3.2.1", "3.2.2", "imported"]
"""The rule of db3's label building (section 3.3 of its paper) that gave a label; imported: a file did."""

Split: TypeAlias = Literal["train", "held-out"]
"""Use of a row: weights are fitted to train rows, and training is stopped by the held-out ones."""

SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("label", pa.string()),
        ("rule", pa.string()),
        ("domain", pa.string()),
        ("split", pa.string()),
        ("gold", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Label:
    """A training example: a chat, and what the model should say to it."""

    question_id: str
    messages: Chat  # as the recipe's generate step sends it: system and user
    label: str  # the assistant's turn
    rule: LabelRule
    domain: str | None = None  # of the question, where the data names one
    split: Split = "train"
    gold: str | None = None  # the first true answer; None: the data has none


Unlabelled: TypeAlias = Literal[
    "no_truth", "not_asked", "no_reply", "no_judgement", "no_context_judgement", "draft"
]
"""Why a question has no label: the data has no truth, a gate kept the step from it, the step's reply or a
judgement broke, or it is a draft of calls that a person is to look at."""


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """A question with its reply and the judgements of it."""

    question: Question
    chat: Chat  # that the step sends; (): none, since its passages are not there
    gold: Gold | None
    reply: Reply | None  # the step's; None: it was not reached
    judgements: Mapping[str, str]  # reply of a judging stage -> its text, where it was asked
    rule: LabelRule | None  # None: no label
    label: str  # "": none
    why: Unlabelled | None  # why there is none
    facts: str = ""  # of calls: what they gave


@dataclass(frozen=True, slots=True)
class LabelFolder:
    """The labels of a folder, and what they were made of."""

    path: Path
    labels: tuple[Label, ...]  # in order
    digest: str  # of the labels' content in order
    recipe: str  # digest of the recipe whose step the labels are for; "": they were imported
    data: str  # digest of the questions and their golds
    about: Mapping[str, str]  # what else labels.json says, such as the step and the model
    questions: Mapping[str, str]  # question id -> digest of its text (`row_digest`); {}: not kept


def labels_digest(labels: Sequence[Label]) -> str:
    """32 hex digits that name the content of labels, in order."""
    return digest(*(json.dumps(asdict(x), sort_keys=True, separators=(",", ":")) for x in labels))


def counts(labels: Sequence[Label]) -> dict[str, dict[str, int]]:
    """Returns how many labels each rule gave, and how many questions each domain and each split has."""
    by = {
        "rule": Counter[str](x.rule for x in labels),
        "domain": Counter[str](x.domain or "" for x in labels),
        "split": Counter[str](x.split for x in labels),
    }
    return {name: dict(sorted(found.items())) for name, found in by.items()}


def write_labels(
    folder: Path,
    labels: Sequence[Label],
    recipe: str,
    data: str,
    about: Mapping[str, str] | None = None,
    questions: Mapping[str, str] | None = None,
) -> str:
    """Writes labels into a folder, labels.json last, and returns their digest.

    `recipe` and `data` are digests; `about`: what else labels.json is to say; `questions`: as a LabelFolder
    has them, of these and other labels. Raises DataError for no labels and for two of one question.
    """
    _require(labels, str(folder))
    with replacing(folder / ROWS) as draft:
        pq.write_table(pa.Table.from_pylist([asdict(x) for x in labels], SCHEMA), draft, compression="zstd")
    named = labels_digest(labels)
    tree = {
        "format": FORMAT,
        "digest": named,
        "recipe": recipe,
        "data": data,
        "rows": len(labels),
        "counts": counts(labels),
        **(about or {}),
    }
    if questions:
        tree["questions"] = {x.question_id: questions[x.question_id] for x in labels}
    write_json(folder / ABOUT, tree)
    return named


def read_labels(folder: Path) -> LabelFolder:
    """The labels of a folder, whole. Raises DataError for a folder without them, and for files that are not
    as `write_labels` wrote them: the digest of the rows tells."""
    if not (folder / ABOUT).exists():
        raise DataError(f"{folder}: expected a folder of labels, found no {ABOUT} there. {_AGAIN}")
    try:
        tree: Any = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if tree["format"] != FORMAT:
            raise ValueError(f"format {tree['format']}")
        labels = tuple(map(_label, pq.read_table(folder / ROWS).select(SCHEMA.names).to_pylist()))
        named, recipe, data = (str(tree[name]) for name in ("digest", "recipe", "data"))
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise DataError(
            f"{folder}: expected {ABOUT} of format {FORMAT} and {ROWS}, as `raypipe labels` writes them; "
            f"found {type(e).__name__}: {e}. {_AGAIN}"
        ) from e
    if (found := labels_digest(labels)) != named:
        raise DataError(
            f"{folder}: {ROWS} is not the table that {ABOUT} is of: expected rows of digest {named[:12]}, "
            f"found {found[:12]}. {_AGAIN}"
        )
    known = {"format", "digest", "recipe", "data", "rows", "counts", "questions"}
    rest = {k: str(v) for k, v in tree.items() if k not in known}
    questions = {str(id): str(named) for id, named in dict(tree.get("questions", {})).items()}
    return LabelFolder(folder, labels, found, recipe, data, rest, questions)


_AGAIN = "Make the labels again: `raypipe labels RECIPE --store URI`"


def _require(labels: Sequence[Label], where: str) -> None:
    if not labels:
        raise DataError(f"{where}: expected labels, found none. {_AGAIN}")
    seen = Counter(x.question_id for x in labels)
    if twice := [id for id, n in seen.items() if n > 1]:
        raise DataError(
            f"{where}: expected one label for each question, found {seen[twice[0]]} of {twice[0]}"
        )
    if empty := [x.question_id for x in labels if not x.label.strip()]:
        raise DataError(f"{where}: expected a label that says something, found an empty one of {empty[0]}")


def _label(row: Mapping[str, Any]) -> Label:
    return Label(**{**row, "messages": tuple(Message(**turn) for turn in row["messages"])})


def write_review(path: Path, judged: Sequence[JudgedAnswer], into: str) -> int:
    """Writes what a person may correct, a line for each question with a reply."""
    lines = []
    for a in (a for a in judged if a.chat):
        said = a.reply.text if a.reply is not None else ""
        line = {
            "id": a.question.id,
            "query": a.question.text,
            "query_time": a.question.asked_at,
            "golds": list(a.gold.answers) if a.gold is not None else [],
            into: said,
            **a.judgements,
            "rule": a.rule,
            "label": a.label or said,
            "use": False,
        }
        lines.append({**line, "gave": a.facts} if a.facts else line)
    return write_json_lines(path, lines)


def read_review(path: Path) -> dict[str, tuple[str, TextLine]]:
    """Question id -> the label that a person gave it, of the lines marked `"use": true`, and its line. Raises
    DataError."""
    found: dict[str, tuple[str, TextLine]] = {}
    for line in filled(path):
        tree = line.object()
        if not isinstance(tree.get("id"), str):
            raise line.error("an object with an id", tree)
        if tree.get("use") is not True:
            continue
        if not isinstance(label := tree.get("label"), str) or not label.strip():
            raise line.error("a label that says something", label)
        if tree["id"] in found:
            raise line.error("one line for each question marked to be used", tree["id"])
        found[tree["id"]] = label.strip(), line
    if not found:
        raise DataError(f'{path}: expected lines marked "use": true, found none')
    return found


def require_share(name: str, value: float | None) -> None:
    """Raises ConfError for a share that is none."""
    if value is not None and not 0 <= value < 1:
        raise ConfError(f"{name}: expected a share from 0 up to, not including, 1; found {value:g}")
