"""Resolution of the names in a recipe: models, prompts, grammars, schemas, fitted numbers.

A name is looked up in the configuration: its folders, models.yaml and graphs.yaml. A step receives the value:
a prompt's text, a model's identity, a grammar's text. So a file may move, but a changed word changes the
digest. The name of an adapter is the only name that a step receives as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, get_args, get_origin

from raypipe.core import config
from raypipe.core.conf import Conf
from raypipe.core.config import Resolve, Where, did_you_mean
from raypipe.core.errors import ConfError, DataError
from raypipe.core.llm import Grammar, JsonSchema
from raypipe.core.plugins import Registry
from raypipe.core.protocols import Model
from raypipe.core.references import EntryContext, Reference
from raypipe.models.catalog import Catalog
from raypipe.models.constraint import longest_reply
from raypipe.readers.example_pool import PoolRef
from raypipe.steps.decide import AnswerProbability
from raypipe.steps.fuse import FusionWeights
from raypipe.text.evidence import Fitted
from raypipe.text.template import ByLabel, Prompt

T = TypeVar("T")
Read = Callable[[Any, Where], T]

FITTED: tuple[type[Any], ...] = (Fitted, AnswerProbability, FusionWeights)
"""Records that a file under fitted/ may hold: numbers for `extract`, `decide` and `fuse`."""


ENTRIES: Registry[type[Reference[Any]]] = Registry("entries", {"examples": PoolRef}, "a reference")
"""Kind of an entry in graphs.yaml -> its reference class."""

FILES: Registry[type[Any]] = Registry("files", {}, "a dataclass")
"""Conf folder added by a plugin -> record that a YAML file in it holds."""


def file_record(hint: type[Any]) -> type[Any]:
    """Returns the record class of the files in a conf folder: `hint` itself if it is a dataclass, else the
    class that a plugin has for the folder of `hint`. Raises ConfError if no plugin has one."""
    if is_dataclass(hint):
        return hint
    folder: str = hint.FOLDER
    if folder not in FILES:
        raise ConfError(f"files under {folder}/: expected a plugin that reads them, found none")
    return FILES[folder]


class Readers(Mapping[Any, Read[Any]]):
    """Mapping from a field's type to the reader of its values. Some readers are given. Others are made on
    demand: for references to entries of graphs.yaml, for records in conf files, and for tables by label."""

    def __init__(self, files: Conf, places: Mapping[str, str], known: Mapping[Any, Read[Any]]) -> None:
        self._files, self._places = files, places
        self._known: dict[Any, Read[Any]] = dict(known)

    def __getitem__(self, hint: Any) -> Read[Any]:
        if hint in self._known:
            return self._known[hint]
        if isinstance(hint, type) and issubclass(hint, Reference):
            made = _entry(hint, self._files, self._places, self)
        elif isinstance(hint, type) and (folder := getattr(hint, "FOLDER", None)) is not None:
            made = _written(file_record(hint), folder, partial(self._files.below, folder))
        elif get_origin(hint) is ByLabel:
            [of] = get_args(hint)
            made = _by_label(config.reader(of, self), needs_else=type(None) not in get_args(of))
        else:
            raise KeyError(hint)
        return self._known.setdefault(hint, made)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def resolvers(
    files: Conf,
    models: Catalog,
    graphs: Mapping[str, str] = MappingProxyType({}),
    instead: Mapping[Any, Read[Any]] = MappingProxyType({}),
) -> Readers:
    """Returns readers for every type that a field of a step can name. `instead` maps types to readers that
    replace the usual ones. `graphs` maps entries of graphs.yaml to the places of their data, which replace
    the entry's own. The place for the key "" replaces that of each other entry that accepts it
    (`Reference.lies_at`)."""
    known: dict[Any, Read[Any]] = {
        Model: _model(models),
        **{c: _written(c, "fitted", partial(files.find, "fitted")) for c in FITTED},
        Prompt: _written(Prompt, "prompts", partial(files.below, "prompts")),
        ByLabel[str | None]: _by_label(_adapter, needs_else=False),
        Grammar: _grammar(files),
        JsonSchema: _schema(files),
    }
    return Readers(files, graphs, {**known, **instead})


def prompt_file(files: Conf, name: str) -> Prompt:
    """Reads the prompt `prompts/NAME.yaml`. Raises ConfError with the file and the error in it."""
    path = files.below("prompts", name)
    return config.build(Prompt, config.read_yaml(path), Where(str(path)))


def _named(value: Any, where: Where, what: str, find: Callable[[str], T]) -> T:
    """Looks up the name `value` with `find`. Adds the name's place in its file to a ConfError of `find`."""
    if not isinstance(value, str):
        raise where.error(f"expected the name of {what}, found {config.kind_of(value)}")
    try:
        return find(value)
    except ConfError as e:
        raise where.error(str(e)) from e


