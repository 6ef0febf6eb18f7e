"""What the pairs of a trial say: is the release on trial worse than the live one, or may it go live?

Two things are measured over questions that both releases answered, each question once with its first pair:

- `f1`, the words that an answer shares with the best truth, where the question has a gold: a stored one, or
  the text that a user gave. A verdict alone is no truth: it is about the reply, which one side gave.
- `answered`, whether there is an answer at all, of every pair. It sees a release that fails or abstains.

A gate that looks again with every pair finds something in the end. So it looks at 8, 16, 32, ... questions,
and the k-th look may err with a chance of 0.025 / 2**k: over both measures and all looks, at most 5 %.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from raypipe.metrics.certainty import mean_interval, paired
from raypipe.runs import trials
from raypipe.runs.gates import relative_gate
from raypipe.runs.release import go_live, live
from raypipe.runs.store_records import read_record, write_record
from raypipe.store import Store
from raypipe.store.layout import TRIAL_REPORTS

FIRST_LOOK = 8
"""Questions at the first look: 8 of 8 lost have a p of 0.0078, under the first look's 0.0125."""

ERROR = 0.025  # of each of the two measures, over all looks
EXAMPLES = 10  # questions that a report shows
Verdict: TypeAlias = Literal["running", "live", "rolled back", "stopped"]
HAS_ANSWER = ("answered", "false_premise")


@dataclass(frozen=True, slots=True)
class Look:
    """One measure over the questions that were looked at."""

    measure: str  # f1 or answered
    questions: int  # that are measured now
    looked: int  # of these, the first ones that a look was taken at; 0: there are too few for one
    live: float | None  # mean over `looked` questions; None: none
    trial: float | None
    p: float | None  # two-sided
    error: float | None  # chance that this look may err with
    least: float | None  # lower end of the difference, trial - live, at that chance


@dataclass(frozen=True, slots=True)
class Example:
    """A question whose answers differ most."""

    question: str  # id
    live: str
    trial: str
    f1_live: float | None
    f1_trial: float | None


@dataclass(frozen=True, slots=True)
class TrialReport:
    """How a trial does, or how it ended."""

    format: int
    trial: trials.ReleaseTrial
    verdict: Verdict
    why: str  # one sentence
    at: float  # seconds since the epoch
    pairs: int
    questions: int  # distinct
    same: int  # questions that both answered alike, to the character
    failed: int  # questions that the release on trial could not answer
    ms: Mapping[str, float]  # wall time: live_p50, live_p99, trial_p50, trial_p99
    f1: Look
    answered: Look
    examples: tuple[Example, ...]


def looked_at(questions: int) -> tuple[int, float]:
    """The questions of the last look, and the chance that it may err with.

    >>> [looked_at(n) for n in (7, 8, 15, 40)]
    [(0, 0.0), (8, 0.0125), (8, 0.0125), (32, 0.003125)]
    """
    if questions < FIRST_LOOK:
        return 0, 0.0
    k = int(math.log2(questions / FIRST_LOOK))
    return FIRST_LOOK << k, ERROR / 2 ** (k + 1)


def report_on(store: Store, trial: trials.ReleaseTrial) -> TrialReport:
    """How a trial does now."""
    evidence = trials.TrialEvidence(store, trial)
    return report_of(evidence, evidence.read())


def report_of(evidence: trials.TrialEvidence, truths: Mapping[str, tuple[str, ...]]) -> TrialReport:
    """The report of what was read; of a canary with what its gate says. Its p values are drawn: a second for
    some thousand questions."""
    trial, pairs, asked = evidence.trial, evidence.pairs, list(evidence.first.values())
    scored: dict[str, tuple[float, float]] = {}
    for p in asked:
        if (right := truths.get(p.question)) is not None:
            live, other = (trials.side_values(side, right)["f1"] for side in (p.live, p.trial))
            scored[p.question] = live, other
    has = [(float(p.live.outcome in HAS_ANSWER), float(p.trial.outcome in HAS_ANSWER)) for p in asked]
    f1, answered = _look("f1", list(scored.values())), _look("answered", has)
    verdict, why = _decided(trial, f1, answered) if trial.role == "canary" else ("running", "")

    def least_gain(pair: trials.Pair) -> tuple[float, str]:
        before, after = scored.get(pair.question, (0.0, 0.0))
        return -abs(after - before), pair.question

    differing = sorted((p for p in asked if p.live.answer != p.trial.answer), key=least_gain)
    examples = (
        Example(p.question, p.live.answer, p.trial.answer, *scored.get(p.question, (None, None)))
        for p in differing[:EXAMPLES]
    )
    times = {"live": [p.live.ms for p in pairs], "trial": [p.trial.ms for p in pairs]}
    ms = {
        f"{side}_p{q}": round(float(np.percentile(found, q)), 1)
        for side, found in times.items()
        for q in (50, 99)
        if found
    }
    return TrialReport(
        trial.format, trial, verdict, why, time.time(), len(pairs), len(asked), len(asked) - len(differing),
        sum(p.trial.outcome == "fault" for p in asked), ms, f1, answered, tuple(examples),
    )  # fmt: skip


