"""A recipe as plain JSON and back, whole: with the models, prompts and numbers that its file only names.

A release is opened from this, so that neither the configuration folders nor their present content matter.
Knows dataclasses and the table of steps; reads no file. Only classes that a field of a step can hold are ever
made from JSON, and what comes back must have the digest that was written down.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from raypipe.core.errors import ConfError
from raypipe.core.protocols import GraphRef
from raypipe.recipes.recipe import STEPS, Recipe, Stage

_CLASS, _TUPLE, _MAP = "is", "tuple", "map"


def to_plain(recipe: Recipe) -> dict[str, Any]:
    """The recipe as values that JSON can hold. Raises TypeError for a field that no recipe file can give."""
    return {
        "name": recipe.name,
        "about": recipe.about,
        "digest": recipe.digest(),
        "corpus": [_stage(s) for s in recipe.corpus],
        "question": [_stage(s) for s in recipe.question],
    }


def from_plain(tree: Mapping[str, Any]) -> Recipe:
    """The recipe that `to_plain` wrote. Raises ConfError where this raypipe computes something else by it."""
    try:
        halves = [tuple(_opened(s) for s in tree[half]) for half in ("corpus", "question")]
        recipe = Recipe(tree["name"], tree["about"], *halves)
    except (KeyError, TypeError, ValueError) as e:
        raise ConfError(f"recipe {tree.get('name')!r} was written by another raypipe: {e}. {_MEND}") from e
    if (found := recipe.digest()) != tree["digest"]:
        raise ConfError(
            f"recipe {recipe.name!r} has digest {tree['digest']}, and {found} in this raypipe: a step's "
            f"version was raised. {_MEND}"
        )
    return recipe


_MEND = "Use the raypipe that made it, or run eval and promote again"


def _stage(stage: Stage[Any]) -> dict[str, Any]:
    return {"name": stage.name, "step": _plain(stage.step), "when": _plain(dict(stage.when))}


def _opened(tree: Mapping[str, Any]) -> Stage[Any]:
    return Stage(tree["name"], _value(tree["step"]), _value(tree["when"]))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return {_TUPLE: [_plain(v) for v in value]}
    if isinstance(value, Mapping):
        return {_MAP: [[_plain(k), _plain(v)] for k, v in value.items()]}
    name = type(value).__name__
    if name not in classes():
        raise TypeError(f"{name} is no class that a field of a step is declared to hold")
    return {_CLASS: name, **{f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}}


def _value(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    if _TUPLE in tree:
        return tuple(_value(v) for v in tree[_TUPLE])
    if _MAP in tree:
        return MappingProxyType({_value(k): _value(v) for k, v in tree[_MAP]})
    fields = {name: _value(v) for name, v in tree.items() if name != _CLASS}
    return classes()[tree[_CLASS]](**fields)


def graph_versions(tree: Any) -> set[str]:
    """The versions of the graphs that a recipe as `to_plain` wrote it asks, whichever raypipe wrote it."""
    if isinstance(tree, list):
        return set().union(*map(graph_versions, tree))
    if not isinstance(tree, Mapping):
        return set()
    own = {tree["version"]} if tree.get(_CLASS) == GraphRef.__name__ else set()
    return own.union(*map(graph_versions, tree.values()))


@functools.cache
def classes() -> Mapping[str, type[Any]]:
    """Every dataclass that a recipe can hold, by name: the steps and what their fields are declared to be."""
    found: dict[str, type[Any]] = {}
    waiting: list[Any] = list(STEPS.values())
    while waiting:
        hint = waiting.pop()
        waiting += [*typing.get_args(hint), *([o] if (o := typing.get_origin(hint)) else [])]
        if not (isinstance(hint, type) and dataclasses.is_dataclass(hint)) or hint in found.values():
            continue
        if hint.__name__ in found:
            raise TypeError(f"two classes of fields are called {hint.__name__}")
        found[hint.__name__] = hint
        waiting += typing.get_type_hints(hint).values()
    return MappingProxyType(found)
