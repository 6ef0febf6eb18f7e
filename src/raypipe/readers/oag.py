r"""Reader of OAG-QA's files: papers, and questions over all papers.

One line of qa-train.txt (qa-valid-wo-ans.txt and qa-test-wo-ans-new.txt have no `pids`):

    {"question": "How do graph nets scale?", "body": "<p>I read ...</p>", "pids": ["5b67b4b4", "5e5e189a"]}

pid-to-title-abs-new.json and pid_to_title_abs_update_filter.json each hold one object:

    {"5b67b4b4": {"title": "Sampling in graph nets", "abstract": "We ..."}, ...}

File names may have `_` instead of `-`, .jsonl instead of .txt, and .gz at the end. A paper's source is its
title on one line, a newline and its abstract. Questions have no ids in the file. The id is the file's name
with `-` and the line's number, such as "qa-train-0000001", so that ids sort in the order of lines. The papers
in `pids` are the question's gold, each with grade 1.
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
from raypipe.readers.rows import Fields, FileRead, ReadCounts, ReaderLimits, Row, UnusableLine, source_of

QUESTIONS = re.compile(r"\A(?P<stem>qa[-_].+?)\.(?:txt|jsonl|json)(?:\.gz)?")
PAPERS = re.compile(r"\A(?P<stem>pid[-_]to[-_]title[-_]abs.*?)\.json(?:\.gz)?")
PAPER_CHARS = 4 << 20  # most characters of a paper's JSON; an abstract has a few thousand
_BLANK = re.compile(r"[ \t\r\n]*+")
_NAMED = "OAG-QA's files, named as qa-train.txt or pid-to-title-abs-new.json"


def is_oag(file: Path) -> bool:
    return bool(QUESTIONS.fullmatch(file.name) or PAPERS.fullmatch(file.name))


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    return sorted(files.named_files(paths, is_oag, _NAMED), key=lambda p: not PAPERS.fullmatch(p.name))


def rows(paths: Iterable[str | Path], read: FileRead) -> Iterator[Row]:
    """Yields a row for each paper, then for each question. Raises DataError if a file of papers is not one
    object."""
    counts, limits = read.counts, read.limits
    known = False  # whether papers were read, so that golds can be checked
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
    """Yields (FILE:PID, pid, JSON) for each paper, streamed because a file has hundreds of MB."""
    chunks = files.stream(files.whole(path), counts, limits)
    decoder, scan = codecs.getincrementaldecoder("utf-8-sig")(), json.JSONDecoder().raw_decode
    text, at, before = "", 0, 0  # text in memory, offset of its next character, characters dropped before it

    def error(message: str) -> DataError:
        return DataError(f"{path}: character {before + at}: {message}. Get the file again.")

    def more() -> bool:
        """Reads one more chunk into `text`. Returns False at the end of the file."""
        nonlocal text, at, before
        chunk = next(chunks, None)
        try:
            fresh = decoder.decode(chunk or b"", final=chunk is None)
        except UnicodeDecodeError as e:
            raise error(f"expected UTF-8, found {e.object[e.start : e.start + 8]!r}") from e
        text, at, before = text[at:] + fresh, 0, before + at
        return chunk is not None

    def next_sign() -> str:
        """Returns the next character that is not blank; "" at the end of the file."""
        nonlocal at
        while True:
            at = _BLANK.match(text, at).end()  # type: ignore[union-attr]
            if at < len(text) or not more():
                return text[at : at + 1]

    def expect(sign: str) -> None:
        nonlocal at
        if next_sign() != sign:
            wanted = f"{sign!r} of an object, pid -> title and abstract" if sign else "the end"
            raise error(f"expected {wanted}, found {text[at : at + 20]!r}")
        at += len(sign)

    def value() -> tuple[Any, str]:
        nonlocal at
        next_sign()
        while True:
            try:
                found, end = scan(text, at)
                raw, at = text[at:end], end
                return found, raw
            except RecursionError as e:
                raise error("expected JSON: it nests hundreds deep") from e
            except json.JSONDecodeError as e:
                if len(text) - at > PAPER_CHARS or not more():
                    raise error(f"expected JSON: {e.msg}") from e

    expect("{")
    another = next_sign() != "}"
    while another:
        pid, _ = value()
        if not isinstance(pid, str):
            raise error(f"expected the id of a paper, found {pid!r:.60}")
        expect(":")
        yield f"{path}:{pid}", pid, value()[1]
        if another := next_sign() == ",":
            expect(",")
    expect("}")
    expect("")
