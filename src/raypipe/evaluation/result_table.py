"""results.parquet: one row per question of a run, for `compare`, the viewer, fits and exports.

Rows are written in batches while the answers are collected; each batch is a row group. Verdicts are added at
the end, one row group at a time, so memory never holds all rows. docs/formats.md describes the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raypipe.core.errors import DataError, unstopped
from raypipe.core.records import IDK, Gold, Layout, Question, answer_of, chunk_id, quotes_of, ranking, urls
from raypipe.core.textfile import replacing, writing
from raypipe.metrics.kinds import DataKind, RunScores, gold_form, recorded_kind, right_of
from raypipe.metrics.losses import LostAt, shared
from raypipe.metrics.verdict_rules import Marks, Prediction
from raypipe.runs.record import read
from raypipe.runs.run_parts import EVAL_AGAIN
from raypipe.store.index import file_address
from raypipe.text.context import place
from raypipe.text.moments import moment

TEXTS = 20  # first hits that are stored with their text; the final ranking and quotes always are

_TEXT, _INT, _FLOAT, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_SCORES = pa.map_(_TEXT, _FLOAT)
_SPAN = {"start": pa.int32(), "end": pa.int32()}


def _records(**fields: pa.DataType) -> pa.DataType:
    return pa.list_(pa.struct(list(fields.items())))


_REPLIES = _records(
    step=_TEXT,
    text=_TEXT,
    label=_TEXT,
    confidence=_FLOAT,
    logprob=_FLOAT,
    fault=_TEXT,  # reason and detail of the fault; null: none
    # The next four belong to replies of language models in the memo. finish: stop; length if it was cut.
    prompt=_records(role=_TEXT, content=_TEXT),
    prompt_tokens=_INT,
    generated_tokens=_INT,
    finish=_TEXT,
)
_HITS = _records(
    chunk=_TEXT,
    url=_TEXT,  # address of the citation; file#page=N for a file of a folder; null: no citation
    file=_TEXT,  # file:///... for a file of a folder; null: not of a folder
    **_SPAN,
    scores=_SCORES,
    ranked=_BOOL,
    text=_TEXT,  # null: not in the final ranking, after the first TEXTS hits
)
SCHEMA = pa.schema(
    [
        ("id", _TEXT),
        ("query", _TEXT),
        ("asked_at", _TEXT),
        ("labels", pa.map_(_TEXT, _TEXT)),
        ("golds", pa.list_(_TEXT)),  # empty: the dataset has no answer
        ("grades", pa.map_(_TEXT, pa.int32())),  # judged document -> grade; empty: the dataset has none
        ("answer", _TEXT),  # null: the question failed
        ("outcome", _TEXT),
        ("origin", _TEXT),  # name of the reply that the answer came from
        ("confidence", _FLOAT),  # stated confidence of that reply; null: its step states none
        ("verdict", _TEXT),  # null: no gold, or a kind of data without verdicts
        ("reason", _TEXT),
        ("judge_response", _TEXT),  # null: no reply
        ("replies", _REPLIES),
        ("hits", _HITS),  # the final ranking, best first, then the other candidates
        ("quotes", _records(source=_TEXT, **_SPAN, text=_TEXT)),
        ("evidence", pa.list_(_TEXT)),  # paragraphs of a paper that the answer rests on; empty: other data
        ("faults", _records(step=_TEXT, reason=_TEXT, detail=_TEXT, transient=_BOOL)),
        ("degraded", pa.list_(_TEXT)),  # steps omitted because of time or an unavailable service
        ("seconds", _SCORES),  # stage -> its share of the task's time; null: an earlier run answered it
        ("measures", _SCORES),  # measure of the kind of data -> value; null: no gold
        ("seen", _BOOL),  # true: a fit or adapter of the recipe has seen it, so its scores are too good
        ("kept", _TEXT),  # earlier run whose answer --only-new kept; null: this run's recipe answered it
        ("lost", _TEXT),  # name in metrics.losses.places; null: right, not scored, or kept
        ("lost_step", _TEXT),  # stage of that place; null: none
    ]
)


def needed_texts(question: Question) -> list[str]:
    """Returns ids of passages whose text the table stores: the first TEXTS, and all ranked or quoted ones."""
    shown = [h.chunk for h in ranking(question)[:TEXTS]]
    quoted = (chunk_id(q.source, q.span) for q in quotes_of(question))
    return list(dict.fromkeys([*shown, *question.order, *quoted]))


def row(
    question: Question,
    gold: Gold | None,
    text: Mapping[str, str],
    prompts: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    layouts: Mapping[str, Layout] = MappingProxyType({}),
    seen: bool = False,
    seconds: Mapping[str, float] | None = None,
    roots: Mapping[str, str] = MappingProxyType({}),
    evidence: Sequence[str] = (),
    kept: str | None = None,
) -> dict[str, Any]:
    """Returns a question's row, without the columns that `ResultTable.finish` adds. `text` maps the chunk ids
    of `needed_texts` to texts, and `prompts` reply names to prompt columns. For files read from folders,
    `layouts` maps source ids to layouts, and `roots` id prefixes of folders to paths. The other parameters
    are columns of SCHEMA."""
    origin_reply = question.replies.get(question.origin)
    return {
        "id": question.id,
        "query": question.text,
        "asked_at": question.asked_at,
        "labels": list(shared(gold.labels).items()) if gold else [],
        "golds": list(gold.answers) if gold else [],
        "grades": list(gold.grades.items()) if gold else [],
        "answer": answer_of(question),
        "outcome": question.outcome,
        "origin": question.origin,
        "confidence": origin_reply.confidence if origin_reply else None,
        "replies": [
            {
                "step": s,
                "text": r.text,
                "label": r.label,
                "confidence": r.confidence,
                "logprob": r.logprob,
                "fault": r.fault and f"{r.fault.reason}: {r.fault.detail}",
                **prompts.get(s, {}),
            }
            for s, r in question.replies.items()
        ],
        "hits": _hits(question, text, layouts, roots),
        "quotes": [
            {"source": q.source, "start": start, "end": end, "text": text[chunk_id(q.source, q.span)]}
            for q in quotes_of(question)
            for start, end in [q.span]
        ],
        "evidence": list(evidence),
        "faults": [asdict(f) for f in question.faults],
        "degraded": list(question.degraded),
        "seconds": None if seconds is None else list(seconds.items()),
        "seen": seen,
        "kept": kept,
    }


def _hits(
    question: Question, text: Mapping[str, str], layouts: Mapping[str, Layout], roots: Mapping[str, str]
) -> list[dict[str, Any]]:
    url, chosen = urls(question), set(question.order)
    return [
        {
            "chunk": h.chunk,
            "url": place(layout, h.span).url if layout else url.get(h.source),
            "file": file_address(layout, roots) if layout else None,
            "start": h.span[0],
            "end": h.span[1],
            "scores": [(name, float(value)) for name, value in h.scores.items()],
            "ranked": h.chunk in chosen,
            "text": text.get(h.chunk),
        }
        for h in ranking(question)
        for layout in [layouts.get(h.source)]
    ]


class ResultTable:
    """Writer of results.parquet, as a context manager. `add` writes batches to a draft, and `finish` makes
    the file from the draft. On exit, the draft is deleted in any case."""

    def __init__(self, path: Path) -> None:
        self.about: dict[str, str] = {}  # metadata of the file: run, store, and reason for missing prompts
        self._path = path
        self._draft = path.with_name(f".{path.name}.draft")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._draft, SCHEMA, compression="zstd")

    def __enter__(self) -> ResultTable:
        return self

    def __exit__(self, *error: object) -> None:
        with writing(self._path):
            self._writer.close()
            self._draft.unlink(missing_ok=True)

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Appends a batch of rows, in order."""
        table = pa.Table.from_pylist([dict(r) for r in rows], SCHEMA)
        with writing(self._path):
            self._writer.write_table(table)

    def finish(
        self,
        scored: Sequence[Prediction],
        marks: Marks,
        scores: RunScores,
        lost: Mapping[str, LostAt] = MappingProxyType({}),
    ) -> None:
        """Adds verdicts, measures and places of losses (`lost`) to the rows, and writes the final file."""
        with writing(self._path):
            self._writer.close()
        verdicts = {v.question: v for v in marks.verdicts}
        judged = {r.question: r.judge_response for r in scored}
        schema = SCHEMA.with_metadata(self.about)
        with (
            replacing(self._path) as whole,
            pq.ParquetFile(self._draft) as draft,
            pq.ParquetWriter(whole, schema, compression="zstd") as out,
        ):
            for group in range(draft.num_row_groups):
                table = draft.read_row_group(group).select(SCHEMA.names)
                ids = table["id"].to_pylist()
                found, places = [verdicts.get(id) for id in ids], [lost.get(id) for id in ids]
                of = [scores.values.get(id) for id in ids]
                columns = {
                    "verdict": [v.outcome if v else None for v in found],
                    "reason": [v.reason if v else None for v in found],
                    "judge_response": [judged.get(id) for id in ids],
                    "lost": [x.loss if x else None for x in places],
                    "lost_step": [x.step or None if x else None for x in places],
                    "measures": [None if v is None else list(v.items()) for v in of],
                }
                for name, values in columns.items():
                    field, at = SCHEMA.field(name), SCHEMA.get_field_index(name)
                    table = table.set_column(at, field, pa.array(values, field.type))
                out.write_table(table.cast(schema))


