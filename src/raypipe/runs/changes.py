"""Changes of answers by a run: which of them, in which step their paths first part, before and after.

Compares stored answers of two finished runs, which say for themselves how they came about: hits with the
score of each ranker, replies, the order, the answer. Knows records and stored answers; runs nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raypipe.core import arrow
from raypipe.core.records import RANKED, TRACE, Question
from raypipe.runs.record import AnswerKey, Run, answer_keys, recent
from raypipe.runs.stage_records import Difference, StageRecord, differences, with_lines
from raypipe.store import Store

LOOKED_BACK = 50  # finished runs among which the one to compare with is looked for
NO_STEP = ("row", "evidence")  # where paths part before any step
AT_ONCE = 100  # answers of each run in memory: some 40 kB each
SHOWN = 3  # passages of a ranking that a report repeats


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """The answer that a question got."""

    answer: str
    outcome: str  # fault where the question failed
    origin: str
    path: str  # result of the step at which the paths part, for people


@dataclass(frozen=True, slots=True)
class Change:
    """A question whose answer is another now."""

    question: str  # id
    query: str
    step: str
    """Where the paths first part: a step; row, if the question or its citations are others; evidence, if
    sources were there that were absent, or the reverse."""
    cause: Difference | None  # what differs in the recipe there or before; None for row and evidence
    before: GivenAnswer
    after: GivenAnswer


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of a run against an earlier one."""

    before: str  # run
    after: str  # run
    common: int  # questions that both have
    new: int  # that only the later run has
    removed: int  # that only the earlier run has
    same: int  # of the common ones: the same answer by the same path
    other_path: Mapping[str, int]  # the same answer by another path: step -> questions
    changed: tuple[Change, ...]  # by question id
    differences: tuple[Difference, ...]  # of the recipe: the first in each stage that differs


def compared_with(store: Store, run: Run) -> Run | None:
    """The last run that finished before this one and answered some of the same questions."""
    return earlier_run(store, answer_keys(store, run.run), run.run)


def earlier_run(store: Store, questions: Container[str], before: str = "") -> Run | None:
    """The last finished run of a store that answered some of these questions, by id, and is no oracle run:
    golds stood in one. `before`: the run before which it finished."""
    runs = recent(store, LOOKED_BACK)
    at = next((i for i, run in enumerate(runs, 1) if run.run == before), 0)
    systems = (run for run in runs[at:] if not run.oracle)
    return next((r for r in systems if any(q in questions for q in answer_keys(store, r.run))), None)


def changes(store: Store, before: Run, after: Run) -> Changes:
    old, new = answer_keys(store, before.run), answer_keys(store, after.run)
    common = old.keys() & new.keys()
    own = with_lines(differences(before.stages, after.stages), before.recipe, after.recipe)
    changed: list[Change] = []
    otherwise: dict[str, int] = {}
    same = len(common)
    for q, a, b, stage in _moved((store, store), old, new, after.stages):
        same -= 1
        name = stage if isinstance(stage, str) else stage.name
        if _said(a) != _said(b):
            because = None if name in NO_STEP else _because(name, after.stages, own)
            said = [GivenAnswer(x.answer, x.outcome, x.origin, _path(x, stage)) for x in (a, b)]
            changed.append(Change(q, b.text or a.text, name, because, said[0], said[1]))
        elif stage == "":
            same += 1
        else:
            otherwise[name] = otherwise.get(name, 0) + 1
    return Changes(
        before.run,
        after.run,
        len(common),
        len(new.keys() - old.keys()),
        len(old.keys() - new.keys()),
        same,
        otherwise,
        tuple(changed),
        tuple(own.values()),
    )


def _said(question: Question) -> tuple[str, str, tuple[str, ...]]:
    """Returns what came out of a question: an answer, or of a recipe that ranks a ranking."""
    return question.answer, question.outcome, question.order if question.outcome == RANKED else ()


