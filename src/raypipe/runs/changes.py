"""Changed answers between two finished runs, each with the first place where the paths of both runs diverge.

A path is the sequence of results that led to an answer: hits with the score of each ranker, replies, order,
answer. A stored answer records them. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raypipe.core import arrow
from raypipe.core.bounded_rows import batches
from raypipe.core.records import RANKED, TRACE, Question
from raypipe.runs.record import AnswerKey, Run, answer_keys, recent
from raypipe.runs.stage_records import Difference, StageRecord, differences, with_lines
from raypipe.store import Store

LOOKED_BACK = 50  # newest finished runs in which an earlier run is searched
NO_STEP = ("row", "evidence")  # values of `step` if paths diverge before any step
AT_ONCE = 100  # answers of each run in memory at a time: some 40 kB each
SHOWN = 3  # passages of a ranking that a report shows


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """An answer of one run."""

    answer: str
    outcome: str  # fault if the question failed
    origin: str
    path: str  # result of the step where the paths diverge, for people


@dataclass(frozen=True, slots=True)
class Change:
    """A question whose answer differs between the runs."""

    question: str  # id
    query: str
    step: str
    """First place where the paths diverge: a step; row, if the question or its citations differ; evidence, if
    sources were missing in one run only."""
    cause: Difference | None  # the recipe's difference at or nearest before `step` (`_because`); None: none
    before: GivenAnswer
    after: GivenAnswer


@dataclass(frozen=True, slots=True)
class Changes:
    """Differences between the answers of a run and of an earlier one."""

    before: str  # earlier run
    after: str  # later run
    common: int  # questions of both runs
    new: int  # questions of the later run only
    removed: int  # questions of the earlier run only
    same: int  # common questions with the same answer by the same path
    other_path: Mapping[str, int]  # first diverging step -> common questions with the same answer
    changed: tuple[Change, ...]  # sorted by question id
    differences: tuple[Difference, ...]  # first difference in each stage of the recipe that differs


def compared_with(store: Store, run: Run) -> Run | None:
    """Returns the last run before `run` that had some of its questions, as `earlier_run` finds it."""
    return earlier_run(store, answer_keys(store, run.run), run.run)


def earlier_run(store: Store, questions: Container[str], before: str = "") -> Run | None:
    """Returns the newest of the last LOOKED_BACK runs that had some of these questions (ids), or None. Skips
    oracle runs, in which golds replaced a stage. If the run `before` (an id) is among the last LOOKED_BACK,
    skips that run and newer ones."""
    runs = recent(store, LOOKED_BACK)
    at = next((i for i, run in enumerate(runs, 1) if run.run == before), 0)
    systems = (run for run in runs[at:] if not run.oracle)
    return next((r for r in systems if any(q in questions for q in answer_keys(store, r.run))), None)


def changes(store: Store, before: Run, after: Run) -> Changes:
    """Compares the answers of two runs of one store, question by question."""
    old, new = answer_keys(store, before.run), answer_keys(store, after.run)
    common = old.keys() & new.keys()
    own = with_lines(differences(before.stages, after.stages), before.recipe, after.recipe)
    changed: list[Change] = []
    otherwise: dict[str, int] = {}
    same = len(common)
    for q, a, b, stage in _moved((store, store), old, new, before, after):
        same -= 1
        name = stage if isinstance(stage, str) else stage.name
        if _result(a) != _result(b):
            because = None if name in ("", *NO_STEP) else _because(name, after.stages, own)
            answers = [GivenAnswer(x.answer, x.outcome, x.origin, _path(x, stage)) for x in (a, b)]
            changed.append(Change(q, b.text or a.text, name, because, answers[0], answers[1]))
        elif stage == "":
            same += 1
        else:
            otherwise[name] = otherwise.get(name, 0) + 1
    counts = len(common), len(new.keys() - old.keys()), len(old.keys() - new.keys()), same
    return Changes(before.run, after.run, *counts, otherwise, tuple(changed), tuple(own.values()))


def _result(question: Question) -> tuple[str, str, tuple[str, ...]]:
    """Returns the result of a question: its answer, or its ranking if the recipe only ranks."""
    return question.answer, question.outcome, question.order if question.outcome == RANKED else ()


@dataclass(frozen=True, slots=True)
class Parting:
    """The first place where the paths of one question diverge in two runs."""

    step: str  # a stage's name, or one of NO_STEP
    because: Difference | None
    """The recipe's difference at or nearest before the step (`_because`). None: none, noise, or NO_STEP."""
    noise: bool  # True: all that the step depends on is equal; its model just replied differently


def causes(stores: tuple[Store, Store], before: Run, after: Run) -> dict[str, Parting]:
    """Maps the id of each common question whose paths diverge to the first such place. `stores` holds the
    store of run `before`, then that of `after`."""
    old, new = (answer_keys(store, run.run) for store, run in zip(stores, (before, after), strict=True))
    own = differences(before.stages, after.stages)
    out = {}
    for q, _, _, stage in _moved(stores, old, new, before, after):
        if not isinstance(stage, str):
            earlier = before.stage(stage.name)
            noise = earlier is not None and earlier.chain == stage.chain
            because = None if noise else _because(stage.name, after.stages, own)
            out[q] = Parting(stage.name, because, noise)
        elif stage in NO_STEP:
            out[q] = Parting(stage, None, False)
    return out


