"""What `--json` prints of data that come in: invented sets, ingests, made questions, parsed pages, faults."""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

from pydantic import with_config
from typing_extensions import TypedDict

from raypipe.api.made_questions import QuestionsPlan
from raypipe.api.previews import FileFields, FirstDocument, FirstQuestion
from raypipe.api.run_outputs import (
    STRICT,
    from_fields,
)
from raypipe.core.records import Fault
from raypipe.evaluation.fault_budget import RowCounts, UndoneRow
from raypipe.readers import BadLine, ReadCounts
from raypipe.report.report import ReplacedRows
from raypipe.text.made_questions import MadeKind


@with_config(STRICT)
class Synth(TypedDict):
    """`synth --json`."""

    format: Literal[2]
    folder: str
    questions: int
    citations: int  # search results, repeated and empty ones included
    pages: int  # distinct and not empty
    empty: int  # citations whose page is empty
    bytes: int  # of the question files
    seconds: float


@with_config(STRICT)
class SynthCollection(TypedDict):
    """`synth --papers N --json`."""

    format: Literal[2]
    folder: str
    papers: int
    questions: int
    golds: int  # judged papers of all questions
    bytes: int
    seconds: float


Ingest = from_fields(
    "Ingest",
    {
        "format": Literal[2],
        "store": str,  # URI
        "again": bool,  # true: the same bytes had been read before
        "questions": int,
        "kind": str,  # of the data; "": read by a raypipe that had no kinds
        "read_by": str,  # one process, or how many tasks; "": a folder of documents
        **{f.name: int for f in fields(ReadCounts)},
        "reasons": dict[str, int],  # why lines and pages were omitted -> how many
        "replaced": list[ReplacedRows],  # that took the place of others with their ids
        "bad_lines": list[BadLine],  # the first lines that could not be read, or lost a page
    },
)
"""`ingest --json`: the counts of `readers.ReadCounts` among others."""


@with_config(STRICT)
class IngestPreview(TypedDict):
    """`ingest --dry-run --json`: how files would be read."""

    format: Literal[2]
    data_format: str  # crag, beir, synth, qasper, oag, warc, rows, or MODULE:NAME
    files: list[FileFields]  # of rows: role -> fields
    question: FirstQuestion | None
    document: FirstDocument | None
    bad_lines: list[BadLine]  # among the first rows


@with_config(STRICT)
class _Evidence(TypedDict):
    document: str  # id or url
    title: str
    source: str  # source id
    start: int  # of the quote, in the source's parsed text
    end: int
    quote: str


@with_config(STRICT)
class _MadeLine(TypedDict):
    id: str
    question: str
    answers: list[str]
    question_type: MadeKind
    evidence: list[_Evidence]
    made_by: str  # the model
    review: str


@with_config(STRICT)
class Questions(TypedDict):
    """`questions --json`."""

    format: Literal[2]
    plan: QuestionsPlan
    out: str | None  # null: a dry run
    questions: int
    kinds: dict[str, int]
    written: int
    rejected: dict[str, int]  # reason -> candidates
    computed: int  # calls
    cached: int
    first: list[_MadeLine]


@with_config(STRICT)
class ParseLine(TypedDict):
    """A line of `parse --json`."""

    format: Literal[2]
    file: str
    text: str | None  # null: it could not be parsed
    fault: Fault | None


@with_config(STRICT)
class Faults(TypedDict):
    """`faults --json`."""

    format: Literal[2]
    run: str  # "": of no run, but of all that was read into the store
    rows: list[RowCounts]
    faults: list[UndoneRow]


@with_config(STRICT)
class ExamplePoolOutput(TypedDict):
    """`examples --json`."""

    format: Literal[2]
    out: str  # the pool
    examples: int
    unanswered: int  # questions without an answer, which are left out
    explained: int  # examples with an explanation
    unexplained: int  # examples without one, of which one was asked for
