"""Shared parts of `fit_decide` and `fit_fuse`: a finished run, its two halves, and the gain of a fit.

Numbers are fitted on one half of the questions, and measured on the other, unseen half. This module reads the
run's folder and its recipe; it fits nothing and calls no model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raypipe.core.digests import HALVES, FittedOn, half_of, seen_rows
from raypipe.core.errors import ConfError
from raypipe.core.records import Hit, Question, Reply, digest, parse_chunk_id
from raypipe.evaluation.bounded_difference import Values, bounded
from raypipe.evaluation.compare import require_label
from raypipe.evaluation.result_table import each
from raypipe.metrics.kinds import Measure, group_of, recorded_kind
from raypipe.metrics.paired_tests import MARGIN, mean_interval
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.serialize import from_plain
from raypipe.recipes.wiring import basis, fits_of, has_seen
from raypipe.runs.record import Run, read
from raypipe.runs.run_parts import RunFolder


@dataclass(frozen=True, slots=True)
class FitRun:
    """A finished run, opened for a fit."""

    folder: Path
    record: Run
    recipe: Recipe
    split: int  # half of the questions to fit on, 0 or 1
    group: str | None  # label whose values group questions; a group is in one half. None: no groups
    own_group: bool  # True: `group` comes from the kind of data, and a question may lack it

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows of the run's table, in order. Raises DataError if the user named `group` and a
        question lacks this label."""
        found = list(each(RunFolder(self.folder).results))
        if self.group is not None and not self.own_group:
            require_label(str(self.folder), self.group, {r["id"]: r["labels"] for r in found})
        return found

    def key(self, row: Mapping[str, Any]) -> str:
        """Returns the text whose hash assigns a row to a half: its group, or else its id."""
        return str(row["labels"].get(self.group, row["id"]))

    def halves(
        self, rows: Sequence[Mapping[str, Any]], scored: Collection[str], stage: str, metric: str
    ) -> tuple[FittedOn, set[str], set[str], int]:
        """Splits the rows into the half to fit on and the unseen half. Returns a record of the data that
        `stage` is fitted on, the ids of both halves, and how many scored rows the unseen half omits because
        an earlier fit of the recipe has seen them. It also omits questions that are fitted on under another
        id. The record covers only rows in `scored`, because a fit uses no others."""
        ours = [r for r in rows if half_of(self.key(r)) == self.split]
        used = [r for r in ours if r["id"] in scored]
        named = digest(*(part for r in used for part in (r["id"], r["query"], *r["golds"])))
        on = FittedOn(
            data=f"run {self.record.run} of {self.record.questions} questions, rows {named}",
            split=f"half {self.split} of {HALVES} by a hash of its {self.group or 'id'}",
            metric=metric,
            n=len(used),
            recipe=self.recipe.title,
            basis=basis(self.recipe, stage),
            seen=seen_rows(r["query"] for r in used),
        )
        fits = fits_of(self.recipe).values()
        others = [r for r in rows if half_of(self.key(r)) != self.split]
        before = {r["id"] for r in others if has_seen(fits, r["query"])}
        unseen = {r["id"] for r in others if r["id"] not in before and not on.has_seen(r["query"])}
        return on, {r["id"] for r in ours}, unseen, len(before & set(scored))


def open_run(folder: Path, split: int, group: str | None) -> FitRun:
    """Opens the folder of a finished run. `split` is the half of the questions to fit on, 0 or 1. `group` is
    a label whose values group questions; None: the label that the kind of data names, if any. Raises
    ConfError if `split` is invalid, if golds replaced a stage or answers were kept from an earlier run, and
    if this raypipe would compute the recipe differently. Raises DataError if the run did not finish."""
    if not 0 <= split < HALVES:
        raise ConfError(f"--split {split}: expected 0 or 1, the half of the questions to fit on")
    record = read(folder)
    if record.oracle:
        raise ConfError(f"{folder}: expected only answers of the recipe, found golds in place of a stage")
    if record.kept:
        raise ConfError(f"{folder}: expected answers of one recipe, found some that --only-new kept")
    own = group_of(recorded_kind(record.kind)) if group is None else None
    return FitRun(folder, record, from_plain(record.recipe), split, group or own, own is not None)


def question_of(row: Mapping[str, Any]) -> Question:
    """Rebuilds a row's question with its replies and scores, but without citations and faults."""
    hits = [Hit(h["chunk"], *parse_chunk_id(h["chunk"]), h["scores"]) for h in row["hits"]]
    replies = {r["step"]: Reply(r["text"], r["label"], r["confidence"], r["logprob"]) for r in row["replies"]}
    order = tuple(h["chunk"] for h in row["hits"] if h["ranked"])
    said: dict[str, Any] = {name: row[name] or "" for name in ("asked_at", "origin", "outcome", "answer")}
    return Question(row["id"], row["query"], replies=replies, hits=tuple(hits), order=order, **said)


def held_against(
    values: Values, first: Values, scored: int, by: Measure, groups: Sequence[str] | None
) -> dict[str, Any]:
    """Scores `values`, and measures the gain of `first` (the fit's values) over them. Returns fields of
    PolicyScore and WeightScore. The first `scored` values are numbers; later ones belong to open questions. A
    question that is open in both lists is left out, because its unknown outcome is the same in both. Gain and
    verdict are None if `values` is `first` itself."""
    known, known_groups = np.array(values[:scored], float), None if groups is None else groups[:scored]
    within, score = mean_interval(known, (by.low, by.high), known_groups), float(known.mean())
    if values is first:
        return {"score": score, "interval": within, "gain": None, "verdict": None, "open": 0}
    pairs = list(zip(values, first, strict=True))
    at = [i for i, pair in enumerate(pairs) if pair != (None, None)]
    before, after = ([of[i] for i in at] for of in (values, first))
    found = bounded(before, after, scored, by, groups and [groups[i] for i in at])
    verdict, undecided = found.verdict(MARGIN)
    open_ = sum(None in pairs[i] for i in at) if undecided else 0
    return {"score": score, "interval": within, "gain": found.score, "verdict": verdict, "open": open_}


def short(x: float) -> float:
    """Rounds to the six digits that the fit's file has, so that scores are those of the written numbers."""
    return float(f"{x:.6g}")
