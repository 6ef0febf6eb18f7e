"""Reader of recipes in YAML: steps, gates, variants, and fields set from outside.

A variant is a file that changes some fields of another recipe (`like`, `set`). The option
`--set STEP[:INTO].FIELD=VALUE` changes the YAML tree before steps are built. So the option's value is checked
like a value in the file, and changes the digest.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from raypipe.core import config
from raypipe.core.config import Errors, Resolve, Where, collected, did_you_mean
from raypipe.core.errors import ConfError, RaypipeError
from raypipe.core.plugins import Plugin, is_path
from raypipe.recipes.recipe import Labels, Recipe, S, Stage
from raypipe.recipes.step_contract import step_class
from raypipe.recipes.wiring import HALVES, misfits, step_of
from raypipe.text.template import ByLabel

KEYS = ("about", "corpus", "question")
"""Keys of a complete recipe, which is no variant."""


@dataclass(frozen=True, slots=True)
class WrittenStep:
    """A step as written in a recipe's tree, with its class."""

    key: str  # its verb; for a step from outside raypipe MODULE:NAME
    verb: str  # its verb; for a step from outside raypipe NAME
    name: str  # name of its stage
    cls: type[Any]
    plugin: Plugin | None
    fields: dict[str, Any]  # a copy, including its gate
    where: Where


def load(path: Path, resolve: Resolve, find: Callable[[str], Path] | None = None) -> Recipe:
    """Reads a recipe from a YAML file. `resolve` turns the names in steps (models, fitted numbers) into
    values. `find` returns the file of the recipe that a variant changes; if `find` is None, that file is in
    the same folder. Raises ConfError with the file, the place in it, and the expected and found values."""
    return from_tree(path.stem, read_tree(path, find), Where(str(path)), resolve)


def read_tree(path: Path, find: Callable[[str], Path] | None = None) -> dict[str, Any]:
    """Reads the tree of a recipe's file. For a variant, returns the complete recipe's changed tree."""
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
    """Copies the tree of a complete recipe. Returns the steps, then the copy. A change of a step's `fields`
    also changes the copy."""
    halves = {half: list(written_steps(tree, half, where)) for half in HALVES}
    items = {half: [{s.key: s.fields} for s in steps] for half, steps in halves.items()}
    return [s for steps in halves.values() for s in steps], {**tree, **items}


def written_steps(
    tree: Mapping[str, Any], half: str, where: Where, errors: Errors = None
) -> Iterator[WrittenStep]:
    """Yields the steps without errors of one half of a tree. Errors of other steps are added to `errors`; if
    `errors` is None, the first error is raised."""
    items, here, taken = tree.get(half, []), where.at(half), set[str]()
    if not isinstance(items, list):
        with collected(errors):
            raise here.error(f"expected a list of steps, found {config.kind_of(items)}")
        return
    for i, item in enumerate(items):
        with collected(errors):
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
    """Builds a recipe from a tree (keys about, corpus and question). Raises ConfError if the tree is
    wrong."""
    config.require_known(tree, KEYS, where)
    corpus, question = (stages(tree, half, where, resolve) for half in HALVES)
    return checked(Recipe(name, str(tree.get("about", "")), corpus, question), where)


def problems(tree: Mapping[str, Any], where: Where, resolve: Resolve) -> list[RaypipeError]:
    """Returns the errors in a recipe's tree. Checks that steps fit together only if all fields are right."""
    errors: list[RaypipeError] = [
        where.at(str(key)).error(f"unknown field; {did_you_mean(str(key), KEYS)}")
        for key in tree
        if key not in KEYS
    ]
    corpus, question = (stages(tree, half, where, resolve, errors) for half in HALVES)
    return errors or misfits(Recipe("checked", "", corpus, question), where)


def checked(recipe: Recipe, where: Where) -> Recipe:
    """Returns the same recipe. Raises ConfError if its steps do not fit together."""
    for error in misfits(recipe, where):
        raise error
    return recipe


def stages(
    tree: Mapping[str, Any], half: str, where: Where, resolve: Resolve, errors: Errors = None
) -> tuple[Stage[Any], ...]:
    made: list[Stage[Any]] = []
    for step in written_steps(tree, half, where, errors):
        when: Mapping[str, Labels] = {}
        with collected(errors):
            when = _gate(step.fields.pop("when", {}), step.where.at("when"))
        built = config.build(step.cls, step.fields, step.where, resolve, errors)
        made.append(Stage(step.name, built, when, step.plugin))
    return tuple(made)


def _gate(tree: Any, where: Where) -> Mapping[str, Labels]:
    """Reads a gate: for each reply a list of labels, or `{by: REPLY, LABEL: list, ..., else: list}`."""
    if not isinstance(tree, dict):
        raise where.error(f"expected reply names with lists of labels, found {config.kind_of(tree)}")
    gate: dict[str, Labels] = {}
    for reply, let_in in tree.items():
        here = where.at(reply)
        if not isinstance(let_in, dict):
            gate[reply] = _labels(let_in, here)
            continue
        if not isinstance(let_in.get("by"), str) or "else" not in let_in:
            raise here.error("expected a list of labels, or a table of lists with `by` and `else`")
        lists = {k: _labels(v, here.at(k)) for k, v in let_in.items() if k != "by"}
        gate[reply] = ByLabel(lists.pop("else"), let_in["by"], lists)
    return MappingProxyType(gate)


def _labels(tree: Any, where: Where) -> tuple[str, ...]:
    if not isinstance(tree, list) or not all(isinstance(x, str) for x in tree):
        raise where.error(f"expected a list of labels, found {config.kind_of(tree)}")
    return tuple(tree)


