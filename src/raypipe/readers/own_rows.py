"""Reader of the format `rows`: a user's own rows, under any field names, as questions and documents.

Before a file is read, its first rows show which field has which role, such as query or answer (`field_map`).

One record with common field names:

    {"qid": 17, "question": "who directed velora?", "answers": ["Anna Lindqvist", "A. Lindqvist"],
     "contexts": [{"url": "https://example.org/velora", "title": "Velora", "html": "<p>..."}]}

`turns` are earlier messages of the conversation: objects with `role` and `text`. An answer is a text, a
number, a list of them, or an object with `text` or `value` and `aliases` (SQuAD, TriviaQA). A document is a
text, an object, a pair of title and sentences, or the path of a file next to the data. Questions search the
whole store if their file has no field for documents or content. Rows of a file without a field for questions
are documents.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from raypipe.core.errors import DataError
from raypipe.core.records import Citation, Document, Fault, Gold, Layout, Question, digest
from raypipe.core.textfile import written
from raypipe.readers import row_documents, row_files
from raypipe.readers.conversation import number_of, turns_of
from raypipe.readers.documents import DocumentReader
from raypipe.readers.field_map import CONTENT, FieldMap, find, listed, missing
from raypipe.readers.fields import fields_of, order_of
from raypipe.readers.file_read import FileRead
from raypipe.readers.files import Input
from raypipe.readers.lines import JsonLine
from raypipe.readers.row_documents import ReadNamed, RowDocument, json_list, scalar_text
from raypipe.readers.rows import (
    LIMITS,
    BadLine,
    ReadCounts,
    ReaderLimits,
    Row,
    UnusableLine,
    blamed,
    kind,
    require_rows,
)
from raypipe.text.filters import ConditionError, Filters

NAME = "rows"
ANSWER_FIELDS = ("text", "value", "answer", "answers", "aliases")  # fields of an answer that is an object
LABELS = ("domain", "question_type", "made_by", "review")
TURN = "turn"  # label with the question's number in its conversation
DROP = "drop"  # value of `review` that omits the question


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Format `rows` with the fields that the user named. Callers pass it in place of a format's name."""

    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # role -> fields that the user named

    def id(self) -> str:
        named = json.dumps({role: list(names) for role, names in sorted(self.fields.items())})
        return f"{NAME} {named}" if self.fields else NAME


@dataclass(frozen=True, slots=True)
class MappedFile:
    file: Input
    fields: FieldMap
    first: Sequence[Mapping[str, Any]]  # first rows, from which the fields were inferred


def mapped(paths: Iterable[str | Path], format: RowFormat, limits: ReaderLimits = LIMITS) -> list[MappedFile]:
    """Lists the files with rows under `paths`, and their maps of fields. Raises ConfError if no file has a
    field that the user named, DataError if a file is damaged or has no field for questions or documents."""
    files = row_files.find(paths)
    first = {f.name: row_files.first(f, limits) for f in files}
    if not any(first.values()):
        counts = ReadCounts()
        lines = (r for f in files for r in row_files.rows(f, counts, limits))
        bad = [BadLine(r.where, r.fault.reason, r.fault.detail) for r in lines if r.fault is not None]
        require_rows(first, counts, bad[:3])
        raise DataError(f"{', '.join(first)}: none of the first {row_files.PEEKED} rows can be read")
    missing(format.fields, first)
    known = ((file, seen) for file in files if (seen := first[file.name]))
    return [MappedFile(file, find(file.name, seen, format.fields), seen) for file, seen in known]


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    return [file.parts[0] for file in row_files.find(paths)]


def rows(format: RowFormat, paths: Iterable[str | Path], read: FileRead) -> Iterator[Row]:
    counts, limits, newest = read.counts, read.limits, read.seen.newest
    files = [replace(m, file=replace(m.file, span=read.span)) for m in mapped(paths, format, limits)]
    for m in files:
        if not m.fields.asks() and "modified" in m.fields.fields:  # dated pages are read twice
            for line in row_files.rows(m.file, ReadCounts(), limits):
                with suppress(UnusableLine), blamed():  # the second reading reports the fault
                    if (fetch := _dated_page(line.value or {}, m.fields)) is not None:
                        newest.note(*fetch, line.where)
    with closing(DocumentReader()) as documents:
        for m in files:
            fields, named = m.fields, partial(row_documents.read_named, m.file.parts[0].parent, documents)
            make = _question if fields.asks() else _document
            for line in row_files.rows(m.file, counts, limits):
                value = line.value or {}
                review, made_by = (scalar_text(fields.get(value, role)) for role in ("review", "made_by"))
                try:
                    with blamed():
                        fetch = _dated_page(value, fields)
                except UnusableLine as e:
                    yield read.refused(line.where, e)
                    continue
                if review.lower() == DROP:
                    counts.dropped_rows += 1
                elif fetch is not None and not newest.has(*fetch, line.where):
                    counts.older_pages += 1
                else:
                    for row in read.settled(line.where, partial(make, line, fields, named, counts)):
                        if row.used:
                            counts.page_faults += len(row.faults)
                            counts.made_questions += bool(made_by)
                            counts.unreviewed_questions += bool(made_by) and not review
                        yield row


def referenced(paths: Iterable[str | Path], format: RowFormat) -> list[Path]:
    """Lists the files that rows name as documents. Searches a data file if it has a field of paths, or if one
    of its first rows names a file. Searching the other data files would take longer than hashing them."""
    found: dict[Path, None] = {}
    for m in mapped(paths, format):

        def named(value: Mapping[str, Any], m: MappedFile = m) -> Iterator[Path]:
            """Yields the existing files that a row names; their bytes are part of the data."""
            with suppress(UnusableLine), blamed():  # the row's reader reports the faults
                for item in row_documents.items_of(value, m.fields):
                    with suppress(UnusableLine):
                        if (name := row_documents.path_of(item, m.fields.inner)) is not None:
                            yield row_documents.inside(m.file.parts[0].parent, name, "")

        if "path" in {*m.fields.fields, *m.fields.inner} or any(True for v in m.first for _ in named(v)):
            lines = row_files.rows(m.file, ReadCounts())
            found |= dict.fromkeys(path for line in lines for path in named(line.value or {}))
    return list(found)


