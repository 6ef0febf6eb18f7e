"""What both halves of a plan work from: the pipeline, its finished runs, and what differs from the last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from raypipe.pipeline.driver import Pipeline
from raypipe.runs.manifest import Manifest, reason
from raypipe.runs.plan.rates import ExpectedCalls, cost, rate
from raypipe.runs.plan.records import NewSources, StepPlan
from raypipe.runs.stage_records import Difference, StageRecord, describe, differences


@dataclass(frozen=True, slots=True)
class PlanContext:
    """A recipe over a store, and the runs that it is compared with."""

    pipeline: Pipeline
    runs: Sequence[Manifest]  # finished on this store, the latest first
    measured: Sequence[Manifest]  # finished on this machine, on any store: they say how fast it is
    coming: NewSources
    fresh: bool  # every question is answered again, and no reply counts as cached
    stages: dict[str, StageRecord] = field(init=False)
    own: dict[str, Difference] = field(init=False)  # stage -> what differs from the last run

    def __post_init__(self) -> None:
        stages = describe(self.pipeline.recipe)
        object.__setattr__(self, "stages", {s.name: s for s in stages})
        object.__setattr__(self, "own", differences(self.last.stages, stages) if self.last else {})

    @property
    def last(self) -> Manifest | None:
        """The last finished run of the store."""
        return self.runs[0] if self.runs else None

    def why(self, name: str, had: bool) -> str:
        """Why a step is to do a row; `had`: the last finished run had it."""
        return reason(self.last, self.stages[name], self.own) if had else "row"

    def step(
        self, name: str, rows: float, cached: int, reasons: Mapping[str, float], todo: float,
        exact: bool, guess: ExpectedCalls | None, tokens: Callable[[float], float],
        stored: Callable[[float], float],
    ) -> StepPlan:  # fmt: skip
        """`reasons`: why -> how many calls. `todo`: rows to pass the step, as many as is likely. `tokens`:
        calls -> tokens, at most; `stored`: calls -> bytes."""
        max_calls = sum(reasons.values())
        place = self.pipeline.worker
        measured = rate(self.stages[name], (*self.runs, *self.measured), place.backend, place.device)
        costs = cost(tokens, stored, measured, todo, max_calls, exact, guess)
        return StepPlan(name, self.stages[name].half, rows, cached, max_calls, exact, reasons, guess, costs)

    def reasons(self, name: str, had: float, others: float) -> dict[str, float]:
        """Why a step makes calls -> how many, of rows that the last finished run `had`, and of others."""
        found: dict[str, float] = {}
        for calls, before in ((others, False), (had, True)):
            if calls:
                why = self.why(name, before)
                found[why] = found.get(why, 0) + calls
        return found
