"""A folder of training labels: labels.parquet, a row for each question, and labels.json, what they are.

`raypipe labels` writes it, and training an adapter reads it. Knows the two files alone; not how a label came
about, which `training_labels` does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from raypipe.core.errors import DataError
from raypipe.core.llm import Chat, Message, MessageRole
from raypipe.core.records import digest
from raypipe.metrics.textfile import replacing, write_json

FORMAT = 1  # of both files
ROWS, ABOUT = "labels.parquet", "labels.json"

LabelRule: TypeAlias = Literal["1", "2", "3.1", "3.2.1", "3.2.2", "imported"]
"""The rule of db3's label building (section 3.3 of its paper) that gave a label; imported: a file did."""
RULES: tuple[LabelRule, ...] = get_args(LabelRule)

Split: TypeAlias = Literal["train", "held-out"]
"""What a row is for: weights are fitted to train rows, and training is stopped by the held-out ones."""
SPLITS: tuple[Split, ...] = get_args(Split)

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
    """One training example: a chat, and what the model should say to it."""

    question_id: str
    messages: Chat  # as the recipe's generate step sends it: system and user
    label: str  # the assistant's turn
    rule: LabelRule
    domain: str | None = None  # of the question, where the data names one
    split: Split = "train"
    gold: str | None = None  # the first true answer; None: the data has none


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
    """How many labels each rule gave, and how many questions each domain and each split has."""
    by = {
        "rule": Counter[str](x.rule for x in labels),
        "domain": Counter[str](x.domain or "" for x in labels),
        "split": Counter[str](x.split for x in labels),
    }
    return {name: dict(sorted(found.items())) for name, found in by.items()}


def write_labels(
    folder: Path, labels: Sequence[Label], recipe: str, data: str, about: Mapping[str, str] | None = None,
    questions: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """Writes labels into a folder, labels.json last, and returns their digest.

    `recipe` and `data` are digests; `about`: what else labels.json is to say; `questions`: as a LabelFolder
    has them, of these and other labels. Raises DataError for no labels and for two of one question.
    """
    _require(labels, str(folder))
    with replacing(folder / ROWS) as draft:
        pq.write_table(pa.Table.from_pylist([asdict(x) for x in labels], SCHEMA), draft, compression="zstd")
    named = labels_digest(labels)
    tree = {"format": FORMAT, "digest": named, "recipe": recipe, "data": data, "rows": len(labels),
            "counts": counts(labels), **(about or {})}  # fmt: skip
    if questions:
        tree["questions"] = {x.question_id: questions[x.question_id] for x in labels}
    write_json(folder / ABOUT, tree)
    return named


def read_labels(folder: Path) -> LabelFolder:
    """The labels of a folder, whole. Raises DataError for a folder without them, for files that do not belong
    together, for rows of another form, and for no rows."""
    tree = _about(folder / ABOUT)
    try:
        table = pq.read_table(folder / ROWS)
    except (OSError, pa.ArrowInvalid) as e:
        raise DataError(f"{folder / ROWS}: expected a table of labels ({e}). {_AGAIN}") from e
    if lacking := [name for name in SCHEMA.names if name not in table.column_names]:
        raise DataError(
            f"{folder / ROWS}: expected the columns {', '.join(SCHEMA.names)}; {lacking[0]!r} is missing. "
            f"{_AGAIN}"
        )
    try:
        rows = table.select(SCHEMA.names).cast(SCHEMA).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as e:
        raise DataError(f"{folder / ROWS}: expected columns of {SCHEMA} ({e}). {_AGAIN}") from e
    labels = tuple(_label(row, f"{folder / ROWS}: row {n}") for n, row in enumerate(rows, 1))
    _require(labels, str(folder))
    if (found := labels_digest(labels)) != tree["digest"]:
        raise DataError(
            f"{folder}: {ROWS} is not the table that {ABOUT} is of: expected rows of digest "
            f"{str(tree['digest'])[:12]}, found {found[:12]}. {_AGAIN}"
        )
    known = {"format", "digest", "recipe", "data", "rows", "counts", "questions"}
    rest = {k: str(v) for k, v in tree.items() if k not in known}
    questions = {str(id): str(named) for id, named in dict(tree.get("questions", {})).items()}
    return LabelFolder(folder, labels, found, str(tree["recipe"]), str(tree["data"]), rest, questions)


_AGAIN = "Make the labels again: `raypipe labels RECIPE --store URI`"


def _about(path: Path) -> dict[str, Any]:
    try:
        tree: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise DataError(
            f"{path.parent}: expected a folder of labels with {ABOUT} and {ROWS} ({e}). {_AGAIN}"
        ) from e
    wanted = ("digest", "recipe", "data")
    if not isinstance(tree, dict) or any(k not in tree for k in wanted) or tree.get("format") != FORMAT:
        raise DataError(f"{path}: expected format {FORMAT} with digest, recipe and data. {_AGAIN}")
    return tree


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


def _label(row: Mapping[str, Any], where: str) -> Label:
    for name in ("question_id", "label"):
        if not isinstance(row[name], str):
            raise DataError(f"{where}: expected text as {name}, found {row[name]!r}")
    for name, allowed in (("rule", RULES), ("split", SPLITS)):
        if row[name] not in allowed:
            known = ", ".join(allowed)
            raise DataError(f"{where}: expected {name} to be one of {known}, found {row[name]!r}")
    turns = row["messages"] or []
    odd = any(t is None or t["content"] is None or t["role"] not in get_args(MessageRole) for t in turns)
    if not turns or odd or turns[-1]["role"] != "user":
        raise DataError(f"{where}: expected messages, the last one of the user, found {turns!r:.120}")
    return Label(**{**row, "messages": tuple(Message(**t) for t in turns)})
