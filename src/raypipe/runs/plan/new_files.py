"""Files that a plan is about, read and not stored: their questions, and what their sources weigh.

Files that the store has read before are not read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raypipe import readers
from raypipe.core import arrow
from raypipe.core.records import Gold, Question
from raypipe.readers import BadLine, Format, ReadCounts
from raypipe.runs.pipeline.ingest import fingerprint
from raypipe.runs.pipeline.ingest_log import noted
from raypipe.runs.pipeline.ingest_staging import BAD_SHOWN
from raypipe.runs.plan.records import NewSources
from raypipe.runs.plan.sample import Sampler
from raypipe.store import Store


def read_questions(store: Store, paths: Sequence[Path], format: Format) -> tuple[list[Question], NewSources]:
    """The questions of some files, and what of them the store does not have yet.

    Raises what the readers raise: ConfError for an unknown format, DataError for a damaged file and where no
    line can be read.
    """
    if (known := noted(store, fingerprint(paths, format))) is not None:
        rows = store.rows("questions", "id", known.questions)
        found = {q.id: q for q in arrow.question.records(rows)}
        return [found[id] for id in known.questions], NewSources()
    questions: dict[str, Question] = {}
    golds: list[Gold] = []
    kinds, chars, sampler = {}, {}, Sampler()
    counts, bad = ReadCounts(), list[BadLine]()
    for row in readers.open(paths, format, counts):
        bad += [BadLine(row.where, f.reason, f.detail) for f in row.faults[: BAD_SHOWN - len(bad)]]
        if row.question is not None:
            questions[row.question.id] = row.question
        golds += [row.gold] if row.gold is not None else []
        for source in row.sources:
            kinds[source.id], chars[source.id] = source.kind, len(source.content)
            sampler.add(source)
    readers.require_rows(paths, counts, bad)
    new = set(store.missing("sources", "id", list(kinds)))
    coming = NewSources(
        {s: kind for s, kind in kinds.items() if s in new},
        {s: n for s, n in chars.items() if s in new},
        {id: source for id, source in sampler.sources().items() if id in new},
        tuple(golds),
    )
    return list(questions.values()), coming