def swapped(recipe: Recipe, name: str, other: Recipe) -> Recipe:
    """Replaces the stage `name` of a recipe by the stage of this name in `other`. A run of the result
    measures the share of this stage in a difference between the two recipes. Raises ConfError if a recipe
    lacks the stage, or if the steps do not fit together."""
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


_FORM = re.compile(r"\A([^.=\s]+)\.([^=\s]+)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FieldSetting:
    text: str  # setting as given
    step: str  # name of the step: VERB, VERB:INTO, or VERB#N if several are alike
    path: tuple[str, ...]  # the field; for a field that is a mapping, then the keys
    value: Any  # as a recipe file would give it


def read_setting(text: str) -> FieldSetting:
    """Reads `STEP[:INTO].FIELD=VALUE`, with VALUE in YAML. Raises ConfError for another form.

    >>> read_setting("fuse:final.weights.rerank=2.0").path
    ('weights', 'rerank')
    """
    found = _FORM.fullmatch(text)
    if found is None:
        form = "STEP.FIELD=VALUE, or STEP:INTO.FIELD=VALUE if several steps have the same verb"
        raise ConfError(f"--set {text!r}: expected {form}, such as split.child_chars=500")
    step, path, value = found.groups()
    if not value.strip():
        raise ConfError(f"--set {text!r}: expected a value after `=`; write null for none")
    return FieldSetting(text, step, tuple(path.split(".")), config.read_value(value, f"--set {text!r}"))


def read_points(text: str) -> list[str]:
    """Reads `STEP.FIELD=V1,V2,...` into one setting per value. The values are a YAML list without brackets.
    Raises ConfError for another form, and for a repeated value.

    >>> read_points("rerank.top=5,10")
    ['rerank.top=5', 'rerank.top=10']
    >>> read_points("decide.prefer=[kg, web],[web]")
    ['decide.prefer=[kg, web]', 'decide.prefer=[web]']
    """
    name, sign, values = text.partition("=")
    config.read_value(f"[{values}]", f"--set {text!r}")
    listed = yaml.compose(f"[{values}]", yaml.SafeLoader)
    assert isinstance(listed, yaml.SequenceNode)
    marks = [(n.start_mark.index - 1, n.end_mark.index - 1) for n in listed.value]
    found = [f"{name}{sign}{values[start:end]}" for start, end in marks] or [text]
    read = [read_setting(one) for one in found]
    for i, one in enumerate(read):
        if any(one.value == other.value and type(one.value) is type(other.value) for other in read[:i]):
            raise ConfError(f"--set {text!r}: expected each value once, found {one.value!r} twice")
    return found


def with_fields(tree: Mapping[str, Any], settings: Sequence[str], where: Where) -> dict[str, Any]:
    """Sets fields in a copy of a complete recipe's tree; returns the copy. Raises ConfError if a setting fits
    no step or several, if a field is unknown or set twice, and for a path into a value that is no mapping."""
    steps, out = copied_steps(tree, where)
    done: dict[tuple[str, ...], str] = {}
    for one in map(read_setting, settings):
        step = _addressed(one, steps, where)
        key = (step.name, *one.path)
        if key in done:
            raise ConfError(f"--set {one.text!r}: {done[key]!r} sets the same field; expected one of them")
        done[key] = one.text
        known = (*(f.name for f in dataclasses.fields(step.cls) if f.init), "when")
        if one.path[0] not in known:
            hint = did_you_mean(one.path[0], known)
            raise ConfError(f"--set {one.text!r}: {step.verb} has no field {one.path[0]!r}; {hint}")
        at = step.fields
        for depth, part in enumerate(one.path[:-1], 1):
            inner = at.get(part, {})
            if not isinstance(inner, dict):
                said = ".".join(one.path[:depth])
                raise ConfError(
                    f"--set {one.text!r}: {said} of {step.verb} is {config.kind_of(inner)}, which has no "
                    f"{one.path[depth]!r}; expected {said}=VALUE"
                )
            at[part] = at = dict(inner)
        at[one.path[-1]] = one.value
    return out


def _addressed(one: FieldSetting, steps: Sequence[WrittenStep], where: Where) -> WrittenStep:
    addresses = {_address(s, steps): s for s in steps}
    if one.step in addresses:
        return addresses[one.step]
    fits = [a for a, s in addresses.items() if one.step in (s.verb, f"{s.verb}:{_into(s)}")]
    if len(fits) == 1:
        return addresses[fits[0]]
    if fits:
        raise ConfError(
            f"--set {one.text!r}: {one.step!r} fits {len(fits)} steps of {where.file}: {', '.join(fits)}. "
            f"Name one of them, as {fits[0]}.{'.'.join(one.path)}=..."
        )
    close = did_you_mean(one.step, addresses)
    raise ConfError(f"--set {one.text!r}: no step {one.step!r} in {where.file}; {close}")


def _into(step: WrittenStep) -> str:
    """Returns the field `into` of a step, or its default."""
    default = next((f.default for f in dataclasses.fields(step.cls) if f.name == "into"), step.verb)
    return str(step.fields.get("into", default if isinstance(default, str) else step.verb))


def _address(step: WrittenStep, steps: Sequence[WrittenStep]) -> str:
    """Returns the shortest name that matches only this step: VERB, VERB:INTO or a name with #N."""
    alike = [s for s in steps if s.verb == step.verb]
    if len(alike) == 1:
        return step.verb
    if sum(_into(s) == _into(step) for s in alike) == 1:
        return f"{step.verb}:{_into(step)}"
    return step.name if "#" in step.name else f"{step.name}#1"
