r"""Reader of OAG-QA's files: papers, and questions that search all papers.

One line of qa-train.txt (qa-valid-wo-ans.txt and qa-test-wo-ans-new.txt have no `pids`):

    {"question": "How do graph nets scale?", "body": "<p>I read ...</p>", "pids": ["5b67b4b4", "5e5e189a"]}

pid-to-title-abs-new.json and pid_to_title_abs_update_filter.json each hold one object:

    {"5b67b4b4": {"title": "Sampling in graph nets", "abstract": "We ..."}, ...}

File names may have `_` instead of `-`, .jsonl instead of .txt, and .gz at the end. A paper's source is its
title on one line, a newline and its abstract. The id of a question is the file's name and the line's number,
such as "qa-train-0000001", so that ids sort in the order of lines. The papers in `pids` are the question's
gold, each with grade 1; a question without them has no gold.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from raypipe.core.errors import DataError
from raypipe.core.records import Document, Gold, Question
from raypipe.readers import files, lines
from raypipe.readers.file_read import FileRead
from raypipe.readers.rows import Fields, ReadCounts, ReaderLimits, Row, UnusableLine, source_of

QUESTIONS = re.compile(r"\A(?P<stem>qa[-_].+?)\.(?:txt|jsonl|json)(?:\.gz)?")
PAPERS = re.compile(r"\A(?P<stem>pid[-_]to[-_]title[-_]abs.*?)\.json(?:\.gz)?")
PAPER_CHARS = 4 << 20  # characters within which a paper's JSON must end; an abstract has a few thousand
_BLANK = re.compile(r"[ \t\r\n]*+")
_NAMED = "OAG-QA's files, named as qa-train.txt or pid-to-title-abs-new.json"


def is_oag(file: Path) -> bool:
    return bool(QUESTIONS.fullmatch(file.name) or PAPERS.fullmatch(file.name))


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    return sorted(files.named_files(paths, is_oag, _NAMED), key=lambda p: not PAPERS.fullmatch(p.name))


def rows(paths: Iterable[str | Path], read: FileRead) -> Iterator[Row]:
    """Yields a row for each paper, then for each question. Raises DataError if a file is damaged, or if a
    file of papers is not one JSON object."""
    counts, limits = read.counts, read.limits
    known = False  # whether papers were read; only then golds are checked
    for path in files_of(paths):
        if PAPERS.fullmatch(path.name):
            known = True
            for where, pid, value in _papers(path, counts, limits):
                counts.lines += 1
                yield from read.settled(where, partial(_paper, where, pid, value, counts))
            continue
        for line in lines.read([files.whole(path)], counts, limits):
            for row in read.settled(line.where, partial(_question, line, path, counts)):
                if known and row.gold is not None:
                    counts.unknown_golds += sum(not read.seen.documents.knows(pid) for pid in row.gold.grades)
                yield row


def _paper(where: str, pid: str, raw: str, counts: ReadCounts) -> Row | None:
    value = lines.decode(raw.encode(), counts)
    title, abstract = (_text(value, name, counts) for name in ("title", "abstract"))
    title = " ".join(title.split())
    content = f"{title}\n{abstract}"
    if content.isspace():
        return None
    source = source_of("document", content)
    return Row(where, document=Document(pid, title, source.id), sources=(source,))


def _question(line: lines.JsonLine, path: Path, counts: ReadCounts) -> Row:
    value, name = line.unwrap(), QUESTIONS.fullmatch(path.name)
    assert name is not None
    id = f"{name['stem'].replace('_', '-')}-{line.number:07d}"
    question = Question(id, Fields(value).filled("question"), _text(value, "body", counts))
    pids = Fields(value).get("pids", list) if "pids" in value else []
    if strange := [p for p in pids if not isinstance(p, str) or not p]:
        raise UnusableLine("wrong_type", f"pids: expected ids of papers as texts, found {strange[0]!r:.60}")
    return Row(line.where, question, Gold(id, (), {}, dict.fromkeys(pids, 1)) if pids else None)


def _text(value: Mapping[str, Any], name: str, counts: ReadCounts) -> str:
    if value.get(name) is None:
        counts.null_fields += 1
        return ""
    return str(Fields(value).get(name))


def _papers(path: Path, counts: ReadCounts, limits: ReaderLimits) -> Iterator[tuple[str, str, str]]:
    """Yields (FILE:PID, pid, JSON) for each paper. The file is streamed, because it has hundreds of MB."""
    text = _JsonText(path, files.stream(files.whole(path), counts, limits))
    text.expect("{")
    another = text.next_sign() != "}"
    while another:
        pid, _ = text.value()
        if not isinstance(pid, str):
            raise text.error(f"expected the id of a paper, found {pid!r:.60}")
        text.expect(":")
        yield f"{path}:{pid}", pid, text.value()[1]
        if another := text.next_sign() == ",":
            text.expect(",")
    text.expect("}")
    text.expect("")


class _JsonText:
    """JSON text of a file, read by chunks and taken value by value. A new chunk drops what was taken."""

    def __init__(self, path: Path, chunks: Iterator[bytes]) -> None:
        self._path, self._chunks = path, chunks
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._scan = json.JSONDecoder().raw_decode
        self._text, self._at = "", 0  # held text, and the offset in it of the next character
        self._before = 0  # number of characters that were dropped before the held text

    def error(self, message: str) -> DataError:
        return DataError(f"{self._path}: character {self._before + self._at}: {message}. Get the file again.")

    def next_sign(self) -> str:
        """Returns the next character that is not blank; "" at the end of the file."""
        while True:
            self._at = _BLANK.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def expect(self, sign: str) -> None:
        """Takes the next nonblank character. Raises DataError if it is not `sign`; "" means the end."""
        if self.next_sign() != sign:
            wanted = f"{sign!r} of an object, pid -> title and abstract" if sign else "the end"
            raise self.error(f"expected {wanted}, found {self._text[self._at : self._at + 20]!r}")
        self._at += len(sign)

    def value(self) -> tuple[Any, str]:
        """Takes the next JSON value. Returns the value and its text. Raises DataError if there is none."""
        self.next_sign()
        while True:
            try:
                found, end = self._scan(self._text, self._at)
                raw, self._at = self._text[self._at : end], end
                return found, raw
            except RecursionError as e:
                raise self.error("expected JSON: it nests hundreds deep") from e
            except json.JSONDecodeError as e:
                if len(self._text) - self._at > PAPER_CHARS or not self._more():
                    raise self.error(f"expected JSON: {e.msg}") from e

    def _more(self) -> bool:
        """Reads one more chunk. Returns False at the end of the file."""
        chunk = next(self._chunks, None)
        try:
            fresh = self._decode(chunk or b"", final=chunk is None)
        except UnicodeDecodeError as e:
            raise self.error(f"expected UTF-8, found {e.object[e.start : e.start + 8]!r}") from e
        self._text, self._at, self._before = self._text[self._at :] + fresh, 0, self._before + self._at
        return chunk is not None
