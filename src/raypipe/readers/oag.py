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
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from raypipe.core.errors import DataError
from raypipe.core.records import Document, Gold, Question
from raypipe.readers import files, lines
from raypipe.readers.rows import Fields, ReadCounts, ReaderLimits, Row, Seen, UnusableLine, settled, source_of

QUESTIONS = re.compile(r"\A(?P<stem>qa[-_].+?)\.(?:txt|jsonl|json)(?:\.gz)?")
PAPERS = re.compile(r"\A(?P<stem>pid[-_]to[-_]title[-_]abs.*?)\.json(?:\.gz)?")
PAPER_CHARS = 4 << 20  # of one paper in the file, title and abstract together: abstracts have some thousand
_NAMED = "OAG-QA's files, named as qa-train.txt or pid-to-title-abs-new.json"


def is_oag(file: Path) -> bool:
    return bool(QUESTIONS.fullmatch(file.name) or PAPERS.fullmatch(file.name))


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    return sorted(files.named_files(paths, is_oag, _NAMED), key=lambda p: not PAPERS.fullmatch(p.name))


def rows(paths: Iterable[str | Path], counts: ReadCounts, limits: ReaderLimits, seen: Seen) -> Iterator[Row]:
    """A row for each paper, then for each question. Raises DataError for papers that are no one object."""
    known = False  # whether papers were read, so that golds can be held against them
    for path in files_of(paths):
        if PAPERS.fullmatch(path.name):
            known = True
            for where, pid, value in _papers(path, counts, limits):
                counts.lines += 1
                yield from settled(where, partial(_paper, where, pid, value, counts), counts, seen.repeats)
            continue
        for line in lines.read([files.whole(path)], counts, limits):
            for row in settled(line.where, partial(_question, line, path, counts), counts, seen.repeats):
                if known and row.gold is not None:
                    counts.unknown_golds += sum(not seen.documents.knows(pid) for pid in row.gold.grades)
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
    """Yields place, pid and JSON of each paper, one at a time: a file has hundreds of MB."""
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
        self._chunks = files.stream(files.whole(path), counts, limits)
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._json = json.JSONDecoder()
        self._text, self._at, self._whole, self._before = "", 0, False, 0

    def value(self) -> tuple[Any, str]:
        self._blank()
        while True:
            try:
                found, end = self._json.raw_decode(self._text, self._at)
            except RecursionError as e:
                raise self.error("expected JSON: it nests hundreds deep") from e
            except json.JSONDecodeError as e:
                if len(self._text) - self._at > PAPER_CHARS or not self._more():
                    raise self.error(f"expected JSON: {e.msg}") from e
                continue
            raw, self._at = self._text[self._at : end], end
            return found, raw

    def expect(self, sign: str) -> None:
        if not self.skip(sign):
            found = self._text[self._at : self._at + 20]
            raise self.error(f"expected {sign!r} of an object, pid -> title and abstract, found {found!r}")

    def skip(self, sign: str) -> bool:
        """Returns whether the next sign is this one, which is passed then."""
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
