"""The stored questions of a run, read a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path

from raypipe.core import arrow
from raypipe.core.batches import batches
from raypipe.core.errors import DataError
from raypipe.core.records import Question
from raypipe.pipeline.driver import Pipeline
from raypipe.runs.captured import OWN_ID
from raypipe.store import Store

AT_ONCE = 100  # questions in memory: some 20 kB each with fifty citations


@dataclass(frozen=True, slots=True)
class StoredQuestions:
    """Stored questions, in order: read a batch at a time, on every iteration."""

    store: Store
    ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Question]:
        for some in batches(self.ids, AT_ONCE):
            found = self.store.rows("questions", "id", some)
            by_id = {q.id: q for q in arrow.question.records(found)}
            yield from (by_id[id] for id in some)


def questions_of(pipeline: Pipeline, ids: Sequence[str] | None, limit: int | None) -> StoredQuestions:
    """Stored questions by id, in that order; None: all of them, by id, but those that an endpoint captured,
    which are evaluated when they are named. Only the first `limit`."""
    if ids is None:
        found = sorted(pipeline.store.scan("questions", ["id"])["id"].to_pylist())
        ids = [id for id in found if not id.startswith(OWN_ID)]
    return StoredQuestions(pipeline.store, tuple(ids[:limit]))


def require_questions(questions: Sized, data: Sequence[Path], store: Store) -> None:
    """Raises DataError where there is nothing to answer."""
    if not len(questions):
        where = ", ".join(map(str, data)) or store.uri
        raise DataError(f"{where}: no questions. `raypipe ingest PATH` reads some into a store")
