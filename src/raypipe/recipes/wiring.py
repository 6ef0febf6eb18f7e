"""Checks that the steps of a recipe fit together: what each reads, an earlier one writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raypipe.core.config import Where, collected, did_you_mean
from raypipe.core.errors import ConfError, RaypipeError
from raypipe.core.protocols import Model
from raypipe.recipes.fits import misfitted
from raypipe.recipes.recipe import Recipe, Stage, ranking_of
from raypipe.recipes.step_contract import decides, embedder_of, table_of

GIVEN = frozenset({"text", "body", "asked_at", "citations", "turns", "index.layouts"})
"""Fields of a question before the first step, and where the files of the index lie."""


def misfits(recipe: Recipe, where: Where) -> list[RaypipeError]:
    """Returns where steps do not fit together: what a step reads, an earlier one writes. Each names both
    ends."""
    found: list[RaypipeError] = []
    columns = frozenset({"source", "kind", "content", "fault"})
    for i, stage in enumerate(recipe.corpus):
        here = where.at("corpus").at(i)
        found += _unwritten(stage, stage.step.reads(), columns, here)
        columns |= stage.step.writes()
        if table_of(stage.step) == "vectors":
            with collected(found):
                _embedder(stage, here)
    known = GIVEN | {f"index.{c}" for c in columns}
    for i, q in enumerate(recipe.question):
        here = where.at("question").at(i)
        found += _unwritten(q, q.step.reads() | q.gate_reads(), known, here)
        if "index.vector" in q.step.reads():
            with collected(found):
                if (model := _embedder(q, here)) not in recipe.embedders():
                    embedded = ", ".join(m.name for m in recipe.embedders()) or "nothing"
                    raise here.error(
                        f"{q.name} searches vectors of {model.name!r}; the corpus half embeds {embedded}"
                    )
        known |= q.step.writes()
    found += [*_small_pools(recipe, where.at("question")), *misfitted(recipe, where.at("question"))]
    with collected(found):
        _check_end(recipe, where.at("question"))
    return found


def _check_end(recipe: Recipe, where: Where) -> None:
    """A recipe ends with decide, or it ranks: then each of its steps ranks, or a later one reads what it
    writes. Raises ConfError otherwise."""
    deciding = [i for i, s in enumerate(recipe.question) if decides(s.step)]
    if deciding[-1:] == [len(recipe.question) - 1] and deciding:
        return
    if deciding or not recipe.question:
        raise where.error("the last step must be decide: it says which reply is the answer")
    kept = {s.name for s in ranking_of(recipe).question}
    for i, stage in enumerate(recipe.question):
        if stage.name not in kept:
            raise where.at(i).error(
                f"{stage.name} does not help to rank, and no decide takes its reply: remove it, or end with "
                "decide"
            )


def _small_pools(recipe: Recipe, where: Where) -> Iterator[ConfError]:
    """A pool holds at least what is looked for in it: WeKnow's K >= M + N."""
    searches = [(i, s) for i, s in enumerate(recipe.question) if getattr(s.step, "among", ())]
    for i, pool in enumerate(recipe.question):
        name: str | None = getattr(pool.step, "into", None)
        inside = [s for j, s in searches if j > i and name in getattr(s.step, "among", ())]
        wanted = sum(getattr(s.step, "top", 0) for s in inside)
        if inside and (kept := getattr(pool.step, "top", wanted)) < wanted:
            names = " and ".join(s.name for s in inside)
            yield where.at(i).error(
                f"{pool.name} keeps {kept} passages and {names} look for {wanted} among them; "
                f"expected top: {wanted} or more"
            )


def _embedder(stage: Stage[Any], where: Where) -> Model:
    """The one embedder of a stage. Raises ConfError for none or several."""
    try:
        return embedder_of(stage.step)
    except ValueError as e:
        raise where.error(f"{stage.name}: {e}") from e


def _unwritten(
    stage: Stage[Any], reads: frozenset[str], known: frozenset[str], where: Where
) -> Iterator[ConfError]:
    for name in sorted(reads - known):
        yield where.error(
            f"{stage.name} reads {name}, which no earlier step writes; {did_you_mean(name, known)}"
        )
