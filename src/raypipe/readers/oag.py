r"""OAG-QA's files to papers and questions over all of them.

A line of qa-train.txt; qa-valid-wo-ans.txt and qa-test-wo-ans-new.txt have no `pids`:

    {"question": "How do graph nets scale?", "body": "<p>I read ...</p>", "pids": ["5b67b4b4", "5e5e189a"]}

pid-to-title-abs-new.json and pid_to_title_abs_update_filter.json are one object each:

    {"5b67b4b4": {"title": "Sampling in graph nets", "abstract": "We ..."}, ...}

Names may have `_` where these have `-`, .jsonl for .txt, and .gz behind them. A paper's source is its title
on one line, a newline and its abstract. A question has no id of its own: it is the file's name, with `-`, and
its line, so that ids sort as the lines stand. The papers of `pids` are its gold, each of grade 1.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from raypipe.core.errors import DataError
from raypipe.core.records import Document, Gold, Question, Source, source_id
from raypipe.readers import files, lines
from raypipe.readers.rows import DuplicateCheck, ReadCounts, ReaderLimits, Row, UnusableLine, field, filled

QUESTIONS = re.compile(r"(?P<stem>qa[-_].+?)\.(?:txt|jsonl|json)(?:\.gz)?")
PAPERS = re.compile(r"(?P<stem>pid[-_]to[-_]title[-_]abs.*?)\.json(?:\.gz)?")
PAPER_CHARS = 4 << 20  # of one paper in the file, title and abstract together: abstracts have some thousand


def is_oag(file: Path) -> bool:
    """Whether a file is named as one of OAG-QA is."""
    return bool(QUESTIONS.fullmatch(file.name) or PAPERS.fullmatch(file.name))


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    """The files that paths name, papers first. Raises DataError for a missing file or another name."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise DataError(f"{path}: no such file or folder. Check the path, or get the data first.")
        inside = sorted(p for p in path.iterdir() if is_oag(p)) if path.is_dir() else [path]
        if not inside or not is_oag(inside[0]):
            raise DataError(
                f"{path}: expected OAG-QA's files, named as qa-train.txt or pid-to-title-abs-new.json, found "
                f"none"
            )
        found |= dict.fromkeys(inside)
    return sorted(found, key=lambda p: PAPERS.fullmatch(p.name) is None)


def rows(paths: Iterable[str | Path], counts: ReadCounts, limits: ReaderLimits) -> Iterator[Row]:
    """A row for each paper, then one for each question. Raises DataError for a file of papers that is no
    object from end to end."""
    papers, questions = DuplicateCheck(), DuplicateCheck()
    known = False  # whether papers were read, so that golds can be held against them
    for path in files_of(paths):
        if PAPERS.fullmatch(path.name):
            known = True
            for where, pid, value in _papers(path, counts, limits):
                counts.lines += 1
                yield from _counted(where, partial(_paper, where, pid, value, counts), papers, counts)
            continue
        stem = _stem(path)
        for line in lines.read([_input(path)], counts, limits):
            for row in _counted(line.where, partial(_question, line, stem, counts), questions, counts):
                if known and row.gold is not None:
                    counts.unknown_golds += sum(not papers.knows(pid) for pid in row.gold.grades)
                yield row


def _counted(
    where: str, make: Callable[[], Row | None], seen: DuplicateCheck, counts: ReadCounts
) -> Iterator[Row]:
    """The row, unless it is empty or came before; the fault of one that cannot be used."""
    try:
        row = make()
        if row is None:
            counts.empty_documents += 1
            return
        said = row.document or row.question
        assert said is not None
        if seen.repeats(said.id, (said, row.gold), where):
            counts.repeated_rows += 1
            return
    except UnusableLine as e:
        counts.faults += 1
        yield Row(where, faults=(e.fault,))
        return
    counts.rows += 1
    yield row


def _paper(where: str, pid: str, raw: str, counts: ReadCounts) -> Row | None:
    value = lines.decode(raw.encode(), counts)
    title, abstract = (_text(value, name, counts) for name in ("title", "abstract"))
    content = f"{' '.join(title.split())}\n{abstract}"
    if content.isspace():
        return None
    source = Source(source_id("document", content), "document", content)
    return Row(where, document=Document(pid, " ".join(title.split()), source.id), sources=(source,))