def check(paths: Iterable[str | Path], format: RowFormat) -> None:
    """Checks files before a read. Raises as `mapped` does, and DataError if any part of a CSV is damaged."""
    for m in mapped(paths, format):
        if m.file.kind == "csv":
            deque(row_files.rows(m.file, ReadCounts()), 0)


def _question(line: JsonLine, fields: FieldMap, read: ReadNamed, counts: ReadCounts) -> Row:
    value, asked = line.unwrap(), fields.fields["query"][0]
    text = row_documents.required_text(fields.get(value, "query"), asked)
    if not text.strip():
        raise UnusableLine("missing_field", f"{asked}: expected text, found a blank one")
    given = (text for answer in fields.all(value, "answer") for text in _flat(json_list(answer), counts))
    answers = tuple(dict.fromkeys(text for text in given if text and not text.isspace()))
    faults, found = list[Fault](), list[RowDocument]()
    for place, item in enumerate(row_documents.items_of(value, fields)):
        try:
            document = row_documents.document_of(item, read, f"documents[{place}]", fields.inner)
        except UnusableLine as e:
            faults.append(e.fault)
            continue
        if document is None:
            counts.empty_pages += 1
        else:
            found.append(document)
            faults += document.faults
    searches_all = fields.fields.keys().isdisjoint(("documents", *CONTENT))
    asked_at, where = (scalar_text(fields.get(value, role)) for role in ("time", "where"))
    try:
        Filters(where=where)
    except ConditionError as e:
        raise UnusableLine("wrong_type", str(e)) from e
    turns = None
    if "turns" in fields.fields:
        name, listing = fields.fields["turns"][0], json_list(fields.get(value, "turns"))
        # A number in a field that the user did not name is a count of turns, so there are no messages.
        count = isinstance(listing, int | float) and "turns" not in fields.named
        turns = () if listing is None or listing == "" or count else turns_of(listing, name)
    said = (part for t in turns or () for part in (t.role, t.text))
    named = digest(text, asked_at, *(d.source.id for d in found), *filter(None, [where]), *said)[:16]
    id = scalar_text(fields.get(value, "id")) or named
    cited = (
        Citation(id, rank, d.url, d.modified, d.source.id, None, d.name.id if d.name else None)
        for rank, d in enumerate(found)
    )
    citations = None if searches_all else tuple(cited)
    counts.questions_without_pages += citations == ()
    labels = {n: label for n in LABELS if (label := scalar_text(fields.get(value, n)))}
    labels |= {} if turns is None else {TURN: str(number_of(turns))}
    sources = {s.id: s for d in found for s in d.sources()}
    question = Question(id, text, "", asked_at, citations, where=where, turns=turns or ())
    gold = Gold(id, answers, labels) if answers else None
    return Row(line.where, question, gold, sources=tuple(sources.values()), faults=tuple(faults))


def _document(line: JsonLine, fields: FieldMap, read: ReadNamed, counts: ReadCounts) -> Row | None:
    value = line.unwrap()
    [item] = row_documents.items_of(value, fields)
    found = row_documents.document_of(item, read, "the row", {})
    if found is None:
        return None
    source = found.source.id
    id = scalar_text(fields.get(value, "id")) or found.url or digest(source)[:16]
    layout = Layout(id, source, found.url, found.title, found.pages, found.sections) if found.url else None
    # Fields of the document: `modified` as date, entries of an object `metadata`, columns without a role.
    used = {name.partition(".")[0] for names in fields.fields.values() for name in names}
    inner = value.get("metadata")
    given = {**(inner if isinstance(inner, Mapping) else {}), **value}
    own = fields_of({name: v for name, v in given.items() if name not in used})
    own = dict(sorted({**fields_of({"date": found.modified}), **own}.items()))
    document = Document(id, found.title, source, own)
    return Row(line.where, document=document, layout=layout, sources=found.sources(), faults=found.faults)


def _dated_page(value: Mapping[str, Any], fields: FieldMap) -> tuple[str, str] | None:
    """Returns (name or url, date) of a row that is a page with a date, else None."""
    if fields.asks():
        return None
    name, url = (scalar_text(fields.get(value, role)) for role in ("id", "url"))
    date = order_of(fields.get(value, "modified"), ".".join(fields.fields.get("modified", ())))
    return (name or url, date) if (name or url) and date else None


def _flat(answer: Any, counts: ReadCounts) -> Iterator[str]:
    if answer is None or (isinstance(answer, float) and math.isnan(answer)):
        return
    if isinstance(answer, str):
        yield answer
    elif isinstance(answer, row_documents.SCALARS):  # booleans count as numbers too
        counts.number_golds += 1
        yield written(answer)
    elif isinstance(answer, list | Mapping):
        inner = answer if isinstance(answer, list) else [answer[n] for n in ANSWER_FIELDS if n in answer]
        if isinstance(answer, Mapping) and not inner:
            expected = f"expected an object with {', '.join(ANSWER_FIELDS)}"
            found = f"found the fields {listed([*map(str, answer)])}"
            raise UnusableLine("wrong_type", f"answer: {expected}; {found}")
        for one in inner:
            yield from _flat(one, counts)
    else:
        raise UnusableLine("wrong_type", f"answer: expected text, found {kind(answer)}")
