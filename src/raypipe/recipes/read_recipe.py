"""Recipes from YAML: steps by their verbs, gates, and variants of another recipe; or all that is wrong in
one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from raypipe.core import config
from raypipe.core.config import Resolve, Where, did_you_mean
from raypipe.core.errors import ConfError, RaypipeError
from raypipe.core.plugins import Plugin, is_path
from raypipe.recipes.recipe import Labels, Recipe, Stage
from raypipe.recipes.step_contract import step_class
from raypipe.recipes.verbs import HALVES
from raypipe.recipes.wiring import misfits
from raypipe.text.template import ByLabel

KEYS = ("about", "corpus", "question")
"""Of a whole recipe."""


def load(path: Path, resolve: Resolve, find: Callable[[str], Path] | None = None) -> Recipe:
    """The recipe in a YAML file. `resolve` turns what steps name (models, fitted numbers) into values;
    `find` gives the file of a recipe that this one is a variant of, None: one in the same folder.

    Raises ConfError with file, path inside it, what was expected and what was found.
    """
    return from_tree(path.stem, read_tree(path, find), Where(str(path)), resolve)


def read_tree(path: Path, find: Callable[[str], Path] | None = None) -> dict[str, Any]:
    """The mapping in a recipe's file; of a variant the whole, with what it sets. Raises as `load`."""
    tree = config.read_yaml(path)
    if "like" in tree:
        return _variant(tree, Where(str(path)), find or (lambda name: path.with_name(f"{name}.yaml")))
    return tree


def _variant(tree: Mapping[str, Any], where: Where, find: Callable[[str], Path]) -> dict[str, Any]:
    """The tree of the recipe that a variant is like, with the fields that it sets, named stage.field."""
    config.require_known(tree, ("about", "like", "set"), where, " of a variant")
    if not isinstance(tree["like"], str) or not isinstance(tree.get("set"), dict):
        raise where.error("expected like, the name of a recipe, and set, a mapping of stage.field")
    whole = config.read_yaml(find(tree["like"]))
    if "like" in whole:
        raise where.at("like").error(f"{tree['like']!r} is a variant itself; expected a whole recipe")
    stages: dict[str, dict[str, Any]] = {}
    for half, table in HALVES.items():
        whole[half] = [dict(i) if isinstance(i, dict) else {i: {}} for i in whole.get(half, [])]
        for item in whole[half]:
            verb, fields = next(iter(item.items()))
            item[verb] = dict(fields or {})
            _, plugin = stage_class(verb, table, where.at("like"))
            stages[stage_name(verb if plugin is None else plugin.name, item[verb], stages)] = item[verb]
    for name, value in tree["set"].items():
        stage, _, field_name = str(name).rpartition(".")
        if stage not in stages:
            raise where.at("set").error(f"{name!r}: no stage {stage!r}; {did_you_mean(stage, stages)}")
        stages[stage][field_name] = value
    return {**whole, "about": tree.get("about", whole.get("about", ""))}


def from_tree(name: str, tree: Mapping[str, Any], where: Where, resolve: Resolve) -> Recipe:
    """The recipe in an already parsed mapping with the keys about, corpus and question."""
    config.require_known(tree, KEYS, where)
    corpus, question = (
        read_stages(tree.get(half, []), table, where.at(half), resolve) for half, table in HALVES.items()
    )
    return checked(Recipe(name, str(tree.get("about", "")), corpus, question), where)


def checked(recipe: Recipe, where: Where) -> Recipe:
    """The same recipe. Raises ConfError where its steps do not fit together."""
    for error in misfits(recipe, where):
        raise error
    return recipe


def read_stages(
    tree: Any, table: Mapping[str, type[Any]], where: Where, resolve: Resolve
) -> tuple[Stage[Any], ...]:
    if not isinstance(tree, list):
        raise where.error(f"expected a list of steps, found {config.kind_of(tree)}")
    stages: list[Stage[Any]] = []
    for i, item in enumerate(tree):
        here = where.at(i)
        verb, given = one_step(item, here)
        cls, plugin = stage_class(verb, table, here)
        fields = dict(given or {})
        when = read_gate(fields.pop("when", {}), here.at(verb).at("when"))
        step = config.build(cls, fields, here.at(verb), resolve)
        name = stage_name(verb if plugin is None else plugin.name, fields, {s.name for s in stages})
        stages.append(Stage(name, step, when, plugin))
    return tuple(stages)


def one_step(item: Any, where: Where) -> tuple[Any, Any]:
    if isinstance(item, str):
        return item, {}
    if not isinstance(item, dict) or len(item) != 1:
        found = config.kind_of(item)
        raise where.error(f"expected one step, as `- verb: {{field: value}}`, found {found}")
    [step] = item.items()
    return step


def stage_class(verb: Any, table: Mapping[str, type[Any]], where: Where) -> tuple[type[Any], Plugin | None]:
    """The class of a verb of the table, or of one from outside."""
    if is_path(verb):
        try:
            return step_class(verb)
        except ConfError as e:
            raise where.error(str(e)) from e
    if verb not in table:
        raise where.error(f"unknown step {verb!r}; {did_you_mean(str(verb), table)}")
    return table[verb], None


def stage_name(verb: str, fields: Mapping[str, Any], taken: Collection[str]) -> str:
    """The name of a stage of this verb, which none of those before it has."""
    into = fields.get("into", verb)
    name = verb if into == verb else f"{verb}:{into}"
    return name if name not in taken else next(n for i in range(2, 99) if (n := f"{name}#{i}") not in taken)


def read_gate(tree: Any, where: Where) -> Mapping[str, Labels]:
    if not isinstance(tree, dict):
        raise where.error(
            f"expected a mapping of reply names to lists of labels, found {config.kind_of(tree)}"
        )
    return MappingProxyType({reply: _let_in(labels, where.at(reply)) for reply, labels in tree.items()})


def _let_in(tree: Any, where: Where) -> Labels:
    """A list of labels, or `{by: REPLY, LABEL: list, ..., else: list}`."""
    if not isinstance(tree, dict):
        return _labels(tree, where)
    if not isinstance(tree.get("by"), str) or "else" not in tree:
        raise where.error("expected a list of labels, or a table of such lists with `by` and `else`")
    table = {k: _labels(v, where.at(k)) for k, v in tree.items() if k not in ("by", "else")}
    return ByLabel(_labels(tree["else"], where.at("else")), tree["by"], table)


def _labels(tree: Any, where: Where) -> tuple[str, ...]:
    if not isinstance(tree, list) or not all(isinstance(x, str) for x in tree):
        raise where.error(f"expected a list of labels, found {config.kind_of(tree)}")
    return tuple(tree)


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
