"""Files of training labels: a folder of labels, and the file in which people correct labels.

A folder has labels.parquet, one row per question, and labels.json, facts about the labels. `raypipe labels`
writes the folder, and the training of an adapter reads it. `raypipe forget` removes labels from it. The rules
that give labels are in `training_labels`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from raypipe.core.errors import ConfError, DataError, unstopped
from raypipe.core.llm import Chat, Message
from raypipe.core.records import Gold, Question, Reply, digest
from raypipe.core.textfile import TextLine, filled, replacing, write_json, write_json_lines

if TYPE_CHECKING:
    from raypipe.store.text_places import Gone  # imports LanceDB, which no training worker needs

FORMAT = 1  # version of the format of labels.parquet and labels.json
ROWS, ABOUT = "labels.parquet", "labels.json"

LabelRule: TypeAlias = Literal["1", "2", "3.1", "3.2.1", "3.2.2", "imported"]
"""Rule of the db3 paper (section 3.3) that gave a label; imported: a person gave it, in a file."""

Split: TypeAlias = Literal["train", "held-out"]
"""Use of a row: train rows fit the weights, held-out rows decide when the training stops."""

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
    """A training example: a chat, and the reply that the model should give."""

    question_id: str
    messages: Chat  # as the recipe's generate step sends it: system and user
    label: str  # the assistant's turn
    rule: LabelRule
    domain: str | None = None  # of the question; None: the data names none
    split: Split = "train"
    gold: str | None = None  # the first true answer; None: the data has none


Unlabelled: TypeAlias = Literal[
    "no_truth", "not_asked", "no_reply", "no_judgement", "no_context_judgement", "draft"
]
"""Reason why a question has no label: the data has no true answer, a gate skipped the step, the step's reply
or a judgement is unreadable, or it is a draft of calls that a person must check."""


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """A question with the step's reply and the judgements of the reply."""

    question: Question
    chat: Chat  # the step's chat; (): none, because the question's passages are missing
    gold: Gold | None
    reply: Reply | None  # of the step; None: the step did not run
    judgements: Mapping[str, str]  # name of a judging stage's reply -> its text, if the stage ran
    rule: LabelRule | None  # None: no label
    label: str  # "": none
    why: Unlabelled | None  # reason for no label
    facts: str = ""  # results of calls, if the step writes calls


@dataclass(frozen=True, slots=True)
class LabelFolder:
    """Labels of a folder, and digests of their origin."""

    path: Path
    labels: tuple[Label, ...]  # in order
    digest: str  # of the labels' content, in order
    recipe: str  # digest of the recipe whose step the labels are for; "": they were imported
    data: str  # digest of the questions and their golds
    about: Mapping[str, str]  # further facts of labels.json, such as the step and the model
    questions: Mapping[str, str]  # question id -> digest of its text (`row_digest`); {}: not stored


def labels_digest(labels: Sequence[Label]) -> str:
    """Returns a digest, 32 hex digits, of the content of labels, in order."""
    return digest(*(json.dumps(asdict(x), sort_keys=True, separators=(",", ":")) for x in labels))


def counts(labels: Sequence[Label]) -> dict[str, dict[str, int]]:
    """Counts the labels of each rule, each domain and each split."""
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
    """Writes labels into a folder, labels.json last, and returns the digest of the labels.

    `recipe` and `data` are digests. `about`: further facts for labels.json. `questions`: question id ->
    digest of its text; questions without a label are ignored. Raises DataError if there are no labels, if a
    question has two, and if a label is empty.
    """
    if not labels:
        raise DataError(f"{folder}: expected labels, found none. {_AGAIN}")
    seen = Counter(x.question_id for x in labels)
    if twice := [id for id, n in seen.items() if n > 1]:
        raise DataError(
            f"{folder}: expected one label for each question, found {seen[twice[0]]} of {twice[0]}"
        )
    if empty := [x.question_id for x in labels if not x.label.strip()]:
        raise DataError(f"{folder}: expected a label that says something, found an empty one of {empty[0]}")
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
    """Reads all labels of a folder. Raises DataError if it has no labels, a file cannot be read, or the rows
    do not match their recorded digest."""
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
            f"found {type(e).__name__}: {unstopped(e)}. {_AGAIN}"
        ) from e
    if (found := labels_digest(labels)) != named:
        raise DataError(
            f"{folder}: {ROWS} is not the table that {ABOUT} describes: expected digest {named[:12]}, found "
            f"{found[:12]}. {_AGAIN}"
        )
    known = {"format", "digest", "recipe", "data", "rows", "counts", "questions"}
    rest = {k: str(v) for k, v in tree.items() if k not in known}
    questions = {str(id): str(named) for id, named in dict(tree.get("questions", {})).items()}
    return LabelFolder(folder, labels, found, recipe, data, rest, questions)


_AGAIN = "Make the labels again: `raypipe labels RECIPE --store URI`"


def _label(row: Mapping[str, Any]) -> Label:
    return Label(**{**row, "messages": tuple(Message(**turn) for turn in row["messages"])})


def write_review(path: Path, judged: Sequence[JudgedAnswer], into: str) -> int:
    """Writes a file for corrections: one line per question with a chat. Returns the number of lines."""
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
    """Reads a person's corrections from the lines marked `"use": true`, as question id -> (label, line).
    Raises DataError for a line without id or label, for two lines of a question, and if no line is marked."""
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
    """Raises ConfError if a share is below 0, or 1 or more."""
    if value is not None and not 0 <= value < 1:
        raise ConfError(f"{name}: expected a share from 0 up to, not including, 1; found {value:g}")


class LabelFolders:
    """Folders of labels (`evaluation.forgotten.TextFolders`), from which a forget removes texts."""

    def find(self, places: Sequence[Path]) -> list[Path]:
        found = dict.fromkeys(f.parent for place in places for f in sorted(place.rglob(ABOUT)))
        return [f for f in found if (f / ROWS).is_file()]

    def held(self, folder: Path, gone: Gone) -> tuple[str, int]:
        labels = read_labels(folder)
        return labels.digest, sum(_shows(x, gone) for x in labels.labels)

    def take_out(self, folder: Path, gone: Gone) -> None:
        found = read_labels(folder)
        if left := [x for x in found.labels if not _shows(x, gone)]:
            write_labels(folder, left, found.recipe, found.data, found.about, found.questions)
            return
        for name in (ABOUT, ROWS):
            (folder / name).unlink(missing_ok=True)


def _shows(label: Label, gone: Gone) -> bool:
    """Returns whether a label may show a removed text: an answer to its question rests on that text, or no
    stored answer is known to be safe. The second case does not apply to imported labels."""
    if label.question_id in gone.resting:
        return True
    known = any(label.question_id in ids for ids in gone.safe.values())
    return label.rule != "imported" and not known


FORGETS = LabelFolders()
