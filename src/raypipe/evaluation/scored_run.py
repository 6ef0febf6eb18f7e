"""A run's predictions with a judge's replies: to be scored, judged again, or held against people.

Reads the folder of a finished eval, or a file of predictions of any system. Scores nothing by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypipe.core import arrow
from raypipe.core.errors import DataError
from raypipe.evaluation.labels import PersonLabels, labelled
from raypipe.evaluation.result_table import about, each
from raypipe.metrics import crag
from raypipe.metrics.files import read_predictions
from raypipe.metrics.kinds.named import answer_values
from raypipe.metrics.routing import shared
from raypipe.recipes.fits import fits_of, has_seen
from raypipe.recipes.serialize import description
from raypipe.report.report import JudgeLine, RunFolder
from raypipe.runs.manifest import Manifest, answer_keys, read
from raypipe.store import Store

if TYPE_CHECKING:
    from raypipe.evaluation.judge import Judge
    from raypipe.runs.manifest import Manifest
    from raypipe.store import Store


NEEDS_JUDGE = ("judge", "judge_unreadable")
"""Reasons of verdicts that a judge's reply decides."""


FEW = 10  # replies of which none can be read may be the judge's own doing; more are of another rule


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """Predictions that have a truth, and how they are judged."""

    name: str  # as it was given
    rule: crag.Rule
    judge: str  # its model; "": none, or not known
    trim: str  # how the predictions were cut before they were judged; "": not
    rows: tuple[crag.Prediction, ...]
    texts: Mapping[str, str]  # question id -> question
    manifest: Manifest | None = None  # None: a file of predictions
    normalized: Mapping[str, int] = field(default_factory=dict)  # on reading: what -> how often
    called: JudgeLine | None = None  # what judging again cost; None: not judged again

    def marks(self, labels: PersonLabels | None = None) -> tuple[crag.Marks, int]:
        """Scores it, people's labels first, and counts the verdicts that those changed."""
        if labels is None:
            return crag.mark(self.rows, self.rule), 0
        marks = crag.mark(labelled(self.rows, labels), self.rule)
        return marks, marks.people


def judged_run(path: Path, rule: crag.Rule | None = None) -> JudgedRun:
    """A run's folder, or a file of predictions. `rule`: of a file, and of a folder that another rule scored;
    None: the folder's own, and official for a file. Raises DataError."""
    if not path.is_dir():
        chosen = rule or "official"
        found = read_predictions(path, chosen)
        return JudgedRun(
            str(path), chosen, found.judge, found.trim, found.rows, found.texts, normalized=found.normalized
        )
    from raypipe.evaluation.result_table import about, each
    from raypipe.runs.manifest import read

    results = RunFolder(path).results
    rows = [r for r in each(results) if r["golds"]]
    known = about(results)
    own = bool(known["rule"]) and (rule is None or crag.rule_id(rule) == known["rule"])
    return JudgedRun(
        str(path),
        known["rule"].partition("@")[0] if own else rule or crag.DEFAULT_RULE,
        known["judge"] if own else "",
        known.get("trim", ""),
        tuple(
            crag.Prediction(
                r["id"], r["answer"], tuple(r["golds"]), r["judge_response"] if own else None, r["labels"]
            )
            for r in rows
        ),
        {r["id"]: r["query"] for r in rows},
        read(path),
    )


def trimmed(run: JudgedRun, cut: Callable[[str], str], name: str) -> JudgedRun:
    """The predictions cut; a judge's reply about a longer text is dropped with it. `name` says how."""
    rows = []
    for row in run.rows:
        short = None if row.prediction is None else cut(row.prediction)
        same = short is None or short.strip() == (row.prediction or "").strip()
        rows.append(row if same else replace(row, prediction=short, judge_response=None))
    return replace(run, rows=tuple(rows), trim=name)


