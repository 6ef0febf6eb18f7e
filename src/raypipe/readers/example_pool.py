"""Pool of examples: JSON lines of training questions with their answers.

    {"question": "Which corpus do they use?", "answer": "SQuAD", "document": "1909.00694",
     "explanation": "Section 4 names it."}

`document` and `explanation` may be missing. `raypipe examples` writes such a file from any data with answers.
The identity of a pool is the digest of the file's bytes. The file is read once for both its digest and its
examples, so a prompt shows the bytes that were checked.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from raypipe.core.errors import DataError
from raypipe.core.references import EntryContext, Reference, Tools
from raypipe.readers import lines
from raypipe.readers.rows import Fields, ReadCounts, UnusableLine

_MAKE = "`raypipe examples` makes such a file"


@dataclass(frozen=True, slots=True)
class ExampleRow:
    question: str
    answer: str
    document: str = ""  # url or id of the document that the question is about; "" if there is none
    explanation: str = ""  # why the answer is right; "" if there is none


@dataclass(frozen=True, slots=True)
class PoolRef(Reference[tuple[ExampleRow, ...]]):
    """Reference from a recipe to a pool of examples; `open` returns the pool's rows."""

    size: int  # number of rows of the file whose digest is `version`

    kinds: ClassVar[tuple[str, ...]] = ("examples",)
    about: ClassVar[str] = "examples"
    place: ClassVar[str] = f"FILE; {_MAKE}"
    is_evidence: ClassVar[bool] = False

    @classmethod
    def of_entry(cls, name: str, entry: Any, place: str, context: EntryContext) -> Self:
        return cls.of_file(name, Path(place)) if place else cls(name, "", "nowhere", 0)

    @classmethod
    def of_file(cls, name: str, path: Path) -> Self:
        """Makes the reference to a file, as a recipe stores it. Raises DataError if it is not a pool."""
        rows, version = _read(path)
        return cls(name, str(path.absolute()), version, len(rows))

    @classmethod
    def version_at(cls, path: Path) -> str:
        return _read(path)[1]

    def open(self, tools: Tools) -> tuple[ExampleRow, ...]:
        self.require_place()
        rows, version = _read(Path(self.where))
        self.require_version(version)
        return rows


def write_pool(path: Path, rows: Iterable[ExampleRow]) -> None:
    """Writes a pool, without empty fields; compresses it by gzip if the file's name ends in .gz."""
    filled = ({k: v for k, v in asdict(r).items() if v} for r in rows)
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in filled).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _read(path: Path) -> tuple[tuple[ExampleRow, ...], str]:
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as e:
        raise DataError(f"{path}: cannot be read as a pool of examples: {e}. {_MAKE}") from e
    rows = list[ExampleRow]()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            fields = Fields({"document": "", "explanation": ""} | lines.decode(line.encode(), ReadCounts()))
            shown = (fields.get(name) for name in ("document", "explanation"))
            rows.append(ExampleRow(fields.filled("question"), fields.filled("answer"), *shown))
        except UnusableLine as e:
            raise DataError(f"{path}:{number}: {e.fault.detail}. {_MAKE}") from e
    if not rows:
        raise DataError(f"{path}: expected examples, one a line, found none. {_MAKE}")
    return tuple(rows), f"examples:{hashlib.blake2b(content, digest_size=16).hexdigest()}"
