"""Approximate indexes: built for a recipe that searches by one, and measured against the exact search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from raypipe.api.pipelines import offline_pipeline
from raypipe.api.results import Result, as_json, outside_loop, plain
from raypipe.api.session import Named, Place, Session
from raypipe.core.ann import AnnRecall
from raypipe.core.errors import ConfError
from raypipe.evaluation import ann as measuring
from raypipe.pipeline.approximate import AnnStage, ann_stages, require_recall


@dataclass(frozen=True, slots=True)
class AnnResult(Result):
    """The approximate indexes of a recipe; a row for each stage that searches by one."""

    SCHEMA = (
        "stage built:bool index top:int64 probes:int64 refine:int64 questions:int64 mean:float64 "
        "fifth:float64 worst:float64 worst_question"
    )
    TITLE = "{0.recipe}"
    recipe: str  # its name
    built: tuple[str, ...]  # tables whose index this call built
    found: tuple[tuple[AnnStage, AnnRecall], ...]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        for stage, recall in self.found:
            yield {"stage": stage.name, "built": stage.table in self.built, **plain(recall)}

    def to_json(self) -> dict[str, Any]:
        return as_json(recipe=self.recipe, stages=list(self.rows()))

    def check_recall(self) -> None:
        """Raises RecallTooLow where a measured question finds less than its stage's `min_recall`."""
        for stage, recall in self.found:
            require_recall(stage, recall)


@outside_loop
def build_ann(
    recipe: Named, store: Place = None, questions: int = measuring.QUESTIONS, rebuild: bool = False,
    check: bool = True, session: Session | None = None,
) -> AnnResult:  # fmt: skip
    """Builds the approximate indexes that a recipe's steps name (`ann`), where they are missing or lack
    vectors, and measures their recall over at most `questions` stored questions.

    `rebuild` replaces those that are there; what is found may then differ, so questions of the whole store
    are answered again. `check` raises RecallTooLow below a step's `min_recall`. Raises ConfError for a recipe
    without `ann`, StoreError for vectors that are not there, DataError without questions.
    """
    session = session or Session()
    opened, found = session.store(store), session.recipe(recipe)
    if not ann_stages(found):
        raise ConfError(
            f"recipe {found.name!r}: no step searches by an approximate index. Add one to a step, such as "
            "`dense: {..., ann: {index: ivf_rq, probes: 50, refine: 4, min_recall: 0.7}}`"
        )
    pipeline = offline_pipeline(session, opened, found)
    built = measuring.built(pipeline, rebuild)
    result = AnnResult(found.name, tuple(built), tuple(measuring.measured(pipeline, questions)))
    if check:
        result.check_recall()
    return result
