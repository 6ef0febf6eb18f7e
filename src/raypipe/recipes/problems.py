"""Every problem of a recipe's tree at once, where reading it would stop at the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raypipe.core import config
from raypipe.core.config import Resolve, Where, did_you_mean
from raypipe.core.errors import RaypipeError
from raypipe.recipes.read_recipe import KEYS, one_step, read_gate, read_stages, stage_class
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.verbs import HALVES
from raypipe.recipes.wiring import misfits


def problems(tree: Mapping[str, Any], where: Where, resolve: Resolve) -> list[RaypipeError]:
    """What is wrong in a recipe's tree: each field; then, where all are right, steps that do not fit."""
    found: list[RaypipeError] = [
        where.at(str(key)).error(f"unknown field; {did_you_mean(str(key), KEYS)}")
        for key in tree
        if key not in KEYS
    ]
    for half, table in HALVES.items():
        items, here = tree.get(half, []), where.at(half)
        if not isinstance(items, list):
            found.append(here.error(f"expected a list of steps, found {config.kind_of(items)}"))
            continue
        for i, item in enumerate(items):
            found += _of_step(item, table, here.at(i), resolve)
    if found:
        return found
    corpus, question = (read_stages(tree.get(h, []), t, where.at(h), resolve) for h, t in HALVES.items())
    return list(misfits(Recipe("checked", "", corpus, question), where))


def _of_step(item: Any, table: Mapping[str, type[Any]], where: Where, resolve: Resolve) -> list[RaypipeError]:
    try:
        verb, fields = one_step(item, where)
        cls, _ = stage_class(verb, table, where)
    except RaypipeError as e:
        return [e]
    if not isinstance(fields, dict | None):
        return [where.at(verb).error(f"expected a mapping, found {config.kind_of(fields)}")]
    own = dict(fields or {})
    found: list[RaypipeError] = []
    try:
        read_gate(own.pop("when", {}), where.at(verb).at("when"))
    except RaypipeError as e:
        found.append(e)
    return [*found, *config.problems(cls, own, where.at(verb), resolve)]