def rejudged(run: JudgedRun, judge: Judge, store: Store) -> JudgedRun:
    """The same predictions, each asked about again; what the store's memo holds is not."""
    bare = [replace(r, judge_response=None) for r in run.rows]
    replies, called = judge.ask(store, bare, run.texts, False)
    rows = tuple(replace(r, judge_response=replies.get(r.question)) for r in bare)
    return replace(run, rows=rows, judge=called.model, called=called)


def prediction_lines(run: JudgedRun, marks: crag.Marks) -> list[dict[str, Any]]:
    """The predictions as a file of them has them, a line each, with what judged them."""
    lines = []
    for row, verdict in zip(run.rows, marks.verdicts, strict=True):
        line: dict[str, Any] = {
            "id": row.question,
            "query": run.texts[row.question],
            "answer": row.truths[0],
            "alternatives": list(row.truths[1:]),
            "prediction": row.prediction,
            "labels": dict(row.labels),
            "verdict": verdict.outcome,
            "reason": verdict.reason,
            "judge": run.judge,
            "trim": run.trim,
        }
        if row.judge_response is not None:
            line |= {"judge_response": row.judge_response, "judge_rule": run.rule}
        lines.append(line)
    return lines


def require_distinct(run: JudgedRun) -> None:
    """Raises DataError for a question that stands there twice."""
    seen = Counter(row.question for row in run.rows)
    if twice := next((id for id, n in seen.items() if n > 1), None):
        raise DataError(
            f"{run.name}: expected each question once, found {twice!r} twice. Remove one of its lines"
        )


def require_readable(run: JudgedRun) -> None:
    """Raises DataError for many replies of a judge of which none is a judgement by the rule: they were made
    by another one, and each would count as a hallucination."""
    reasons = [crag.judge(r, run.rule).reason for r in run.rows if r.judge_response is not None]
    decided = [reason for reason in reasons if reason in NEEDS_JUDGE]
    if len(decided) >= FEW and set(decided) == {"judge_unreadable"}:
        found = next(r.judge_response for r in run.rows if r.judge_response is not None)
        raise DataError(
            f"{run.name}: expected judge replies by the rule {run.rule}, found {len(decided)} that cannot "
            f"be read, such as {found[:60]!r}. Name the rule that they were made by with --rule"
        )


def decided_by_judge(run: JudgedRun, verdicts: Sequence[crag.Verdict]) -> list[tuple[crag.Prediction, bool]]:
    """The predictions that the judge decided, and whether it called them right."""
    pairs = zip(run.rows, verdicts, strict=True)
    return [(row, v.outcome == "correct") for row, v in pairs if v.reason in NEEDS_JUDGE]


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """What was measured of one run."""

    name: str  # as it was given
    rule: str
    judge: str  # its model; "": none
    values: Mapping[str, Mapping[str, float]]  # question id -> measure -> value; each question with a gold
    labels: Mapping[str, Mapping[str, str]]  # question id -> label -> value
    manifest: Manifest | None = None  # None: a file of predictions
    trim: str = ""  # how answers were cut before they were judged; "": not
    people: int = 0  # verdicts that people's labels changed
    kind: str = "crag"  # of the data
    verdicts: Mapping[str, str] = field(
        default_factory=dict
    )  # question id -> verdict; none: no rule gave one
    seen: frozenset[str] = frozenset()  # ids of questions that a fit or adapter of its recipe has seen
    texts: Mapping[str, str] = field(default_factory=dict)  # question id -> question, where it is known

    def is_run(self, other: ScoredRun) -> bool:
        """Whether both were given names of one run, such as its folder and its release."""
        if self.manifest is None or other.manifest is None:
            return self.manifest is other.manifest and self.name == other.name
        return self.manifest.run == other.manifest.run


