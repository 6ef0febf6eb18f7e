"""Relevance judgements to grades by query and document.

A line of BEIR's qrels/test.tsv, which has a header, or one of TREC's, which has none:

    query-id    corpus-id    score
    1    31715818    1

    1 0 31715818 1

A grade is a whole number; documents are relevant from 1 on. Knows these lines and nothing of what they judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from raypipe.core.errors import DataError
from raypipe.readers import files
from raypipe.readers.lines import split
from raypipe.readers.rows import ReadCounts, ReaderLimits

NAME = re.compile(r".+\.(?:tsv|trec|txt|qrels)(?:\.gz)?")
BEIR, TREC = "query-id corpus-id score", "query 0 document relevance"
FOLDER, SPLIT = "qrels", ("test.tsv", "test.tsv.gz")


def is_qrels(path: Path) -> bool:
    """Whether a file is named as judgements are: qrels.trec, or one of a folder qrels."""
    named = path.name.startswith(FOLDER) or path.parent.name == FOLDER
    return named and NAME.fullmatch(path.name) is not None


def of_folder(folder: Path) -> list[Path]:
    """The judgements of a data set's folder: files named qrels, or the test split of a folder qrels.

    Raises DataError for several splits of which none is the test split.
    """
    here = sorted(p for p in folder.iterdir() if p.is_file() and is_qrels(p))
    inside = folder / FOLDER
    splits = sorted(p for p in inside.iterdir() if is_qrels(p)) if inside.is_dir() else []
    tests = [p for p in splits if p.name in SPLIT] if len(splits) > 1 else splits
    if splits and not tests:
        names = ", ".join(p.name for p in splits)
        raise DataError(f"{inside}: expected test.tsv, found {names}. Name the file that is to be used")
    return [*here, *tests]


def read(paths: Iterable[Path], counts: ReadCounts, limits: ReaderLimits) -> dict[str, dict[str, int]]:
    """Query -> document -> grade. Raises DataError for a line that is none, and for two unlike grades."""
    grades: dict[str, dict[str, int]] = {}
    for path in paths:
        beir = False
        for number, raw, _ in split(files.stream(files.whole(path), counts, limits), limits.line_bytes):
            where = f"{path}:{number}"
            if raw is None:
                raise DataError(f"{where}: expected a judgement, found a line of many megabytes")
            try:
                text = raw.decode("utf-8-sig").strip()
            except UnicodeDecodeError as e:
                found = repr(raw[e.start : e.start + 8])
                raise DataError(f"{where}: expected UTF-8 text, found {found}") from e
            values = text.split("\t") if beir and text else text.split()
            if number == 1 and values == BEIR.split():
                beir = True
            elif values:
                query, document, grade = _fields(where, values, beir)
                if grades.setdefault(query, {}).setdefault(document, grade) != grade:
                    raise DataError(f"{where}: document {document!r} has two grades for query {query!r}")
                counts.judgements += 1
    return grades


def _fields(where: str, values: list[str], beir: bool) -> tuple[str, str, int]:
    names = BEIR if beir else TREC
    if len(values) != len(names.split()):
        raise DataError(f"{where}: expected {names!r}, found {' '.join(values)!r:.100}")
    query, document, grade = values if beir else (values[0], *values[2:])
    if not re.fullmatch(r"-?[0-9]{1,9}", grade):
        raise DataError(f"{where}: expected a whole number as grade, found {grade!r:.40}")
    return query, document, int(grade)
