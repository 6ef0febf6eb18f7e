"""Trials: a run that answers some live questions next to the live release, as a canary or as a shadow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raypipe.api.release import finished, gates_of
from raypipe.api.results import Result, plain
from raypipe.api.session import Place, Session
from raypipe.core.errors import ConfError
from raypipe.runs import trial_verdict
from raypipe.runs.gates import MIN_SCORED
from raypipe.runs.trial_verdict import TrialReport
from raypipe.runs.trials import ReleaseTrial, begin_trial, trials
from raypipe.store import Store


@dataclass(frozen=True, slots=True)
class TrialResult(Result):
    """The canary and the shadow as they do now, and how the last trial ended; a row for each."""

    SCHEMA = "role release live share:float64 gate verdict why questions:int64 same:int64"
    store: str  # URI
    running: tuple[TrialReport, ...]
    ended: TrialReport | None  # the last; None: none has

    @property
    def title(self) -> str:
        return f"trials in {self.store}: {len(self.running)} running"

    def rows(self) -> Iterator[Mapping[str, Any]]:
        for r in (*self.running, *([self.ended] if self.ended else [])):
            yield {**plain(r), **plain(r.trial)}


def start_canary(
    run: str | Path, share: float, gates: Sequence[str] = (), store: Place = None,
    min_scored: float | None = None, session: Session | None = None,
) -> TrialResult:  # fmt: skip
    """Has a finished run answer a share of the live questions, above 0 and at most 1, until its gate ends it.

    Of the `gates` one is `better`, `not-worse` or `not-worse:M`: it ends the canary, which then goes live or
    is rolled back by the endpoints that follow the live release. The others are bounds that the run passes
    before, as in `promote`. Raises ConfError without such a gate, where nothing is live, and for another
    canary; GateFailed.
    """
    manifest, opened = finished(run, store, session)
    ends, bounds = gates_of(gates)
    if len(ends) != 1:
        found = ", ".join(g.text for g in ends) or "none"
        raise ConfError(
            "canary: expected one gate that ends it, --gate better, --gate not-worse or --gate not-worse:M; "
            f"found {found}"
        )
    least = MIN_SCORED if min_scored is None else min_scored
    begin_trial(opened, manifest, "canary", share, ends[0].text, bounds, least)
    return _found(opened)


def start_shadow(
    run: str | Path, share: float, store: Place = None, session: Session | None = None
) -> ReleaseTrial:
    """Has a finished run answer a share of the live questions again, after the reply of the live release was
    sent. Raises ConfError as `start_canary`."""
    manifest, opened = finished(run, store, session)
    trial, _ = begin_trial(opened, manifest, "shadow", share, "")
    return trial


def show_trials(store: Place = None, session: Session | None = None) -> TrialResult:
    """Says how the canary and the shadow of a store do, and how the last trial ended."""
    return _found((session or Session()).store(store))


def stop_trials(store: Place = None, session: Session | None = None) -> TrialResult:
    """Ends the canary and the shadow of a store; the live release stays. Raises ConfError where there is
    none."""
    opened = (session or Session()).store(store)
    running = trials(opened)
    if not running:
        raise ConfError(f"{opened.uri}: there is no canary and no shadow to stop")
    for trial in running:
        trial_verdict.end_trial(opened, trial, "stopped", "it was stopped by hand")
    return _found(opened)


def _found(store: Store) -> TrialResult:
    running = tuple(trial_verdict.report_on(store, t) for t in trials(store))
    return TrialResult(store.uri, running, trial_verdict.last_report(store))