_EVIDENCE = ("replies", "hits", "quotes", "evidence")  # long columns that no data frame has


def flat_rows(path: Path, kind: str) -> list[dict[str, Any]]:
    """Returns the rows of a run's table for a data frame, without the columns _EVIDENCE. Measures and labels
    become columns. Golds become one text, faults their number, and the time a datetime. `kind` is the kind in
    the run's record. Raises ConfError if its code is missing."""
    opened, columns = recorded_kind(kind), [n for n in SCHEMA.names if n not in _EVIDENCE]
    rows = read_table(path, columns).to_pylist(maps_as_pydicts="strict")
    return [_flat_row(row, opened) for row in rows]


def _flat_row(row: Mapping[str, Any], kind: DataKind) -> dict[str, Any]:
    failed = row["answer"] is None and gold_form(kind) != "grades"
    right = None if failed or row["measures"] is None else right_of(kind, row["measures"], row["id"])
    steps = {"lost": row["lost"], "lost_step": row["lost_step"], "faults": len(row["faults"])}
    try:
        asked_at = moment(row["asked_at"]).local if row["asked_at"] else None
    except DataError:  # an unreadable time
        asked_at = None
    return {
        "id": row["id"],
        "query": row["query"],
        "asked_at": asked_at,
        "answer": row["answer"],
        "outcome": row["outcome"],
        "source": row["origin"],
        "confidence": row["confidence"],
        "verdict": verdict_of(row["answer"], right),
        "golds": " | ".join(row["golds"] or (d for d, grade in row["grades"].items() if grade > 0)),
        **(row["measures"] or {}),
        **row["labels"],
        **steps,
    }


