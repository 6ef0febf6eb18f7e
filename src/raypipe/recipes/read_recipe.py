"""Recipes from YAML: steps by their verbs, gates, variants of another recipe, and one step of another in a
recipe's place; or all that is wrong in one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from raypipe.core import config
from raypipe.core.config import Found, Resolve, Where, collected, did_you_mean
from raypipe.core.errors import ConfError, RaypipeError
from raypipe.core.plugins import Plugin, is_path
from raypipe.recipes.recipe import Labels, Recipe, S, Stage
from raypipe.recipes.step_contract import step_class
from raypipe.recipes.verbs import HALVES, step_of
from raypipe.recipes.wiring import misfits
from raypipe.text.template import ByLabel

KEYS = ("about", "corpus", "question")
"""Keys of a whole recipe."""


@dataclass(frozen=True, slots=True)
class WrittenStep:
    """A step as a recipe's tree has it."""

    key: str  # its verb; MODULE:NAME of one from outside
    verb: str  # the same; of one from outside NAME alone
    name: str  # of its stage
    cls: type[Any]
    plugin: Plugin | None
    fields: dict[str, Any]  # its gate among them; a copy
    where: Where


def load(path: Path, resolve: Resolve, find: Callable[[str], Path] | None = None) -> Recipe:
    """The recipe in a YAML file. `resolve` turns what steps name (models, fitted numbers) into values;
    `find` gives the file of a recipe that this one is a variant of, None: one in the same folder.

    Raises ConfError with file, path inside it, what was expected and what was found.
    """
    return from_tree(path.stem, read_tree(path, find), Where(str(path)), resolve)


def read_tree(path: Path, find: Callable[[str], Path] | None = None) -> dict[str, Any]:
    """The mapping in a recipe's file; of a variant the whole, with the fields that it sets, named
    stage.field. Raises as `load`."""
    tree, where = config.read_yaml(path), Where(str(path))
    if "like" not in tree:
        return tree
    config.require_known(tree, ("about", "like", "set"), where, " of a variant")
    if not isinstance(tree["like"], str) or not isinstance(tree.get("set"), dict):
        raise where.error("expected like, the name of a recipe, and set, a mapping of stage.field")
    whole = config.read_yaml(find(tree["like"]) if find else path.with_name(f"{tree['like']}.yaml"))
    if "like" in whole:
        raise where.at("like").error(f"{tree['like']!r} is a variant itself; expected a whole recipe")
    steps, whole = copied_steps(whole, where.at("like"))
    fields = {s.name: s.fields for s in steps}
    for name, value in tree["set"].items():
        stage, _, field_name = str(name).rpartition(".")
        if stage not in fields:
            raise where.at("set").error(f"{name!r}: no stage {stage!r}; {did_you_mean(stage, fields)}")
        fields[stage][field_name] = value
    return {**whole, "about": tree.get("about", whole.get("about", ""))}


def copied_steps(tree: Mapping[str, Any], where: Where) -> tuple[list[WrittenStep], dict[str, Any]]:
    """The steps of both halves of a whole recipe's tree, and a copy of the tree that holds their fields."""
    halves = {half: list(written_steps(tree, half, where)) for half in HALVES}
    items = {half: [{s.key: s.fields} for s in steps] for half, steps in halves.items()}
    return [s for steps in halves.values() for s in steps], {**tree, **items}


def written_steps(
    tree: Mapping[str, Any], half: str, where: Where, found: Found = None
) -> Iterator[WrittenStep]:
    """The steps of one half of a tree. Raises ConfError for what is no step; with `found` it is left out."""
    items, here, taken = tree.get(half, []), where.at(half), set[str]()
    with collected(found):
        if not isinstance(items, list):
            items, given = (), items
            raise here.error(f"expected a list of steps, found {config.kind_of(given)}")
    for i, item in enumerate(items):
        with collected(found):
            step = _written(item, half, here.at(i), taken)
            taken.add(step.name)
            yield step


def _written(item: Any, half: str, where: Where, taken: Collection[str]) -> WrittenStep:
    if isinstance(item, str):
        item = {item: {}}
    if not isinstance(item, dict) or len(item) != 1:
        raise where.error(f"expected one step, as `- verb: {{field: value}}`, found {config.kind_of(item)}")
    [(key, fields)] = item.items()
    if not is_path(key) and key not in HALVES[half]:
        raise where.error(f"unknown step {key!r}; {did_you_mean(str(key), HALVES[half])}")
    try:
        cls, plugin = step_class(key) if is_path(key) else step_of(half, key)
    except ConfError as e:
        raise where.error(str(e)) from e
    if not isinstance(fields, dict | None):
        raise where.at(key).error(f"expected a mapping, found {config.kind_of(fields)}")
    fields, verb = dict(fields or {}), key.partition(":")[2] or key
    into = fields.get("into", verb)
    name = verb if into == verb else f"{verb}:{into}"
    if name in taken:
        name = next(n for i in range(2, 99) if (n := f"{name}#{i}") not in taken)
    return WrittenStep(key, verb, name, cls, plugin, fields, where.at(key))