def scored_run(path: Path, rule: crag.Rule) -> ScoredRun:
    """What was measured in a run's folder, or in a file of predictions scored by `rule`. Raises DataError."""
    if not path.is_dir():
        return judged_again(judged_run(path, rule), None)
    folder = RunFolder(path)
    values: dict[str, Mapping[str, float]] = {}
    verdicts: dict[str, str] = {}
    labels: dict[str, Mapping[str, str]] = {}
    texts: dict[str, str] = {}
    seen: set[str] = set()
    people = 0
    for row in each(folder.results):
        people += row["reason"] == "person"
        if row.get("seen"):
            seen.add(row["id"])
        if (found := row.get("measures") or _of_verdict(row["verdict"])) is not None:
            values[row["id"]], labels[row["id"]] = found, row["labels"]
            texts[row["id"]] = row["query"]
        if row["verdict"] is not None:
            verdicts[row["id"]] = row["verdict"]
    known = about(folder.results)
    kind = known.get("kind", "crag")
    return ScoredRun(
        str(path), known["rule"], known["judge"], values, labels, read(path), kind=kind, verdicts=verdicts,
        seen=frozenset(seen), people=people, texts=texts,
    )  # fmt: skip


def _of_verdict(verdict: str | None) -> Mapping[str, float] | None:
    """The measures of a verdict, of a run that kept nothing else; None: the question has no gold."""
    if verdict is None:
        return None
    value = crag.VALUES.get(verdict)
    if value is None:
        return {}
    return {"score": value, "accuracy": float(value > 0), "hallucination": float(value < 0)}


def judged_again(run: JudgedRun, people: PersonLabels | None) -> ScoredRun:
    """A run that was cut or judged again, with people's verdicts in place of others. Raises DataError for a
    question that stands there twice."""
    require_distinct(run)
    require_readable(run)
    marks, changed = run.marks(people)
    verdicts: dict[str, str] = {v.question: v.outcome for v in marks.verdicts}
    values = {r.question: {**answer_values(r), **(_of_verdict(verdicts[r.question]) or {})} for r in run.rows}
    labels = {r.question: dict(r.labels) for r in run.rows}
    return ScoredRun(
        run.name, marks.rule, run.judge, values, labels, run.manifest, run.trim, changed, verdicts=verdicts,
        texts=run.texts,
    )  # fmt: skip


def stored_run(store: Store, manifest: Manifest, name: str = "") -> ScoredRun:
    """What was measured in a finished run as its store keeps it, with the labels of the questions there.
    `name`: as it was given. Raises DataError for a run of which it keeps nothing."""
    keys = answer_keys(store, manifest.run)
    found = {
        q: values for q, k in keys.items() if (values := k.measures or _of_verdict(k.verdict)) is not None
    }
    verdicts = {q: k.verdict for q, k in keys.items() if k.verdict is not None}
    name = name or f"run {manifest.run[:8]} of recipe {manifest.recipe['name']}"
    if not found:
        raise DataError(f"{store.uri}: {name} has no verdicts there. Run the eval again, or name its folder")
    golds = arrow.gold.records(store.rows("golds", "question", list(found)))
    labels = {**{q: {} for q in found}, **{g.question: shared(g.labels) for g in golds}}
    kind, fits = manifest.kind or "crag", fits_of(description(manifest.recipe)).values()
    texts = store.rows("questions", "id", list(found), ["id", "text"]).to_pylist() if fits else []
    return ScoredRun(
        name, manifest.rule, manifest.judge, found, labels, manifest, kind=kind, verdicts=verdicts,
        seen=frozenset(r["id"] for r in texts if has_seen(fits, r["text"])),
    )  # fmt: skip


def unseen_alone(runs: Sequence[ScoredRun]) -> list[ScoredRun]:
    """The runs without the questions that a fit or adapter of any has seen. Raises DataError where none is
    left."""
    seen = frozenset[str]().union(*(r.seen for r in runs))
    rest = [replace(r, values={q: v for q, v in r.values.items() if q not in seen}) for r in runs]
    for before, after in zip(runs, rest, strict=True):
        if before.values and not after.values:
            raise DataError(f"{before.name}: a fit has seen all of its {len(before.values)} scored questions")
    return rest
