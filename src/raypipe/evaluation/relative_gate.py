"""Gates that hold a run against another one: `better`, `not-worse`, `not-worse:0.01`."""

from __future__ import annotations

import math

from raypipe.evaluation.compare import RunComparison, compare
from raypipe.evaluation.scored_run import ScoredRun
from raypipe.metrics.certainty import not_worse
from raypipe.runs.gates import NAMED, GateFailed, RelativeGate

_POWER = 2.49  # z(.95) + z(.8): a margin of 2.49 standard errors is kept in 80 % of runs


def check(gate: RelativeGate, run: ScoredRun, other: ScoredRun) -> RunComparison:
    """Holds a run against another. Raises GateFailed with what is missing, DataError for runs that cannot be
    compared."""
    (found,) = compare([other, run], gate.margin)
    if found.verdict == "better" if gate.better else not_worse(found.score, gate.margin):
        return found
    raise GateFailed(f"gate {gate.text}: {run.name} against {other.name}: {_why(gate, found)}")


def _why(gate: RelativeGate, found: RunComparison) -> str:
    d = found.score
    said = [f"{found.measure} {d.difference:+.3f} over {d.n} questions, p {found.p:.3g}, {found.verdict}"]
    if found.verdict == "cannot tell" and gate.better and d.questions_needed and d.questions_needed > d.n:
        said.append(f"{d.questions_needed - d.n} more questions would show this difference")
    if d.interval is None:
        said.append(f"{d.groups} groups of questions are too few")
    if not gate.better and d.interval_90 is not None:
        said.append(f"it may be {-d.interval_90[0]:.3f} worse, {gate.margin:g} is allowed")
        room, error = d.difference + gate.margin, (d.interval_90[1] - d.interval_90[0]) / 2 / 1.645
        more = "more questions would not help: the difference itself is larger"
        if room > 0:  # how many would show it, were the difference as it is here
            needed = math.ceil(d.n * (_POWER * error / room) ** 2)
            more = f"{max(1, needed - d.n)} more questions would show that it is not"
        said.append(more)
    for name, n in ((found.after, found.seen[1]), (found.before, found.seen[0])):
        if n:
            said.append(f"a fit or an adapter of {name} has seen {n} of them")
    missing = (
        (found.only_before, "are not in this run"), (found.only_after, f"are not in {found.before}"),
        (found.unscored, "are not scored in both"), (found.other_questions, "are other questions there"),
    )  # fmt: skip
    for ids, what in missing:
        if ids:
            more = ", ..." * (len(ids) > NAMED)
            said.append(f"{len(ids)} questions {what} ({', '.join(ids[:NAMED])}{more})")
    return "; ".join(said) + ". live stays as it is"
