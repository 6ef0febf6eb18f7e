"""Origin of a step's fitted numbers, and whether they belong to the recipe that names them.

Knows stages, what a step may say of a fit, and the folders of adapters; not how either is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypipe.core.config import read_yaml
from raypipe.core.digests import FittedOn, stable
from raypipe.core.errors import ConfError
from raypipe.core.protocols import Model
from raypipe.core.records import digest
from raypipe.core.references import Reference
from raypipe.recipes.step_contract import given_by_fit, of_turns
from raypipe.store.adapters import RECIPE
from raypipe.text.template import ByLabel

if TYPE_CHECKING:
    from raypipe.core.config import Where
    from raypipe.recipes.recipe import Recipe, Stage


def fits_of(recipe: Recipe) -> dict[str, FittedOn]:
    """Returns where fitted numbers come from: stage -> those in its fields; "adapter NAME of STAGE" -> the
    weights of an adapter that it may ask and that `raypipe finetune` made."""
    found: dict[str, FittedOn] = {}
    for stage in recipe.question:
        if (on := fitted_on(stage.step)) is not None:
            found[stage.name] = on
        for name, folder in _adapters(stage.step):
            if (on := trained_on(folder)) is not None:
                found[f"adapter {name} of {stage.name}"] = on
    return found


def _adapters(step: Any) -> Iterator[tuple[str, Path]]:
    """The adapters that a step may ask, and their folders."""
    model, chosen = getattr(step, "model", None), getattr(step, "adapter", None)
    if isinstance(model, Model) and isinstance(chosen, ByLabel):
        folders = zip(model.adapters, model.adapter_paths, strict=True)
        for (name, _), folder in folders:
            if name in chosen.values() and Path(folder).is_absolute():  # behind an address it is a name
                yield name, Path(folder)


def trained_on(adapter: Path) -> FittedOn | None:
    """The questions that an adapter was trained on, by its recipe; None: another tool made it."""
    made = read_yaml(adapter / RECIPE) if (adapter / RECIPE).is_file() else {}
    if not isinstance(labels := made.get("labels"), dict):
        return None
    count = labels["rows"] + labels["held_out"]
    return FittedOn(f"labels {labels['digest']}", "its labels", "labels", count, seen=made.get("seen", ""))


def fitted_on(step: Any) -> FittedOn | None:
    """Returns where the numbers in the field `fitted` of a step come from; None: it has none."""
    found = getattr(getattr(step, "fitted", None), "fitted_on", None)
    return found if isinstance(found, FittedOn) else None


def basis(recipe: Recipe, name: str) -> str:
    """Names what numbers that are fitted for one stage rest on: all stages before it, and its own fields but
    those that the fit gives (`given_by_fit` of its class). What a reference brings as
    evidence counts by name: a day's update of a graph leaves a fit valid."""
    before: list[str] = [_named(s, frozenset()) for s in recipe.corpus]
    for stage in (s for s in recipe.question if not of_turns(s.step)):
        if stage.name == name:
            return digest("basis", *before, _named(stage, given_by_fit(stage.step)))
        before.append(_named(stage, frozenset()))
    raise ConfError(f"recipe {recipe.name!r} has no step {name!r}")


def _named(stage: Stage[Any], without: frozenset[str]) -> str:
    values = {f.name: getattr(stage.step, f.name) for f in dataclasses.fields(stage.step)}
    named = {
        n: (type(v).__name__, v.name) if isinstance(v, Reference) and v.is_evidence else v
        for n, v in values.items()
        if n not in without
    }
    source = "" if stage.plugin is None else stage.plugin.source
    return digest(stage.kind(), stable(stage.step.version), stable(named), stable(dict(stage.when)), source)


def misfitted(recipe: Recipe, where: Where) -> Iterator[ConfError]:
    """Steps with numbers that were fitted to another recipe."""
    for i, stage in enumerate(recipe.question):
        on = fitted_on(stage.step)
        if on is not None and on.basis and on.basis != (found := basis(recipe, stage.name)):
            yield where.at(i).error(
                f"{stage.name}: expected fitted numbers of this recipe ({found[:8]}), found some of "
                f"{on.recipe} ({on.basis[:8]}): a step before it, or one of its fields, differs from the "
                f"recipe that they were fitted to. Fit again: raypipe fit {stage.verb} RUN, a run of this "
                "recipe without them; or leave fitted out"
            )


def has_seen(fits: Iterable[FittedOn], text: str) -> bool:
    return any(on.has_seen(text) for on in fits)
