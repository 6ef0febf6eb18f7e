"""Comparison of scored runs over the same questions."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from raypipe.api.results import Result
from raypipe.api.scores import opened
from raypipe.api.session import Place, Session
from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError, DataError
from raypipe.evaluation import compare as comparing
from raypipe.evaluation.compare import RunComparison
from raypipe.evaluation.judged_run import read_labels
from raypipe.evaluation.scored_run import ScoredRun, judged_again, scored_run, stored_run, unseen_alone
from raypipe.metrics.paired_tests import MARGIN
from raypipe.metrics.verdict_rules import Rule, rule_id
from raypipe.runs import release
from raypipe.runs.record import find

_RELEASE = re.compile(r"live|r\d+-\w+")


@dataclass(frozen=True, slots=True, repr=False)
class CompareResult(Result, rows="comparisons"):
    """Comparisons of runs with the first run. Each comparison is a row."""

    comparisons: tuple[RunComparison, ...]


def compare(
    *runs: str | Path,
    rule: Rule | None = None,
    margin: float = MARGIN,
    group: str | None = None,
    rejudge: str | None = None,
    trim: str | None = None,
    labels: str | Path | None = None,
    store: Place = None,
    session: Session | None = None,
    measure: str | None = None,
    unseen: bool = False,
) -> CompareResult:
    """Compares each run with the first run. The verdict is better, worse, same, or cannot tell.

    A run is the folder of a finished eval, a file of predictions, or a release of `store` (an id, or `live`).
    `rule` is the rule by which answers are scored. None means that a folder keeps its rule, and that a file
    is scored by `official`. A difference of up to `margin` counts as the same. `group` is a label, and all
    questions with the same value of this label count as one. `rejudge` is a judge that judges the answers of
    all runs again ("": the judge of the first run; None: the stored verdicts count). All runs are then scored
    by `rule`, or else by the rule of the first run. `trim` is a tokenizer by which answers are cut before
    they are judged. `labels` is a file of people's verdicts. `measure` is the measure to compare; None means
    the first measure of this kind of data. `unseen` leaves out questions that served to fit or train one of
    the recipes. Raises ConfError for fewer than two runs, for an unknown measure, and for a release that
    would have to be scored again. Raises DataError for runs of different kinds, for runs without a common
    scored question, and, if a judge decides the measure, for different rules, judges or cuts.
    """
    if len(runs) < 2:
        raise ConfError(f"expected two runs or more, found {len(runs)}")
    if margin <= 0:
        raise ConfError(f"expected a margin above 0, found {margin:g}")
    session = session or Session()
    people, judge = None if labels is None else read_labels(Path(labels)), rejudge
    if judge == "":
        first = scored_at(session, runs[0], rule or "official").judge if _has_files(runs[0]) else ""
        if not first:
            raise ConfError(f"--rejudge: {runs[0]} names no judge to take for all; name one: --rejudge MODEL")
        judge = first.partition("@")[0]
    again = (judge, trim, people) != (None, None, None)  # then the stored verdicts of the runs are not used
    scored = list[ScoredRun]()
    for run in runs:
        alike = scored[0].rule if scored and judge is not None and rule is None else rule
        if again and _has_files(run):
            judged = opened(session, run, alike, judge, trim)
            scored.append(judged_again(judged, people))
        else:
            scored.append(_scored(session, run, alike, again, store))
    chosen = unseen_alone(scored) if unseen else scored
    return CompareResult(comparing.compare(chosen, margin, group, measure))


def left_out(found: RunComparison, shown: int) -> list[str]:
    """Describes the questions that a comparison leaves out, one line per reason. A line names at most
    `shown` ids."""
    reasons = (
        (found.only_before, f"only in {found.before}"),
        (found.only_after, f"only in {found.after}"),
        (found.unscored, "scored in only one of them or in none"),
        (found.other_questions, "whose id has another text in each"),
        (found.kept, "whose answers one of them kept from an earlier run"),
    )
    return [
        f"{len(ids)} questions {why}: {', '.join(ids[:shown])}{', ...' * (len(ids) > shown)}"
        for ids, why in reasons
        if ids
    ]


def _has_files(run: str | Path) -> bool:
    """Returns True if `run` is an address or an existing path. False means that it may be a release."""
    return "://" in str(run) or Path(run).exists()


def scored_at(session: Session, run: str | Path, rule: Rule) -> ScoredRun:
    """Reads the measures of a finished run's folder, or scores a file of predictions by `rule`. `run` may be
    in an object store. Raises DataError for a missing path, and for a run that is not finished."""
    return replace(scored_run(session.local_run(run), rule), name=str(run))


def _scored(session: Session, run: str | Path, rule: Rule | None, again: bool, store: Place) -> ScoredRun:
    if _has_files(run):
        found = scored_at(session, run, rule or "official")
        if rule is None or found.rule == rule_id(rule):
            return found
        return judged_again(opened(session, run, rule, None, None), None)
    if not _RELEASE.fullmatch(str(run)):
        known = "the folder of a finished eval, a file of predictions, or a release (its id, or live)"
        raise DataError(f"{run}: expected {known}, found nothing there")
    held = session.store(store)
    releases = {r.id: r for r in release.releases(held)}
    released = release.live(held) if run == "live" else releases.get(str(run))
    if released is None:
        hint = did_you_mean(str(run), ["live", *releases])
        raise ConfError(f"{run} is no folder and no file, and {held.uri} has no such release; {hint}")
    if (record := find(held, released.run)) is None:
        raise ConfError(f"{held.uri} has no record of run {released.run}; name its folder")
    if again or (rule is not None and record.rule != rule_id(rule)):
        cause = f"release {released.id} has no folder here, and its answers cannot be judged again"
        raise ConfError(f"{cause}. Name the folder of run {released.run}")
    return stored_run(held, record, f"release {released.id}")
