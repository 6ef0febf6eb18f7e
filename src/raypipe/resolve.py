"""What a recipe names instead of spelling out, found: models, prompts, grammars, schemas, fitted numbers.

Knows where such things lie in the folders of conf. What a step gets is the value, never the name: a prompt's
text, a model's identity, a grammar's bytes. So a file can move, and a word in it cannot change unnoticed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from raypipe import conf
from raypipe.chat import Grammar, JsonSchema
from raypipe.conf import Conf, Resolve, Where, did_you_mean
from raypipe.errors import ConfError
from raypipe.models.catalog import Catalog
from raypipe.models.constraint import bounds
from raypipe.step import Model
from raypipe.text.evidence import Fitted
from raypipe.text.prompt import ByLabel, Prompt

T = TypeVar("T")
Read = Callable[[Any, Where], T]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


def resolvers(files: Conf, models: Catalog) -> Resolve:
    """Readers for every type that a field of a step can name."""
    prompt = _prompt(files)
    found: dict[Any, Any] = {
        Model: _model(models),
        Fitted: _fitted(files),
        Prompt: prompt,
        ByLabel[Prompt]: _by_label(prompt, needs_else=True),
        ByLabel[str | None]: _by_label(_adapter, needs_else=False),
        Grammar: _grammar(files),
        JsonSchema: _schema,
    }
    return found


def prompt_file(files: Conf, name: str) -> Prompt:
    """The prompt `prompts/NAME.yaml`. Raises ConfError naming the file and what in it is wrong."""
    path = _find(files, "prompts", name, ".yaml")
    return conf.build(Prompt, conf.read_yaml(path), Where(str(path)))


def _find(files: Conf, kind: str, name: str, suffix: str) -> Path:
    """A file under `kind`/, in a folder of its own or not. A name never leads out of `kind`/."""
    if _NAME.fullmatch(name):
        for folder in files.folders:
            path = folder / kind / f"{name}{suffix}"
            if path.is_file():
                return path
    known = {
        p.relative_to(f / kind).as_posix().removesuffix(suffix)
        for f in files.folders
        for p in (f / kind).rglob(f"*{suffix}")
    }
    raise ConfError(f"no {name!r} under {kind}/; {did_you_mean(name, known)}")


def _named(value: Any, where: Where, what: str, find: Callable[[str], T]) -> T:
    """What a name in a file stands for, its errors at that place."""
    if not isinstance(value, str):
        raise where.error(f"expected the name of {what}, found {conf.kind_of(value)}")
    try:
        return find(value)
    except ConfError as e:
        raise where.error(str(e)) from e


def _model(models: Catalog) -> Read[Model]:
    return lambda value, where: _named(value, where, "a model", models.model)


def _prompt(files: Conf) -> Read[Prompt]:
    """The name of a file under prompts/, or a prompt spelled out."""

    def read(value: Any, where: Where) -> Prompt:
        if isinstance(value, dict):
            return conf.build(Prompt, value, where)
        return _named(value, where, "a file under prompts/", lambda name: prompt_file(files, name))

    return read


def _grammar(files: Conf) -> Read[Grammar]:
    def find(name: str) -> Grammar:
        grammar = Grammar(_find(files, "grammar", name, ".lark").read_text(encoding="utf-8"))
        bounds(grammar)
        return grammar

    return lambda value, where: _named(value, where, "a file under grammar/", find)


def _schema(value: Any, where: Where) -> JsonSchema:
    if not isinstance(value, dict):
        raise where.error(f"expected a JSON schema as a mapping, found {conf.kind_of(value)}")
    try:
        # In the order of the file: it is the order of the reply's fields.
        schema = JsonSchema(json.dumps(value, separators=(",", ":")))
        bounds(schema)
        return schema
    except TypeError as e:
        raise where.error(f"expected what JSON can hold: {e}") from e
    except ConfError as e:
        raise where.error(str(e)) from e


def _adapter(value: Any, where: Where) -> str | None:
    if value is not None and not isinstance(value, str):
        raise where.error(f"expected the name of an adapter, found {conf.kind_of(value)}")
    return value


def _by_label(read: Read[T], needs_else: bool) -> Read[ByLabel[T]]:
    """One value, or `{by: REPLY, LABEL: value, ..., else: value}`."""

    def table(value: Any, where: Where) -> ByLabel[T]:
        if not (isinstance(value, dict) and "by" in value):
            return ByLabel(read(value, where))
        if not isinstance(value["by"], str) or not value["by"]:
            raise where.at("by").error(f"expected the name of a reply, found {conf.kind_of(value['by'])}")
        if needs_else and "else" not in value:
            raise where.error("expected `else` beside the labels: replies can be skipped or faulty, too")
        for label in value:
            if not isinstance(label, str):
                raise where.error(f"expected labels as text, found {conf.kind_of(label)}: put it in quotes")
        of = {k: read(v, where.at(k)) for k, v in value.items() if k not in ("by", "else")}
        if not of:
            raise where.error("expected a value for at least one label")
        return ByLabel(read(value.get("else"), where.at("else")), value["by"], of)

    return table


def _fitted(files: Conf) -> Read[Fitted]:
    """The name of a file under fitted/, or the numbers spelled out."""

    def find(name: str) -> Fitted:
        path = files.find("fitted", name)
        return conf.build(Fitted, conf.read_yaml(path), Where(str(path)))

    def read(value: Any, where: Where) -> Fitted:
        if isinstance(value, dict):
            return conf.build(Fitted, value, where)
        return _named(value, where, "a file under fitted/", find)

    return read
