"""Checks a step from outside before a recipe uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raypipe.api.results import Result, as_json, plain
from raypipe.api.session import Session
from raypipe.core.protocols import Model
from raypipe.recipes import check
from raypipe.recipes.resolve import resolvers


@dataclass(frozen=True, slots=True)
class StepCheckResult(Result):
    """What the laws of steps say of one step; a row for each law: whether it holds, and what was found."""

    TITLE = "{0.found.step}, a {0.found.half} step, version {0.found.version}"
    found: check.StepCheck

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return plain(self.found.laws)  # type: ignore[no-any-return]

    def to_json(self) -> dict[str, Any]:
        return as_json(**plain(self.found), holds=self.found.holds)


def check_step(
    step: str, fields: Mapping[str, Any] | None = None, lock: bool = False, session: Session | None = None
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
