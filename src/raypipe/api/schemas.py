"""JSON Schemas of the configuration files, made from the dataclasses into which raypipe reads these files.

An editor uses a schema to check a file while it is written. A schema knows only the fields and their types.
Other rules, such as names that must exist, are checked when raypipe reads the file.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union

from raypipe.core.errors import ConfError
from raypipe.core.llm import Grammar, JsonSchema
from raypipe.core.protocols import Model
from raypipe.core.references import Reference
from raypipe.models.entry import ModelEntry
from raypipe.recipes.resolve import ENTRIES, FILES, FITTED, file_record
from raypipe.recipes.wiring import CORPUS_STEPS, QUESTION_STEPS
from raypipe.runs.cluster.cluster_file import Cluster
from raypipe.text.template import ByLabel, Prompt

Tree = dict[str, Any]
NAMES = ("cluster", "graphs", "models", "recipe")

TEXT: Tree = {"type": "string"}
FOREIGN = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
"""Pattern of the verb of a step from outside: MODULE:CLASS."""
NAMED = {Model: "a model", Grammar: "a file under grammar/"}
"""Type that a file gives only by name -> the kind of thing named."""
NAMED_OR_WRITTEN: Mapping[Any, str] = {Prompt: "prompts", **dict.fromkeys(FITTED, "fitted")}
"""Type that a file gives by name, or in full -> the folder of its files."""
SCALARS: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def schema_names() -> list[str]:
    """Lists the kinds of configuration files that have a schema, also those that plugins add."""
    return sorted([*NAMES, *FILES])


def schema(name: str) -> Tree:
    """Builds the JSON Schema (draft 7) of a kind of configuration file. `name` is recipe, models, cluster,
    graphs, or a kind that a plugin adds, such as finetune. Raises ConfError for any other name."""
    if name not in (known := schema_names()):
        raise ConfError(f"schema {name!r}: expected one of {', '.join(known)}")
    made: Tree
    if name == "recipe":  # a whole recipe, or a variant of another
        halves = {"corpus": _stages(CORPUS_STEPS), "question": _stages(QUESTION_STEPS)}
        whole = _object({"about": TEXT, **halves}, ["question"])
        variant = _object({"about": TEXT, "like": TEXT, "set": {"type": "object"}}, ["like", "set"])
        made = {"if": {"required": ["like"]}, "then": variant, "else": whole}
    elif name == "models":
        made = {"type": "object", "additionalProperties": _record(ModelEntry)}
    elif name == "graphs":  # entries may be of several kinds
        of_kind = []
        for ref in dict.fromkeys(ENTRIES.values()):
            of_kind.append(entry := _record(ref.entry))
            entry["properties"]["kind"] = {"enum": list(ref.kinds)}
        made = {"type": "object", "additionalProperties": {"anyOf": of_kind}}
    else:
        made = _record(Cluster if name == "cluster" else FILES[name])
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": f"raypipe {name}", **made}


def _stages(table: Mapping[str, type[Any]]) -> Tree:
    """Builds the schema of a list of steps. A step is a verb, or a verb with fields and a gate (`when`)."""
    gate = {"type": "object", "additionalProperties": _value(ByLabel[tuple[str, ...]])}
    verbs = {}
    for verb, step in table.items():
        fields = _record(step)
        fields["properties"]["when"] = {**gate, "description": "reply -> labels that let a row in"}
        verbs[verb] = fields if "required" in fields else {**fields, "type": ["object", "null"]}
    foreign = {FOREIGN: {"type": ["object", "null"]}}
    one: Tree = {"type": "object", "properties": verbs, "patternProperties": foreign}
    one |= {"minProperties": 1, "maxProperties": 1, "additionalProperties": False}
    whole = [verb for verb, fields in verbs.items() if "required" not in fields]
    alone = {"anyOf": [{"enum": whole}, {"pattern": FOREIGN}]}
    return {"type": "array", "items": {"if": TEXT, "then": alone, "else": one}}


def _record(cls: type[Any]) -> Tree:
    """Builds the schema of a dataclass as an object. Each field's comment is its description."""
    hints = typing.get_type_hints(cls)
    lines = re.findall(r"^    (\w+): (.*)$", inspect.getsource(cls), re.MULTILINE)
    about = {name: {"description": said} for name, rest in lines if (said := rest.partition("  # ")[2])}
    fields = [f for f in dataclasses.fields(cls) if f.init]
    properties = {f.name: {**_value(hints[f.name]), **about.get(f.name, {})} for f in fields}
    missing = dataclasses.MISSING
    required = [f.name for f in fields if f.default is missing and f.default_factory is missing]
    return _object(properties, required)


def _object(properties: Tree, required: list[str]) -> Tree:
    """Builds the schema of an object that may have only these properties."""
    made: Tree = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**made, "required": required} if required else made


def _value(hint: Any) -> Tree:
    """Builds the schema of a value from the type hint of its field, by the rules for reading the files."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in NAMED:
        return {**TEXT, "title": f"the name of {NAMED[hint]}"}
    if isinstance(hint, type) and issubclass(hint, Reference):
        return {**TEXT, "title": f"the name of {hint.about}"}
    if (folder := NAMED_OR_WRITTEN.get(hint) or getattr(hint, "FOLDER", None)) is not None:
        named = {**TEXT, "title": f"the name of a file under {folder}/"}
        return {"anyOf": [named, _record(file_record(hint))]}
    if hint is JsonSchema:
        return {"anyOf": [{**TEXT, "title": "the name of a file under schemas/"}, {"type": "object"}]}
    if origin is ByLabel:
        one = _value(args[0])
        table = {"type": "object", "properties": {"by": TEXT}, "required": ["by"]}
        table["additionalProperties"] = one
        return {"anyOf": [one, table]}
    if origin in (Union, types.UnionType):
        return {"anyOf": [{"type": "null"} if a is type(None) else _value(a) for a in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is tuple:
        return {"type": "array", "items": _value(args[0])}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _value(args[1])}
    if dataclasses.is_dataclass(hint):
        return _record(hint)  # type: ignore[arg-type]
    return {"type": SCALARS[hint]} if hint in SCALARS else {}
