"""Conversion of a recipe, with the models, prompts and numbers that it names, to plain JSON and back.

A release (a promoted run) is opened from this JSON, so it does not depend on the configuration folders.
Reading checks the stored digest, and constructs only classes that a step's field can hold. A step from
outside raypipe (MODULE:NAME) is imported for running (`from_plain`), but not for reading (`description`).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from raypipe.core.digests import NOT_IDENTITY
from raypipe.core.errors import ConfError
from raypipe.core.plugins import Plugin, registered
from raypipe.core.protocols import Kit, Model
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import step_class
from raypipe.recipes.wiring import CORPUS_STEPS, QUESTION_STEPS
from raypipe.text.template import ByLabel

_CLASS, _TUPLE, _MAP = "is", "tuple", "map"  # keys in JSON: class of an object, elements, list of pairs


def to_plain(recipe: Recipe) -> dict[str, Any]:
    """Converts a recipe to JSON values. Raises TypeError for a value that no recipe file can give, and for a
    step that was read by `description` and so was not imported."""
    return {
        "name": recipe.name,
        "about": recipe.about,
        "file": recipe.file,
        "sets": list(recipe.sets),
        "digest": recipe.digest(),
        "turns": recipe.turns_digest(),
        "corpus": [_stage(s) for s in recipe.corpus],
        "question": [_stage(s) for s in recipe.question],
    }


def description(tree: Mapping[str, Any], same: bool = True) -> Recipe:
    """Rebuilds a recipe from the JSON of `to_plain`, for reading only. Steps from outside (MODULE:NAME) are
    not imported, and their recorded digests are trusted. Otherwise raises as `from_plain`. If `same` is
    false, the digest may be another, as after an upgrade: then only fields of steps may be read."""
    return from_plain(tree, False, same)


def from_plain(tree: Mapping[str, Any], imported: bool = True, same: bool = True) -> Recipe:
    """Rebuilds a recipe from the JSON of `to_plain`. If `imported` is true, steps from outside are imported,
    so that the recipe can run. Raises ConfError if the JSON has another format, if this raypipe computes
    another digest for the recipe, or if the source of a step from outside is missing or has changed."""
    try:
        corpus, question = (tuple(_opened(s, imported) for s in tree[h]) for h in ("corpus", "question"))
        sets = tuple(tree.get("sets", ()))
        recipe = Recipe(tree["name"], tree["about"], corpus, question, tree.get("file", ""), sets)
    except (KeyError, TypeError, ValueError) as e:
        raise ConfError(f"recipe {tree.get('name')!r} was written by another raypipe: {e}. {_MEND}") from e
    was = tree["digest"], tree.get("turns", "")
    if same and (found := (recipe.digest(), recipe.turns_digest())) != was:
        raise ConfError(
            f"recipe {recipe.name!r} has digest {' '.join(was)}, and {' '.join(found)} in this raypipe: a "
            f"step's version was raised. {_MEND}"
        )
    return recipe


_MEND = "Use the raypipe that made it, or run eval and promote again"


@dataclass(frozen=True, slots=True)
class UnopenedStep:
    """A step from outside raypipe as a record describes it. Its class was not imported, so it cannot run."""

    version: int
    declared: tuple[frozenset[str], frozenset[str]]  # its reads and its writes
    fields: Mapping[str, Any]  # an object of a class from outside is a mapping here

    @property
    def kinds(self) -> Any:
        """Kinds of sources of a corpus step, or None."""
        return self.fields.get("kinds")

    @property
    def scope(self) -> Any:
        """Scope of a search step; "own" if the record has none."""
        return self.fields.get("scope", "own")

    def reads(self) -> frozenset[str]:
        return self.declared[0]

    def writes(self) -> frozenset[str]:
        return self.declared[1]

    def open(self, kit: Kit) -> Any:
        raise ConfError("a step from outside was read from a record and not imported: it cannot be run")


def _stage(stage: Stage[Any]) -> dict[str, Any]:
    own: dict[str, type[Any]] = {}
    tree: dict[str, Any] = {"name": stage.name}
    if (plugin := stage.plugin) is not None:
        if stage.written:
            raise TypeError(f"stage {stage.name} was read from a record and not imported")
        own = _own_classes(type(stage.step), plugin)
        tree["plugin"] = {
            "path": plugin.path,
            "source": plugin.source,
            "digest": stage.digest(),
            "version": stage.step.version,
            "reads": sorted(stage.step.reads()),
            "writes": sorted(stage.step.writes()),
        }
    names = {cls: name for name, cls in own.items()}
    return {**tree, "step": _plain(stage.step, names), "when": _plain(dict(stage.when), names)}


def _opened(tree: Mapping[str, Any], imported: bool) -> Stage[Any]:
    name, when = tree["name"], _value(tree["when"], classes())
    if "plugin" not in tree:
        return Stage(name, _value(tree["step"], classes()), when)
    of = tree["plugin"]
    plugin = Plugin(of["path"], of["source"])
    if imported:
        cls, now = step_class(plugin.path)
        if now != plugin:
            raise ConfError(
                f"stage {name}: the source of {plugin.path} is not what it was ({plugin.source[:8]}, now "
                f"{now.source[:8]}). Put that source back, or run eval and promote again"
            )
        return Stage(name, _value(tree["step"], {**classes(), **_own_classes(cls, plugin)}), when, plugin)
    fields = {n: _value(v, classes(), lenient=True) for n, v in tree["step"].items() if n != _CLASS}
    declared = frozenset(of["reads"]), frozenset(of["writes"])
    return Stage(name, UnopenedStep(of["version"], declared, fields), when, plugin, of["digest"])


def _own_classes(cls: type[Any], plugin: Plugin) -> dict[str, type[Any]]:
    """Maps paths to classes from outside: the step's own class, and classes that its fields can hold."""
    found = [c for c in _reachable([cls]) if classes().get(c.__name__) is not c]
    return {plugin.path if c is cls else f"{c.__module__}:{c.__qualname__}": c for c in found}