def from_tree(name: str, tree: Mapping[str, Any], where: Where, resolve: Resolve) -> Recipe:
    """The recipe in an already parsed mapping with the keys about, corpus and question."""
    config.require_known(tree, KEYS, where)
    corpus, question = (stages(tree, half, where, resolve) for half in HALVES)
    return checked(Recipe(name, str(tree.get("about", "")), corpus, question), where)


def problems(tree: Mapping[str, Any], where: Where, resolve: Resolve) -> list[RaypipeError]:
    """Returns what is wrong in a recipe's tree: each field; then, where all are right, steps that do not
    fit."""
    found: list[RaypipeError] = [
        where.at(str(key)).error(f"unknown field; {did_you_mean(str(key), KEYS)}")
        for key in tree
        if key not in KEYS
    ]
    corpus, question = (stages(tree, half, where, resolve, found) for half in HALVES)
    return found or misfits(Recipe("checked", "", corpus, question), where)


def checked(recipe: Recipe, where: Where) -> Recipe:
    """The same recipe. Raises ConfError where its steps do not fit together."""
    for error in misfits(recipe, where):
        raise error
    return recipe


def stages(
    tree: Mapping[str, Any], half: str, where: Where, resolve: Resolve, found: Found = None
) -> tuple[Stage[Any], ...]:
    """The stages of one half of a tree. Raises ConfError; with `found` a stage with an error is not whole."""
    made: list[Stage[Any]] = []
    for step in written_steps(tree, half, where, found):
        when: Mapping[str, Labels] = {}
        with collected(found):
            when = _gate(step.fields.pop("when", {}), step.where.at("when"))
        built = config.build(step.cls, step.fields, step.where, resolve, found)
        made.append(Stage(step.name, built, when, step.plugin))
    return tuple(made)


def _gate(tree: Any, where: Where) -> Mapping[str, Labels]:
    """Reads for each reply a list of labels, or `{by: REPLY, LABEL: list, ..., else: list}`."""
    if not isinstance(tree, dict):
        raise where.error(
            f"expected a mapping of reply names to lists of labels, found {config.kind_of(tree)}"
        )
    return MappingProxyType({reply: _let_in(labels, where.at(reply)) for reply, labels in tree.items()})


def _let_in(tree: Any, where: Where) -> Labels:
    if not isinstance(tree, dict):
        return _labels(tree, where)
    if not isinstance(tree.get("by"), str) or "else" not in tree:
        raise where.error("expected a list of labels, or a table of such lists with `by` and `else`")
    lists = {k: _labels(v, where.at(k)) for k, v in tree.items() if k != "by"}
    return ByLabel(lists.pop("else"), tree["by"], lists)


def _labels(tree: Any, where: Where) -> tuple[str, ...]:
    if not isinstance(tree, list) or not all(isinstance(x, str) for x in tree):
        raise where.error(f"expected a list of labels, found {config.kind_of(tree)}")
    return tuple(tree)


def swapped(recipe: Recipe, name: str, other: Recipe) -> Recipe:
    """The recipe with its stage `name` as `other` has it: what of a difference does this step make? Raises
    ConfError where one of them has no such stage, and for a recipe whose steps do not fit together then."""
    for r in (recipe, other):
        known = [s.name for s in (*r.corpus, *r.question)]
        if name not in known:
            raise ConfError(f"--swap {name}: recipe {r.name!r} has no such step; {did_you_mean(name, known)}")
    label = f"{name}@{other.name}"
    made = replace(
        recipe,
        name=f"{recipe.name}+{label}",
        corpus=_with(recipe.corpus, name, other.corpus),
        question=_with(recipe.question, name, other.question),
        file=f"{recipe.file}+{name}@{other.file}",
    )
    return checked(made, Where(f"{recipe.name} with {label}"))


def _with(stages: Sequence[Stage[S]], name: str, others: Sequence[Stage[S]]) -> tuple[Stage[S], ...]:
    found = {s.name: s for s in others}
    return tuple(found.get(name, s) if s.name == name else s for s in stages)