def _look(measure: str, values: Sequence[tuple[float, float]]) -> Look:
    n, error = looked_at(len(values))
    if not n:
        return Look(measure, len(values), 0, None, None, None, None, None)
    before, after = zip(*values[:n], strict=True)
    found = paired(before, after, 1.0)
    interval = mean_interval(np.subtract(after, before), (-1.0, 1.0), None, 1 - 2 * error)
    least = None if interval is None else interval[0]
    return Look(measure, len(values), n, found.before, found.after, found.p, error, least)


def _decided(trial: trials.ReleaseTrial, f1: Look, answered: Look) -> tuple[Verdict, str]:
    """What the gate of a canary says, and why."""
    gate = relative_gate(trial.gate)
    assert gate is not None
    for look in (f1, answered):
        if worse(look):
            why = f"worse than {trial.live}, and gate {gate.text} cannot be passed"
            return "rolled back", f"{_said(look)}: {why}"
    not_worse = f1.p is not None and f1.least is not None and f1.least > -gate.margin
    if _gained(f1) > 0 if gate.better else not_worse:
        return "live", f"{_said(f1)}: gate {gate.text} is passed"
    return "running", f"{_said(f1)}: gate {gate.text} is not decided"


def worse(look: Look) -> bool:
    """Whether the release on trial lost this look."""
    return _gained(look) < 0


def _gained(look: Look) -> float:
    """How much the release on trial gained in this look; 0 where that may be chance, or nothing is known."""
    if look.p is None or look.error is None or look.live is None or look.trial is None:
        return 0.0
    return look.trial - look.live if look.p < look.error else 0.0


def _said(look: Look) -> str:
    if not look.looked:
        return f"{look.measure} of {look.questions} questions, a first look needs {FIRST_LOOK}"
    least = "" if look.least is None else f", at least {look.least:+.3f}"
    return (
        f"{look.measure} {look.trial:.3f} against {look.live:.3f} over {look.looked} questions"
        f"{least}, p {look.p:.3g} (this look: {look.error:.3g})"
    )


class TrialWatch:
    """Looks at a trial when enough questions are there, and ends a canary where its gate says so."""

    def __init__(self, store: Store, trial: trials.ReleaseTrial) -> None:
        self._store, self.trial = store, trial
        self._evidence = trials.TrialEvidence(store, trial)
        self._looked_at = (-1, -1)

    def look(self) -> TrialReport | None:
        """The report of a look; None where no look is due. A canary that is over goes live or is rolled back,
        and its report is kept. Safe in several processes: one of them ends it."""
        trial, now = self.trial, live(self._store)
        if now is not None and now.id == trial.release:  # a killed process had made it live
            with self._store.lease("release", f"end {trial.role} {trial.release}"):
                trials.remove_trial(self._store, trial)
            return None
        if now is None or now.id != trial.live:
            named = "nothing" if now is None else now.id
            why = f"{named} is live now, and the {trial.role} was held against {trial.live}"
            return stop_trial(self._store, trial, why)
        truths = self._evidence.read()
        first = self._evidence.first
        sizes = looked_at(sum(q in truths for q in first))[0], looked_at(len(first))[0]
        if sizes == self._looked_at:
            return None
        found = report_of(self._evidence, truths)
        if found.verdict != "running":
            found = _end(self._store, found)
        self._looked_at = sizes  # last: what cannot be ended now is tried again
        return found


def stop_trial(store: Store, trial: trials.ReleaseTrial, why: str) -> TrialReport:
    """Ends a trial, whatever its gate says; the live release stays."""
    evidence = trials.TrialEvidence(store, trial)
    return _end(store, replace(report_of(evidence, evidence.read()), verdict="stopped", why=why))


def _end(store: Store, found: TrialReport) -> TrialReport:
    trial = found.trial
    with store.lease("release", f"end {trial.role} {trial.release}"):
        if trials.read_trial(store, trial.role) == trial:
            # The trial goes last: after a kill in between, the next look ends it.
            name = f"{TRIAL_REPORTS}/{int(found.at * 1000):015d}-{trial.release}.json"
            write_record(store, name, found)
            if found.verdict == "live":
                go_live(store, trial.release)
            trials.remove_trial(store, trial)
    return found


def last_report(store: Store) -> TrialReport | None:
    """How the last trial ended; None: none has. Raises StoreError for a damaged file."""
    names = store.files.names(TRIAL_REPORTS)
    return read_record(store, f"{TRIAL_REPORTS}/{names[-1]}", TrialReport, "Remove it") if names else None
