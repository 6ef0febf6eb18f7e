"""What the pairs of a trial say: is the release on trial worse than the live one, or may it go live?

Two things are measured over questions that both releases answered, each question once with its first pair:

- `f1`, the words that an answer shares with the best truth, where the question has a gold: a stored one, or
  the text that a user gave. A verdict alone is no truth: it is about the reply, which one side gave.
- `answered`, whether there is an answer at all, of every pair. It sees a release that fails or abstains.

A gate that looks again with every pair finds something in the end. So it looks at 8, 16, 32, ... questions,
and the k-th look may err with a chance of 0.025 / 2**k: over both measures and all looks, at most 5 %.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from raypipe.core import config
from raypipe.core.config import Where
from raypipe.core.errors import ConfError
from raypipe.core.plain import to_json
from raypipe.metrics.certainty import mean_interval, paired
from raypipe.runs import trials
from raypipe.runs.gates import RelativeGate, relative_gate
from raypipe.runs.release import go_live, live
from raypipe.store import Store, StoreError
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
    """How a trial does now; of a canary with what its gate says."""
    evidence = trials.TrialEvidence(store, trial)
    found = report_of(evidence, evidence.read())
    return looked(found) if trial.role == "canary" else found


def report_of(evidence: trials.TrialEvidence, truths: Mapping[str, tuple[str, ...]]) -> TrialReport:
    """The report of what was read. Its p values are drawn: a second for some thousand questions."""
    first, trial = evidence.first, evidence.trial
    asked = list(first.values())
    right = {p.question: truths[p.question] for p in asked if p.question in truths}
    scored = {
        q: (trials.side_values(first[q].live, t)["f1"], trials.side_values(first[q].trial, t)["f1"])
        for q, t in right.items()
    }
    has = {q: (_answered(p.live), _answered(p.trial)) for q, p in first.items()}
    differing = sorted(
        (p for p in asked if p.live.answer != p.trial.answer),
        key=lambda p: (-abs(_gain(scored.get(p.question))), p.question),
    )
    return TrialReport(
        trial.format, trial, "running", "", time.time(), len(evidence.pairs), len(asked),
        sum(p.live.answer == p.trial.answer for p in asked),
        sum(p.trial.outcome == "fault" for p in asked), _times(evidence.pairs),
        _look("f1", list(scored.values())), _look("answered", list(has.values())),
        tuple(_example(p, scored.get(p.question)) for p in differing[:EXAMPLES]),
    )  # fmt: skip


def _answered(side: trials.TrialAnswer) -> float:
    return float(side.outcome in HAS_ANSWER)


def _gain(values: tuple[float, float] | None) -> float:
    return 0.0 if values is None else values[1] - values[0]


def _example(pair: trials.Pair, values: tuple[float, float] | None) -> Example:
    before, after = values or (None, None)
    return Example(pair.question, pair.live.answer, pair.trial.answer, before, after)


def _times(pairs: Sequence[trials.Pair]) -> dict[str, float]:
    out = {}
    for name, ms in (("live", [p.live.ms for p in pairs]), ("trial", [p.trial.ms for p in pairs])):
        for q in (50, 99) if ms else ():
            out[f"{name}_p{q}"] = round(float(np.percentile(ms, q)), 1)
    return out


def _look(measure: str, values: Sequence[tuple[float, float]]) -> Look:
    n, error = looked_at(len(values))
    if not n:
        return Look(measure, len(values), 0, None, None, None, None, None)
    before, after = zip(*values[:n], strict=True)
    found = paired(before, after, 1.0)
    interval = mean_interval(np.subtract(after, before), (-1.0, 1.0), None, 1 - 2 * error)
    least = None if interval is None else interval[0]
    return Look(measure, len(values), n, found.before, found.after, found.p, error, least)


def decided(trial: trials.ReleaseTrial, found: TrialReport) -> tuple[Verdict, str]:
    """What the gate of a canary says, and why."""
    gate = relative_gate(trial.gate)
    assert gate is not None
    for look in (found.f1, found.answered):
        if worse(look):
            return (
                "rolled back",
                f"{_said(look)}: worse than {trial.live}, and gate {gate.text} cannot be passed",
            )
    if _passes(gate, found.f1):
        return "live", f"{_said(found.f1)}: gate {gate.text} is passed"
    return "running", f"{_said(found.f1)}: gate {gate.text} is not decided"


def worse(look: Look) -> bool:
    """Whether the release on trial lost this look."""
    return _gained(look) < 0


def _gained(look: Look) -> float:
    """How much the release on trial gained in this look; 0 where that may be chance, or nothing is known."""
    if look.p is None or look.error is None or look.live is None or look.trial is None:
        return 0.0
    return look.trial - look.live if look.p < look.error else 0.0


def _passes(gate: RelativeGate, look: Look) -> bool:
    if gate.better:
        return _gained(look) > 0
    return look.p is not None and look.least is not None and look.least > -gate.margin


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
        if trial.role == "canary":
            found = looked(found)
        if found.verdict != "running":
            found = _end(self._store, found)
        self._looked_at = sizes  # last: what cannot be ended now is tried again
        return found


def looked(found: TrialReport) -> TrialReport:
    """A canary's report with what its gate says."""
    verdict, why = decided(found.trial, found)
    return replace(found, verdict=verdict, why=why)


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
            store.files.write(name, json.dumps(to_json(found), allow_nan=False).encode())
            if found.verdict == "live":
                go_live(store, trial.release)
            trials.remove_trial(store, trial)
    return found


def last_report(store: Store) -> TrialReport | None:
    """How the last trial ended; None: none has. Raises StoreError for a damaged file."""
    names = store.files.names(TRIAL_REPORTS)
    name = f"{TRIAL_REPORTS}/{names[-1]}" if names else ""
    raw = store.files.read(name) if names else None
    if raw is None:
        return None
    try:
        return config.build(TrialReport, json.loads(raw), Where(f"{store.uri}/{name}"))
    except (ValueError, ConfError) as e:
        raise StoreError(f"{store.uri}/{name}: expected a report that raypipe wrote ({e}). Remove it") from e