def _plain(value: Any, names: Mapping[type[Any], str]) -> Any:
    """Converts a value to plain JSON. `names` maps a class from outside raypipe to its path."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return {_TUPLE: [_plain(v, names) for v in value]}
    if isinstance(value, Mapping):
        return {_MAP: [[_plain(k, names), _plain(v, names)] for k, v in value.items()]}
    name = names.get(type(value), type(value).__name__)
    if type(value) not in names and name not in classes():
        raise TypeError(f"{name} is no class that a field of a step is declared to hold")
    fields = {f.name: _plain(getattr(value, f.name), names) for f in dataclasses.fields(value)}
    return {_CLASS: name, **fields}


def _value(tree: Any, known: Mapping[str, type[Any]], lenient: bool = False) -> Any:
    """Rebuilds a value from JSON. If `lenient` is true, an object of an unknown class becomes a mapping."""
    if not isinstance(tree, dict):
        return tree
    if _TUPLE in tree:
        return tuple(_value(v, known, lenient) for v in tree[_TUPLE])
    if _MAP in tree:
        return MappingProxyType({_value(k, known): _value(v, known, lenient) for k, v in tree[_MAP]})
    fields = {name: _value(v, known, lenient) for name, v in tree.items() if name != _CLASS}
    if lenient and tree[_CLASS] not in known:
        return MappingProxyType(fields)
    return known[tree[_CLASS]](**fields)


def fields_of(tree: Any, cls: type[Any]) -> Iterator[dict[str, Any]]:
    """Yields the fields of every object of class `cls` in a tree of `to_plain`, of any raypipe version."""
    for part in _mappings(tree):
        if part.get(_CLASS) == cls.__name__:
            yield {n: _value(v, classes(), lenient=True) for n, v in part.items() if n != _CLASS}


def _mappings(tree: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the mappings in a tree, inner ones first."""
    parts = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list) else ()
    for part in parts:
        yield from _mappings(part)
    if isinstance(tree, Mapping):
        yield tree


