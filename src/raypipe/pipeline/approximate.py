"""The approximate indexes that a recipe searches: which there are, and whether each was measured.

Knows recipes and the store; reads, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from raypipe.core.ann import AnnRecall, Approximate
from raypipe.core.errors import ConfError, RaypipeError
from raypipe.core.protocols import Model
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import approximate, embedder_of
from raypipe.store import Store
from raypipe.store.approximate import ann_index, recall_of, require_ann
from raypipe.store.index import IndexSpec


class RecallTooLow(RaypipeError):
    """An approximate search finds less of the exact best than its recipe demands."""

    exit_code = 7


@dataclass(frozen=True, slots=True)
class AnnStage:
    """A stage that searches the whole store by an approximate index."""

    name: str  # of the stage
    model: Model
    table: str  # of its vectors
    top: int
    how: Approximate


@dataclass(frozen=True, slots=True)
class AnnState:
    """What is there of an approximate index that a stage searches."""

    stage: str
    kind: str  # of the index, such as ivf_rq
    rows: int  # vectors that there are; 0: none yet
    index: str  # its name; "": not built
    unindexed: int  # vectors that it lacks
    recall: AnnRecall | None  # None: not measured with these settings


def ann_stages(recipe: Recipe) -> list[AnnStage]:
    """The stages of a recipe that search by an approximate index."""
    found = []
    for stage in recipe.question:
        if (searched := approximate(stage.step)) is not None:
            how, top = searched
            model = embedder_of(stage.step)
            found.append(AnnStage(stage.name, model, f"vectors-{recipe.vectors_digest(model)}", top, how))
    return found


def ann_names(store: Store, recipe: Recipe) -> list[str]:
    """The names of the indexes that a recipe searches: another index may find other passages."""
    tables = dict.fromkeys(s.table for s in ann_stages(recipe))
    opened = (ann_index(store.dataset(t)) for t in tables if store.has(t))
    return [found.name for found in opened if found is not None]


def ann_states(store: Store, recipe: Recipe) -> list[AnnState]:
    """What there is of each approximate index that a recipe searches."""
    return [_state(store, s) for s in ann_stages(recipe)]


def _state(store: Store, stage: AnnStage) -> AnnState:
    if not store.has(stage.table):
        return AnnState(stage.name, stage.how.index, 0, "", 0, None)
    rows, found = store.count(stage.table), ann_index(store.dataset(stage.table))
    if found is None:
        return AnnState(stage.name, stage.how.index, rows, "", rows, None)
    recall = recall_of(store, stage.table, found.name, stage.top, stage.how)
    return AnnState(stage.name, stage.how.index, rows, found.name, found.unindexed, recall)


def require_measured(store: Store, recipe: Recipe, at: IndexSpec | None = None) -> list[AnnRecall]:
    """The measured recall of each approximate index, in the order of the stages, of tables at the versions of
    `at`; None: the newest. Raises ConfError for one that is not there, lacks vectors or was not measured,
    RecallTooLow for one below its `min_recall`."""
    versions = {pinned.table: pinned.version for pinned in at.pinned()} if at else {}
    found = []
    for stage in ann_stages(recipe):
        index = require_ann(store.dataset(stage.table, versions.get(stage.table)))
        recall = recall_of(store, stage.table, index.name, stage.top, stage.how)
        if recall is None:
            raise ConfError(
                f"stage {stage.name}: the recall of index {index.name} was not measured with "
                f"top {stage.top}, probes {stage.how.probes}, refine {stage.how.refine}: "
                f"`raypipe ann {recipe.name} --store {store.uri}` measures it"
            )
        found.append(recall)
        require_recall(stage, recall)
    return found


def require_recall(stage: AnnStage, found: AnnRecall) -> None:
    """Raises RecallTooLow where a measured question finds less than the stage's `min_recall`."""
    if found.worst < stage.how.min_recall:
        raise RecallTooLow(
            f"stage {stage.name}: expected each question to find at least {stage.how.min_recall:g} of the "
            f"exact best {stage.top}; the worst of {found.questions} finds {found.worst:.3f} (question "
            f"{found.worst_question!r}; mean {found.mean:.3f}, 5 % at or below {found.fifth:.3f}). Raise "
            "probes or refine, lower min_recall, or leave `ann` out: the exact search finds all"
        )