def _question(line: lines.JsonLine, stem: str, counts: ReadCounts) -> Row:
    value = line.unwrap()
    id = f"{stem}-{line.number:07d}"
    question = Question(id, filled(value, "question"), _text(value, "body", counts))
    if "pids" not in value:
        return Row(line.where, question)
    pids = field(value, "pids", list)
    if strange := [p for p in pids if not isinstance(p, str) or not p]:
        raise UnusableLine("wrong_type", f"pids: expected ids of papers as texts, found {strange[0]!r:.60}")
    gold = Gold(id, (), {}, dict.fromkeys(pids, 1)) if pids else None
    return Row(line.where, question, gold)


def _text(value: Mapping[str, Any], name: str, counts: ReadCounts) -> str:
    """A text that may be null or missing."""
    if value.get(name) is None:
        counts.null_fields += 1
        return ""
    return str(field(value, name, str))


def _stem(path: Path) -> str:
    found = QUESTIONS.fullmatch(path.name)
    assert found is not None
    return found["stem"].replace("_", "-")


def _input(path: Path) -> files.Input:
    return files.Input(str(path), (path,), False, "gz" if path.suffix == ".gz" else "")


def _papers(path: Path, counts: ReadCounts, limits: ReaderLimits) -> Iterator[tuple[str, str, str]]:
    """Where it stands, the pid and the JSON of each paper, one at a time: a file has hundreds of MB."""
    text = _Text(path, counts, limits)
    text.expect("{")
    if text.skip("}"):
        return text.expect_end()
    while True:
        pid, _ = text.value()
        if not isinstance(pid, str):
            raise text.error(f"expected the id of a paper, found {pid!r:.60}")
        text.expect(":")
        _, raw = text.value()
        yield f"{path}:{pid}", pid, raw
        if not text.skip(","):
            text.expect("}")
            return text.expect_end()


class _Text:
    """The text of a file, read as far as it is needed."""

    def __init__(self, path: Path, counts: ReadCounts, limits: ReaderLimits) -> None:
        self._path = path
        self._chunks = files.stream(_input(path), counts, limits)
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._json = json.JSONDecoder()
        self._text, self._at, self._whole, self._before = "", 0, False, 0

    def value(self) -> tuple[Any, str]:
        """The next JSON value, and its text. Raises DataError for what is none."""
        self._blank()
        while True:
            try:
                found, end = self._json.raw_decode(self._text, self._at)
            except (json.JSONDecodeError, RecursionError) as e:
                if (
                    isinstance(e, RecursionError)
                    or len(self._text) - self._at > PAPER_CHARS
                    or not self._more()
                ):
                    raise self.error(f"expected JSON: {getattr(e, 'msg', 'it nests hundreds deep')}") from e
                continue
            raw, self._at = self._text[self._at : end], end
            return found, raw

    def expect(self, sign: str) -> None:
        if not self.skip(sign):
            found = self._text[self._at : self._at + 20]
            raise self.error(f"expected {sign!r} of an object, pid -> title and abstract, found {found!r}")

    def skip(self, sign: str) -> bool:
        """Whether the next sign is this one, which is passed then."""
        self._blank()
        there = self._text.startswith(sign, self._at)
        self._at += there
        return there

    def expect_end(self) -> None:
        self._blank()
        if self._at < len(self._text):
            raise self.error(f"expected the end, found {self._text[self._at : self._at + 20]!r}")

    def error(self, message: str) -> DataError:
        return DataError(f"{self._path}: character {self._before + self._at}: {message}. Get the file again.")

    def _blank(self) -> None:
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._text) or not self._more():
                return

    def _more(self) -> bool:
        """Reads on; False at the end."""
        if self._whole:
            return False
        chunk = next(self._chunks, None)
        try:
            more = self._decoder.decode(chunk or b"", final=chunk is None)
        except UnicodeDecodeError as e:
            raise self.error(f"expected UTF-8, found {e.object[e.start : e.start + 8]!r}") from e
        self._whole = chunk is None
        self._before += self._at
        self._text, self._at = self._text[self._at :] + more, 0
        return True
