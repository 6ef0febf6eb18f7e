"""Checks a step from outside before a recipe uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from raypipe.api.results import Result
from raypipe.api.session import Session
from raypipe.core.protocols import Model
from raypipe.recipes import check
from raypipe.recipes.resolve import resolvers
from raypipe.report.report import JSON_FORMAT


@dataclass(frozen=True, slots=True)
class StepCheckResult(Result):
    """What the laws of steps say of one step; its rows are the laws."""

    found: check.StepCheck

    @property
    def title(self) -> str:
        return f"{self.found.step}, a {self.found.half} step, version {self.found.version}"

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """A row for each law: whether it holds, and what was found instead."""
        return [asdict(law) for law in self.found.laws]

    def to_json(self) -> dict[str, Any]:
        return {"format": JSON_FORMAT, **asdict(self.found), "holds": self.found.holds}


def check_step(
    step: str,
    fields: Mapping[str, Any] | None = None,
    lock: bool = False,
    session: Session | None = None,
) -> StepCheckResult:
    """Runs the laws of steps on a step of your own, and compares its output with its lock.

    `step` is its path, MODULE:CLASS, `fields` are its fields as a recipe has them. Models are fakes that
    compute. `lock` writes its line in steps.lock, next to its module, unless the output changed and the
    version did not. Raises ConfError for a path that leads to no step, DataError for a step that raises.
    """
    session = session or Session()
    models = session.catalog()
    kinds = {name: entry.kind for name, entry in models.entries.items()}
    resolve: dict[Any, Any] = {**resolvers(session.settings.conf, models), Model: check.fakes_for(kinds)}
    return StepCheckResult(check.check_step(step, fields or {}, resolve, lock))