def _model(models: Catalog) -> Read[Model]:
    def read(value: Any, where: Where) -> Model:
        find = models.tokenizer if where.path.endswith(".tokenizer") else models.model
        return _named(value, where, "a model", find)

    return read


def _grammar(files: Conf) -> Read[Grammar]:
    def find(name: str) -> Grammar:
        grammar = Grammar(files.below("grammar", name, ".lark").read_text(encoding="utf-8"))
        longest_reply(grammar)
        return grammar

    return lambda value, where: _named(value, where, "a file under grammar/", find)


def _written(cls: type[T], kind: str, path_of: Callable[[str], Path]) -> Read[T]:
    """Makes a reader for the name of a file under `kind`/, or for the file's content written inline."""

    def find(name: str) -> T:
        path = path_of(name)
        return config.build(cls, config.read_yaml(path), Where(str(path)))

    def read(value: Any, where: Where) -> T:
        if isinstance(value, dict):
            return config.build(cls, value, where)
        return _named(value, where, f"a file under {kind}/", find)

    return read


def _entry(cls: type[Reference[Any]], files: Conf, places: Mapping[str, str], resolve: Resolve) -> Read[Any]:
    """Makes a reader for an entry's name in graphs.yaml. The entry must have a kind that `cls` lists."""

    def find(name: str) -> Reference[Any]:
        path = files.file("graphs.yaml")
        tree, where = config.read_yaml(path), Where(str(path))
        known = [n for n, e in tree.items() if isinstance(e, dict) and e.get("kind") in cls.kinds]
        if name not in known:
            expected = f"expected {cls.about}, of kind {' or '.join(cls.kinds)}"
            raise where.error(f"{name!r}: {expected}; {did_you_mean(name, known)}")
        entry = config.build(cls.entry, tree[name], where.at(name))
        general = places.get("", "")
        place = places.get(name) or (general if cls.lies_at(entry, general) else "") or entry.where
        try:
            return cls.of_entry(name, entry, place, EntryContext(files, resolve, where.at(name)))
        except DataError as e:
            raise ConfError(f"{cls.about.removeprefix('a ')} {name!r}: {e}") from e

    return lambda value, where: _named(value, where, f"{cls.about} of graphs.yaml", find)


def _schema(files: Conf) -> Read[JsonSchema]:
    """Makes a reader for the name of a file under schemas/, or for a schema written inline."""

    def find(name: str) -> dict[str, Any]:
        return config.read_yaml(files.below("schemas", name))

    def read(value: Any, where: Where) -> JsonSchema:
        if isinstance(value, str):
            value = _named(value, where, "a file under schemas/", find)
        if not isinstance(value, dict):
            raise where.error(f"expected a JSON schema as a mapping, found {config.kind_of(value)}")
        try:
            # Keeps the order of the file, since the reply has its fields in this order.
            schema = JsonSchema(json.dumps(value, separators=(",", ":")))
            longest_reply(schema)
        except TypeError as e:
            raise where.error(f"expected values that JSON can hold: {e}") from e
        except ConfError as e:
            raise where.error(str(e)) from e
        return schema

    return read


def _adapter(value: Any, where: Where) -> str | None:
    if value is not None and not isinstance(value, str):
        raise where.error(f"expected the name of an adapter, found {config.kind_of(value)}")
    return value


def _by_label(read: Read[T], needs_else: bool) -> Read[ByLabel[T]]:
    """Makes a reader for one value, or for `{by: REPLY, LABEL: value, ..., else: value}`."""

    def table(value: Any, where: Where) -> ByLabel[T]:
        if not (isinstance(value, dict) and "by" in value):
            return ByLabel(read(value, where))
        if not isinstance(value["by"], str) or not value["by"]:
            raise where.at("by").error(f"expected the name of a reply, found {config.kind_of(value['by'])}")
        if needs_else and "else" not in value:
            raise where.error("expected `else` next to the labels: replies can be skipped or faulty, too")
        for label in value:
            if not isinstance(label, str):
                raise where.error(f"expected labels as text, found {config.kind_of(label)}: put it in quotes")
        of = {k: read(v, where.at(k)) for k, v in value.items() if k not in ("by", "else")}
        if not of:
            raise where.error("expected a value for at least one label")
        return ByLabel(read(value.get("else"), where.at("else")), value["by"], of)

    return table