def _moved(
    stores: tuple[Store, Store],
    old: Mapping[str, AnswerKey],
    new: Mapping[str, AnswerKey],
    before: Run,
    after: Run,
) -> Iterator[tuple[str, Question, Question, StageRecord | str]]:
    """Yields (id, both answers, `parting`) for each common question whose answers have different keys."""
    steps = compared_steps(before.stages, after.stages)
    moved = sorted(q for q in old.keys() & new.keys() if old[q].key != new[q].key)
    for some in batches(moved, AT_ONCE):
        both = zip(stores, (old, new), strict=True)
        was, now = (_answers(store, [keys[q] for q in some]) for store, keys in both)
        for q in some:
            yield q, was[q], now[q], parting(was[q], now[q], old[q], new[q], steps)


def _answers(store: Store, keys: Sequence[AnswerKey]) -> dict[str, Question]:
    """Maps each question id to its stored answer. A question without one gets the outcome fault."""
    rows = store.rows("answers", "key", [k.key for k in keys])
    found = dict(zip(arrow.id_texts(rows["key"]), arrow.question.records(rows), strict=True))
    return {k.question: found.get(k.key, Question(k.question, "", outcome="fault")) for k in keys}


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """A question step of the later run, and what the stored answers of both runs show of its results."""

    stage: StageRecord
    writes: tuple[str, ...]  # names that it writes in one run at least
    orders: bool  # True: it made the final order
    restated: frozenset[str]  # names that a later step writes too: it may have replaced their confidence
    rewriter: StageRecord | None
    """The last later step that may have replaced a whole result of it, if only that step's chain differs."""


def compared_steps(before: Iterable[StageRecord], after: Iterable[StageRecord]) -> list[ComparedStep]:
    """Lists the question steps of the stages `after`, in order."""
    old, new = ([s for s in stages if s.half == "question"] for stages in (before, after))
    was = {s.name: s for s in old}
    steps = []
    for i, stage in enumerate(new):
        earlier, later = was.get(stage.name), new[i + 1 :]
        behind = [*later, *(old[old.index(earlier) + 1 :] if earlier else ())]
        writes = tuple(sorted({*stage.writes, *(earlier.writes if earlier else ())}))
        rewriter = None
        if earlier is not None and earlier.chain == stage.chain:
            # A step that writes the answer changes only the confidence of replies.
            others = [s for s in later if {*s.writes} & {*writes} and "answer" not in s.writes]
            changed = (s for s in reversed(others) if s.name not in was or was[s.name].chain != s.chain)
            rewriter = next(changed, None)
        last = not any("order" in s.writes for s in later)
        restated = frozenset(w for s in behind for w in s.writes)
        steps.append(ComparedStep(stage, writes, last, restated, rewriter))
    return steps


def parting(
    a: Question, b: Question, old: AnswerKey, new: AnswerKey, steps: Sequence[ComparedStep]
) -> StageRecord | str:
    """Returns the first of the later run's stages whose results differ; "" if none. Returns "row" if the
    question or its citations differ, "evidence" if sources were missing in one run only."""
    if old.row != new.row:
        return "row"
    if old.absent != new.absent:
        return "evidence"
    for step in steps:
        was, now = (_made(q, step.writes, step.orders, step.restated) for q in (a, b))
        if was != now:
            by = step.rewriter
            return by if by and any(was[n] != now[n] for n in by.writes if n in was) else step.stage
    return ""


def _made(
    q: Question, writes: Iterable[str], orders: bool, restated: Container[str] = frozenset()
) -> dict[str, Any]:
    """Returns a stage's results, as the stored answer has them. `orders` True: it made the final order. The
    replies in `restated` are returned without their confidence."""
    out: dict[str, Any] = {}
    for name in writes:
        kind, _, part = name.partition(".")
        if kind == "hits" and part:
            out[name] = {h.chunk: h.scores[part] for h in q.hits if part in h.scores}
        elif kind == "replies":
            made = q.replies.get(part)
            if made is not None and name in restated:
                made = replace(made, confidence=None)
            out[name] = None if made is not None and made.label == TRACE else made
        elif name == "citations":
            out[name] = q.citations
        elif name == "order" and orders:
            out[name] = q.order
        elif name in ("answer", "outcome", "origin"):
            out[name] = getattr(q, name)
    return out


def _path(q: Question, stage: StageRecord | str) -> str:
    """Formats a stage's hits, order, citations and replies in one line. Shows SHOWN of each ranking."""
    if isinstance(stage, str):
        return ""
    parts = []
    for name, made in _made(q, stage.writes, True).items():
        if isinstance(made, dict):
            best = sorted(made.items(), key=lambda item: (-item[1], item[0]))[:SHOWN]
            parts.append(f"{name}: " + (", ".join(f"{c} {s:.4f}" for c, s in best) or "nothing"))
        elif name == "order":
            parts.append(f"order: {', '.join(made[:SHOWN]) or 'nothing'}")
        elif name == "citations":
            parts.append(f"pages: {len({c.page for c in made or () if c.page})}")
        elif name.startswith("replies."):
            parts.append(f"{name}: " + (f"{made.label}: {made.text}" if made else "none"))
    return "; ".join(parts)


def _because(step: str, stages: Sequence[StageRecord], own: Mapping[str, Difference]) -> Difference | None:
    """Returns the recipe's difference that may explain why results diverge at the stage `step`: that of the
    stage, else of the nearest stage before it, else of a removed stage. `own`: stage -> difference."""
    names = [s.name for s in stages]
    for name in reversed(names[: names.index(step) + 1]):
        if name in own:
            return own[name]
    return next((d for d in own.values() if d.stage not in names), None)
