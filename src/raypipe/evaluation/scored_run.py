"""Measures of a run as `compare` needs them, from its folder, its store, or a file of predictions.

The measures of a scored run are read; a file of predictions is scored by a rule. Compares nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raypipe.core import arrow
from raypipe.core.errors import DataError
from raypipe.evaluation.judged_run import JudgedRun, PersonLabels, judged_run, require_distinct
from raypipe.evaluation.result_table import read_table
from raypipe.metrics import verdict_rules
from raypipe.metrics.kinds import Crag
from raypipe.metrics.losses import shared
from raypipe.recipes.serialize import description
from raypipe.recipes.wiring import fits_of, has_seen
from raypipe.runs.record import Run, answer_keys, read
from raypipe.runs.run_parts import RunFolder
from raypipe.store import Store, ids


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """Measures and verdicts of a run by question id."""

    name: str  # as given on the command line
    rule: str
    judge: str  # name of the judge's model; "": none
    values: Mapping[str, Mapping[str, float]]  # question id -> measure -> value; only questions with a gold
    labels: Mapping[str, Mapping[str, str]]  # question id -> label -> value
    record: Run | None = None  # None: a predictions file
    trim: str = ""  # cut of the answers before judging; "": none
    people: int = 0  # verdicts that people's labels changed
    kind: str = "crag"  # kind of the data
    verdicts: Mapping[str, str] = field(default_factory=dict)  # question id -> verdict, if a rule gave one
    seen: frozenset[str] = frozenset()  # ids of questions that a fit or adapter of the recipe has seen
    texts: Mapping[str, str] = field(default_factory=dict)  # question id -> question, if it is known
    kept: frozenset[str] = frozenset()  # ids of questions whose answers come from an earlier run


def scored_run(path: Path, rule: verdict_rules.Rule) -> ScoredRun:
    """Reads a run folder's measures, or scores a file of predictions by `rule`. Raises DataError for a
    missing path, and for a folder that is no finished run."""
    if not path.exists():
        raise DataError(
            f"{path}: expected the folder of a finished eval or a file of predictions, found nothing there"
        )
    if not path.is_dir():
        return judged_again(judged_run(path, rule), None)
    record, columns = read(path), ["id", "query", "labels", "verdict", "reason", "measures", "seen", "kept"]
    table = read_table(RunFolder(path).results, columns)
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
    scored = [r for r in rows if r["measures"] is not None]
    values, labels, texts = ({r["id"]: r[name] for r in scored} for name in ("measures", "labels", "query"))
    run = ScoredRun(str(path), record.rule, record.judged_by, values, labels, record, kind=record.kind)
    return replace(
        run,
        verdicts={r["id"]: r["verdict"] for r in rows if r["verdict"] is not None},
        seen=frozenset(r["id"] for r in rows if r["seen"]),
        people=sum(r["reason"] == "person" for r in rows),
        texts=texts,
        kept=frozenset(r["id"] for r in rows if r["kept"]),
    )


def judged_again(run: JudgedRun, people: PersonLabels | None) -> ScoredRun:
    """Scores a run by its rule and its judge's replies. `people` are labels that outrank the judge. Raises
    DataError if a question occurs twice."""
    require_distinct(run)
    judged = run.labelled(people)
    marks, kind = judged.marks(), Crag(run.rule)
    values = {r.question: kind.values(r) for r in judged.rows}
    labels = {r.question: r.labels for r in run.rows}
    verdicts: dict[str, str] = {v.question: v.outcome for v in marks.verdicts}
    found = ScoredRun(run.name, marks.rule, run.judge, values, labels, run.record, run.trim, marks.people)
    return replace(found, verdicts=verdicts, texts=run.texts, kept=run.kept)


def stored_run(store: Store, record: Run, name: str = "") -> ScoredRun:
    """Returns the measures of a finished run from its store, with the labels of its questions. `name` is the
    run's name on the command line. Raises DataError if the store has no measures of the run."""
    keys = answer_keys(store, record.run)
    found = {q: k.measures for q, k in keys.items() if k.measures is not None}
    verdicts = {q: k.verdict for q, k in keys.items() if k.verdict is not None}
    name = name or f"run {record.run[:8]} of recipe {record.title}"
    if not found:
        raise DataError(f"{store.uri}: {name} has no verdicts there. Run the eval again, or name its folder")
    golds = arrow.gold.records(store.rows("golds", "question", list(found)))
    labels = {**{q: {} for q in found}, **{g.question: shared(g.labels) for g in golds}}
    asked = store.dataset("questions", record.tables["questions"])  # as the run read them
    rows = ids.rows(asked, "id", list(found), ["id", "text"]).to_pylist()
    texts = {row["id"]: row["text"] for row in rows}
    fits = fits_of(description(record.recipe, same=False)).values()
    seen = frozenset(q for q, text in texts.items() if has_seen(fits, text))
    kept = frozenset(q for q, k in keys.items() if k.kept)
    run = ScoredRun(name, record.rule, record.judged_by, found, labels, record, kind=record.kind)
    return replace(run, verdicts=verdicts, seen=seen, texts=texts, kept=kept)


def unseen_alone(runs: Sequence[ScoredRun]) -> list[ScoredRun]:
    """Removes the questions that a fit of any run has seen. Raises DataError if a run then has none."""
    seen = frozenset[str]().union(*(r.seen for r in runs))
    rest = [replace(r, values={q: v for q, v in r.values.items() if q not in seen}) for r in runs]
    for before, after in zip(runs, rest, strict=True):
        if before.values and not after.values:
            raise DataError(f"{before.name}: a fit has seen all of its {len(before.values)} scored questions")
    return rest