@dataclass(frozen=True, slots=True)
class Parting:
    """The step in which the paths of one question part in two runs."""

    step: str  # or one of NO_STEP
    because: Difference | None  # what differs in the recipe there or before; None for those of NO_STEP
    noise: bool  # all that the step depends on is equal: its model replied otherwise to the same


def causes(stores: tuple[Store, Store], before: Run, after: Run) -> dict[str, Parting]:
    """Maps each question of both runs whose paths differ to the first step where they do. `stores`: those of
    `before` and `after`."""
    old, new = (answer_keys(store, run.run) for store, run in zip(stores, (before, after), strict=True))
    own = differences(before.stages, after.stages)
    out = {}
    for q, _, _, stage in _moved(stores, old, new, after.stages):
        if isinstance(stage, str):
            if stage in NO_STEP:
                out[q] = Parting(stage, None, False)
        else:
            earlier = before.stage(stage.name)
            noise = earlier is not None and earlier.chain == stage.chain
            because = None if noise else _because(stage.name, after.stages, own)
            out[q] = Parting(stage.name, because, noise)
    return out


def _moved(
    stores: tuple[Store, Store],
    old: Mapping[str, AnswerKey],
    new: Mapping[str, AnswerKey],
    stages: Sequence[StageRecord],
) -> Iterator[tuple[str, Question, Question, StageRecord | str]]:
    """The questions of both runs whose answers have other keys, in order of id: id, both answers, and where
    their paths part (`_parting`)."""
    moved = sorted(q for q in old.keys() & new.keys() if old[q].key != new[q].key)
    for i in range(0, len(moved), AT_ONCE):
        some = moved[i : i + AT_ONCE]
        both = zip(stores, (old, new), strict=True)
        was, now = (_answers(store, [keys[q] for q in some]) for store, keys in both)
        for q in some:
            yield q, was[q], now[q], _parting(was[q], now[q], old[q], new[q], stages)


def _answers(store: Store, keys: Sequence[AnswerKey]) -> dict[str, Question]:
    """Question id -> its stored answer. A failed one has the outcome fault."""
    rows = store.rows("answers", "key", [k.key for k in keys])
    found = dict(zip(arrow.id_texts(rows["key"]), arrow.question.records(rows), strict=True))
    return {k.question: found.get(k.key, Question(k.question, "", outcome="fault")) for k in keys}


def _parting(
    a: Question, b: Question, old: AnswerKey, new: AnswerKey, stages: Sequence[StageRecord]
) -> StageRecord | str:
    """The first question stage with another result; "row" if the row is another, "evidence" if something
    else of it was there; "" for none."""
    if old.row != new.row:
        return "row"
    if old.absent != new.absent:
        return "evidence"
    question = [s for s in stages if s.half == "question"]
    for i, stage in enumerate(question):
        last = not any("order" in later.writes for later in question[i + 1 :])
        if _made(a, stage, last) != _made(b, stage, last):
            return stage
    return ""


def _made(q: Question, stage: StageRecord, orders: bool) -> dict[str, Any]:
    """Returns what a stage made of a question, as far as its stored answer still shows it."""
    out: dict[str, Any] = {}
    for name in stage.writes:
        kind, _, part = name.partition(".")
        if kind == "hits" and part:
            out[name] = {h.chunk: h.scores[part] for h in q.hits if part in h.scores}
        elif kind == "replies":
            made = q.replies.get(part)
            out[name] = None if made is not None and made.label == TRACE else made
        elif name == "citations":
            out[name] = q.citations
        elif name == "order" and orders:
            out[name] = q.order
        elif name in ("answer", "outcome", "origin"):
            out[name] = getattr(q, name)
    return out


def _path(q: Question, stage: StageRecord | str) -> str:
    """The result of the stage, in a line."""
    if isinstance(stage, str):
        return ""
    parts = []
    for name, made in _made(q, stage, True).items():
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
    """Returns what differs in the stage itself, else in the nearest one before it that differs at all."""
    names = [s.name for s in stages]
    for name in reversed(names[: names.index(step) + 1]):
        if name in own:
            return own[name]
    return next((d for d in own.values() if d.stage not in names), None)
