"""Questions of a training split: selected by their labels, and compared with evaluation questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raypipe import readers
from raypipe.api.data import ingest
from raypipe.api.paths import format_for, inputs
from raypipe.api.session import Place, Session
from raypipe.contrib.finetune.leaks import leaks
from raypipe.core import arrow
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import Gold, Question
from raypipe.evaluation.golds import golds_of, require_questions
from raypipe.evaluation.options import EvalOptions
from raypipe.runs.plan.planner import read_questions
from raypipe.store import Store

SHOWN = 5  # leaks that an error names


@dataclass(frozen=True, slots=True)
class TrainingQuestions:
    """Questions to make training labels from."""

    store: Store
    ids: tuple[str, ...]  # of the training questions, in order
    golds: Mapping[str, Gold]
    texts: Mapping[str, str]  # id -> text, of the training questions
    evaluated: int  # number of evaluation questions that were compared


def training_questions(
    session: Session,
    given: Sequence[str | Path],
    store: Place,
    where: Sequence[str],
    against: Sequence[str | Path],
    how: EvalOptions,
    scratch: Path | None = None,
) -> TrainingQuestions:
    """Selects the training questions, and compares them with the evaluation questions.

    `given`: files to ingest first; (): all stored questions. `where` selects by labels. `against`: evaluation
    questions, as files or `LABEL=V1,V2`. Only format, fields and limit of `how` are used. `scratch`: folder
    for an empty store, if the store does not exist; the files are then read, but not stored. Raises DataError
    if no question is selected, and if the two sets share one, or nearly."""
    files, wanted = inputs(given, session.settings), _clauses("--where", where)
    by_label = [str(one) for one in against if "=" in str(one) and not Path(one).exists()]
    stored = {one: _clauses("--against", [one]) for one in by_label}
    evaluated = _read(session, [one for one in against if str(one) not in stored], how)
    opened = session.store_to_fill(store, scratch) if files else session.store(store)
    here: dict[str, Gold] = {}
    if not files:
        questions = _stored(opened, None)
    elif scratch is not None:
        read, coming = read_questions(opened, files, format_for(how.format, files, how.fields))
        questions, here = read, {g.question: g for g in coming.golds or ()}
    else:
        questions = _stored(opened, ingest(given, opened, how.format, session, how.fields).summary.questions)
    texts = {q.id: q.text for q in questions}
    golds = {**golds_of(opened, list(texts), "answers"), **here}
    chosen = [id for id in texts if _matches(golds.get(id), wanted)]
    if not chosen:
        raise _none_chosen(wanted, golds, opened)
    ids = tuple(chosen[: how.limit])
    for said, labels in stored.items():
        evaluated |= _stored_with(opened, said, labels)
    _refuse_leaks({id: texts[id] for id in ids}, evaluated)
    return TrainingQuestions(opened, ids, golds, texts, len(evaluated))


def _stored(store: Store, ids: Sequence[str] | None) -> list[Question]:
    every = sorted(store.scan("questions", ["id"])["id"].to_pylist()) if ids is None else list(ids)
    require_questions(every, (), store)
    found = {q.id: q for q in arrow.question.records(store.rows("questions", "id", every))}
    return [found[id] for id in every]


def _clauses(name: str, given: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parses clauses: `split=0,1` -> `{"split": ("0", "1")}`. Raises ConfError for any other form."""
    found = {}
    for clause in given:
        label, sign, values = str(clause).partition("=")
        if not (sign and label and values):
            raise ConfError(f"{name} {clause}: expected LABEL=V1,V2, such as split=0")
        found[label] = tuple(values.split(","))
    return found


def _matches(gold: Gold | None, wanted: Mapping[str, Sequence[str]]) -> bool:
    labels = gold.labels if gold is not None else {}
    return all(labels.get(name) in values for name, values in wanted.items())


def _none_chosen(where: Mapping[str, Sequence[str]], golds: Mapping[str, Gold], store: Store) -> DataError:
    for name, wanted in where.items():
        values = Counter(g.labels[name] for g in golds.values() if name in g.labels)
        if not values.keys() & set(wanted):
            there = ", ".join(f"{v} ({n} questions)" for v, n in sorted(values.items())[:20]) or "none"
            given = f"{store.uri}: --where {name}={','.join(wanted)}"
            return DataError(f"{given}: expected questions of that {name}, found {there}")
    return DataError(f"{store.uri}: expected questions that all of {', '.join(where)} choose, found none")


def _read(session: Session, given: Sequence[str | Path], how: EvalOptions) -> dict[str, str]:
    """Reads the questions in files, as id -> text. Raises DataError if a file has none."""
    found: dict[str, str] = {}
    for one in given:
        files = inputs([one], session.settings)
        rows = readers.open(files, format_for(how.format, files, how.fields), readers.ReadCounts())
        here = {r.question.id: r.question.text for r in rows if r.question is not None}
        if not here:
            raise DataError(f"--against {one}: expected questions, found none")
        found |= here
    return found


def _stored_with(store: Store, said: str, labels: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns id -> text of the stored questions with these labels. Raises DataError if there are none."""
    every = _stored(store, None)
    golds = golds_of(store, [q.id for q in every], "answers")
    found = {q.id: q.text for q in every if _matches(golds.get(q.id), labels)}
    if not found:
        raise DataError(f"{store.uri}: --against {said}: expected stored questions, found none")
    return found


def _refuse_leaks(training: Mapping[str, str], evaluated: Mapping[str, str]) -> None:
    """Raises DataError if a training question equals or nearly equals an evaluation question."""
    if not (found := leaks(training, evaluated)):
        return
    how = {"id": "the same id", "text": "the same text", "near": "nearly the same words"}
    pairs = [
        f"{x.question} ({training[x.question]!r:.60}) and {x.other} ({evaluated[x.other]!r:.60}): "
        f"{how[x.kind]}"
        for x in found[:SHOWN]
    ]
    raise DataError(
        f"--against: expected training questions that are not evaluated on, found {len(found)} of "
        f"{len(training)} in both: {'; '.join(pairs)}. Leave them out of one of the two, as by --where"
    )