def verdict_of(answer: str | None, right: bool | None) -> str:
    """Returns a verdict in words for people. `right` None: not scored.

    >>> verdict_of("I don't know.", False), verdict_of("Paris", True), verdict_of(None, None)
    ("i don't know", 'right', 'not scored')
    """
    if right is None:
        return "not scored"
    return "right" if right else IDK if IDK in (answer or "").lower() else "wrong"


def open_table(path: Path, columns: Sequence[str] = (), run: str | None = None) -> pq.ParquetFile:
    """Opens a run's table and checks that it has these columns, by default all of SCHEMA. `run` is the run
    that the table must belong to; None: the run of the record next to it, so the folder of a killed eval is
    refused. Raises DataError for another file, a missing record, and a table of another run."""
    found = _opened(path)
    if lacking := [c for c in columns or SCHEMA.names if c not in found.schema_arrow.names]:
        raise DataError(f"{path}: expected the columns {', '.join(SCHEMA.names)}; {lacking[0]!r} is missing")
    own, named = _about(found)["run"], read(path.parent).run if run is None else run
    if own != named:
        raise DataError(
            f"{path}: expected the table of run {named[:8]}, found that of run {own[:8]}: another eval into "
            f"this folder has begun or was killed. {EVAL_AGAIN}"
        )
    return found


def _opened(path: Path) -> pq.ParquetFile:
    try:
        found = pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as e:
        what = "none" if isinstance(e, FileNotFoundError) else unstopped(e)
        raise DataError(f"{path}: expected the table of a finished eval, found: {what}. {EVAL_AGAIN}") from e
    if "run" not in _about(found):
        raise DataError(f"{path}: expected the table of a finished eval, found another Parquet file")
    return found


def _about(table: pq.ParquetFile) -> dict[str, str]:
    return {k.decode(): v.decode() for k, v in (table.schema_arrow.metadata or {}).items()}


def read_table(path: Path, columns: Sequence[str] = ()) -> pa.Table:
    """Reads columns of a finished run's table, by default all. Raises DataError as `open_table` does."""
    with open_table(path, columns) as found:
        return found.read(list(columns) or None)


def metadata(path: Path) -> dict[str, str]:
    """Returns the metadata of a run's table, even of an unfinished run. Raises DataError if unreadable."""
    with _opened(path) as found:
        return _about(found)


def each(path: Path, run: str | None = None) -> Iterator[dict[str, Any]]:
    """Yields the rows of a run's table. Memory holds one batch. Raises DataError as `open_table` does."""
    with open_table(path, ["id"], run) as found:
        for batch in found.iter_batches(100):
            yield from batch.to_pylist(maps_as_pydicts="strict")