def references_in(tree: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the references in a tree of `to_plain`, of any raypipe version. A reference is an object with
    the keys name, where and version."""
    return filter(_is_reference, _mappings(tree))


def _is_reference(tree: Mapping[str, Any]) -> bool:
    return {_CLASS, "name", "where", "version"} <= tree.keys()


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields (path, text) of each value in a part of a `to_plain` tree, for people; a list is one value. A
    model or a reference yields its name, then the fields of its identity below the same path. A model that
    counts as another one yields the other's name at `adopted_as`, and the other's fields."""
    if isinstance(tree, Mapping) and _MAP in tree:
        tree = {str(_shown(k)): v for k, v in tree[_MAP]}
    elif isinstance(tree, Mapping) and tree.get(_CLASS) == ByLabel.__name__:
        table = {str(k): v for k, v in tree["table"][_MAP]}
        if not tree["by"]:
            return (yield from leaves(tree["default"], path))
        tree = {"by": tree["by"], **table, "else": tree["default"]}
    if not isinstance(tree, Mapping) or _TUPLE in tree:
        yield path, _shown(tree)
        return
    skipped = {_CLASS}
    if tree.get(_CLASS) == Model.__name__ or _is_reference(tree):
        yield path, tree["name"]
        skipped |= {*NOT_IDENTITY, "where", "refresh"}
        if adoption := tree.get("adopted"):
            tree = adoption["model"]
            yield (*path, "adopted_as"), tree["name"]
    for name, value in tree.items():
        if name not in skipped:
            yield from leaves(value, (*path, name))


def _shown(tree: Any) -> str:
    """Formats a value as a recipe file writes it."""
    if isinstance(tree, Mapping) and _TUPLE in tree:
        return ", ".join(map(_shown, tree[_TUPLE]))
    if isinstance(tree, Mapping):
        return ", ".join(f"{'.'.join(path)} {text}" for path, text in leaves(tree))
    return tree if isinstance(tree, str) else json.dumps(tree)


@functools.cache
def classes() -> Mapping[str, type[Any]]:
    """Maps names to the dataclasses that a recipe can hold: steps, and the classes of their fields. Includes
    classes of plugins with locked versions. These plugins are imported only when all names are listed, or
    when the core lacks a name."""
    return _Classes()


class _Classes(Mapping[str, type[Any]]):
    def __init__(self) -> None:
        self._own = _by_name([*CORPUS_STEPS.own.values(), *QUESTION_STEPS.own.values()])

    @functools.cached_property
    def _all(self) -> Mapping[str, type[Any]]:
        kinds = ("corpus_steps", "question_steps", "entries", "files")
        added = [found for kind in kinds for found in registered(kind).values() if found.table.locked]
        return _by_name([*self._own.values(), *(found.load("a class of a recipe") for found in added)])

    def __getitem__(self, name: str) -> type[Any]:
        if name in self._own or ":" in name:  # a path names a class from outside
            return self._own[name]
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


def _by_name(made: Iterable[type[Any]]) -> dict[str, type[Any]]:
    found: dict[str, type[Any]] = {}
    for cls in _reachable(made):
        if cls.__name__ in found:
            raise TypeError(f"two classes of fields are called {cls.__name__}")
        found[cls.__name__] = cls
    return found


def _reachable(steps: Iterable[type[Any]]) -> list[type[Any]]:
    """Returns these dataclasses, and all dataclasses that their fields can hold at any depth."""
    found: list[type[Any]] = []
    waiting: list[Any] = list(steps)
    while waiting:
        hint = waiting.pop()
        waiting += [*typing.get_args(hint), *([o] if (o := typing.get_origin(hint)) else [])]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint not in found:
            found.append(hint)
            waiting += typing.get_type_hints(hint).values()
    return found
