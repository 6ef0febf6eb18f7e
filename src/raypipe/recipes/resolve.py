"""Resolves the names in a recipe: models, prompts, grammars, schemas, fitted numbers.

Knows where such things lie in the folders of conf. What a step gets is the value, never the name: a prompt's
text, a model's identity, a grammar's bytes. So a file can move, and a word in it cannot change unnoticed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from raypipe.core import config
from raypipe.core.config import Conf, Resolve, Where, did_you_mean
from raypipe.core.errors import ConfError, DataError
from raypipe.core.kg import FactsRef, Level, PoolRef
from raypipe.core.llm import Grammar, JsonSchema
from raypipe.core.protocols import GraphRef, Model
from raypipe.kg.language.example_bank import ExampleBank
from raypipe.models.catalog import Catalog
from raypipe.models.constraint import longest_reply
from raypipe.readers.example_pool import pool_ref
from raypipe.steps.answer_probability import AnswerProbability
from raypipe.steps.facts import FactsRule
from raypipe.steps.fuse import FusionWeights
from raypipe.text.evidence import Fitted
from raypipe.text.template import ByLabel, Prompt

T = TypeVar("T")
Read = Callable[[Any, Where], T]

FITTED: tuple[type[Any], ...] = (Fitted, AnswerProbability, FusionWeights)
"""What a file under fitted/ can hold: numbers for `extract`, `decide` and `fuse`."""


def resolvers(files: Conf, models: Catalog, graphs: Mapping[str, str] = MappingProxyType({})) -> Resolve:
    """Readers for every type that a field of a step can name. `graphs` says where graphs lie, by name; under
    "" where all others do."""
    prompt = _written(Prompt, "prompts", partial(files.below, "prompts"))
    found: dict[Any, Any] = {
        Model: _model(models),
        **{c: _written(c, "fitted", partial(files.find, "fitted")) for c in FITTED},
        Prompt: prompt,
        ByLabel[Prompt]: _by_label(prompt, needs_else=True),
        ByLabel[str | None]: _by_label(_adapter, needs_else=False),
        ByLabel[tuple[str, ...]]: _by_label(config.reader(tuple[str, ...]), needs_else=True),
        Grammar: _grammar(files),
        JsonSchema: _schema(files),
        GraphRef: _graph(files, graphs, models),
        ExampleBank: _written(ExampleBank, "examples", partial(files.below, "examples")),
        FactsRef: _file_of(files, graphs, "facts", _facts_ref),
        PoolRef: _file_of(files, graphs, "examples", _pool),
    }
    found[ByLabel[FactsRule | None]] = _by_label(config.reader(FactsRule | None, found), needs_else=False)
    return found


def prompt_file(files: Conf, name: str) -> Prompt:
    """The prompt `prompts/NAME.yaml`. Raises ConfError naming the file and what in it is wrong."""
    path = files.below("prompts", name)
    return config.build(Prompt, config.read_yaml(path), Where(str(path)))


def _named(value: Any, where: Where, what: str, find: Callable[[str], T]) -> T:
    """The value that a name in a file refers to; errors name that place in the file."""
    if not isinstance(value, str):
        raise where.error(f"expected the name of {what}, found {config.kind_of(value)}")
    try:
        return find(value)
    except ConfError as e:
        raise where.error(str(e)) from e


def _model(models: Catalog) -> Read[Model]:
    def find(where: Where) -> Callable[[str], Model]:
        return models.tokenizer if where.path.endswith(".tokenizer") else models.model

    return lambda value, where: _named(value, where, "a model", find(where))


def _grammar(files: Conf) -> Read[Grammar]:
    def find(name: str) -> Grammar:
        grammar = Grammar(_grammar_text(files, name))
        longest_reply(grammar)
        return grammar

    return lambda value, where: _named(value, where, "a file under grammar/", find)


@dataclass(frozen=True, slots=True)
class GraphEntry:
    kind: Literal["folder", "server", "facts", "examples"]
    where: str = ""  # folder, address, or file of facts or examples; "": to be said when it is used
    version: str = ""  # of a server
    refresh: Mapping[str, str | int] = field(default_factory=dict)  # domain -> REFRESH, or seconds
    levels: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)  # kind of name -> how it is linked
    embedder: str = ""  # of the level embedding: a model's name
    near: float | None = None  # cosine from which on that level takes two names for one

    def __post_init__(self) -> None:
        meant = any("embedding" in levels for levels in self.levels.values())
        if not meant == bool(self.embedder) == (self.near is not None):
            raise ValueError("embedder and near: expected both with the level embedding, and neither without")
        if self.near is not None and not 0 < self.near <= 1:
            raise ValueError(f"near: expected a cosine above 0, at most 1, found {self.near}")
        if (self.kind == "server") != bool(self.version):
            raise ValueError("version: expected for a server and for nothing else")
        if self.levels:
            from raypipe.kg.link import LEVELS

            if strange := sorted(self.levels.keys() - LEVELS.keys()):
                known = ", ".join(sorted(LEVELS))
                raise ValueError(f"levels: {strange[0]!r} is no kind of name; expected {known}")
        for domain, period in self.refresh.items():
            if isinstance(period, str) and period not in REFRESH:
                raise ValueError(
                    f"refresh: {domain}: expected {', '.join(REFRESH)} or seconds, found {period!r}"
                )


REFRESH: Mapping[str, float] = MappingProxyType({"static": math.inf, "daily": 86400.0, "live": 0.0})
"""Words for how long a reply holds, in seconds."""


def _graphs_file(files: Conf) -> tuple[dict[str, Any], Where]:
    path = files.file("graphs.yaml")
    return config.read_yaml(path), Where(str(path))


def _graph(files: Conf, graphs: Mapping[str, str], models: Catalog) -> Read[GraphRef]:
    def find(name: str) -> GraphRef:
        tree, where = _graphs_file(files)
        if name not in tree:
            raise where.error(f"no graph {name!r}; {did_you_mean(name, tree)}")
        entry = config.build(GraphEntry, tree[name], where.at(name))
        if entry.kind in ("facts", "examples"):
            raise ConfError(f"{name!r} are {entry.kind}: expected a graph, of kind folder or server")
        address = graphs.get("", "").startswith(("http://", "https://"))
        general = graphs.get("", "") if address == (entry.kind == "server") else ""
        place = graphs.get(name) or general or entry.where
        ref = _graph_ref(name, entry, place, _grammar_text(files, "calls"))
        if entry.near is None:
            return ref
        embedder = _model(models)(entry.embedder, where.at(name).at("embedder"))
        if embedder.kind != "embedder":
            raise where.at(name).error(f"embedder: expected a model of kind embedder, found {embedder.kind}")
        return replace(ref, embedder=embedder, near=entry.near)

    return lambda value, where: _named(value, where, "a graph of graphs.yaml", find)


def _graph_ref(name: str, entry: GraphEntry, place: str, grammar: str) -> GraphRef:
    """The entry at the place it is said to lie; an address for a folder, or the reverse, is refused. Without
    a place it can be named and not asked."""
    seconds = {d: REFRESH[p] if isinstance(p, str) else float(p) for d, p in entry.refresh.items()}
    refresh = {d: s for d, s in seconds.items() if math.isfinite(s)}
    if not place:
        return GraphRef(name, "folder", "", "nowhere", grammar, entry.levels)
    if (entry.kind == "server") != place.startswith(("http://", "https://")):
        what = "http://HOST:PORT" if entry.kind == "server" else "a folder of tables"
        raise ConfError(f"graph {name!r} is of kind {entry.kind}: expected {what}, found {place!r}")
    from raypipe.kg.graph_adapter import tables_version  # .3 s with httpx, for recipes that have a graph

    try:
        version = entry.version or tables_version(Path(place))
    except DataError as e:
        raise ConfError(f"graph {name!r}: {e}") from e
    assert entry.kind in ("folder", "server")
    if entry.kind == "folder":  # workers may stand elsewhere
        place = str(Path(place).absolute())
    return GraphRef(name, entry.kind, place, version, grammar, entry.levels, MappingProxyType(refresh))


def _written(cls: type[T], kind: str, path_of: Callable[[str], Path]) -> Read[T]:
    """The name of a file under `kind`/, or what such a file holds, spelled out."""

    def find(name: str) -> T:
        path = path_of(name)
        return config.build(cls, config.read_yaml(path), Where(str(path)))

    def read(value: Any, where: Where) -> T:
        if isinstance(value, dict):
            return config.build(cls, value, where)
        return _named(value, where, f"a file under {kind}/", find)

    return read


def _file_of(
    files: Conf, graphs: Mapping[str, str], kind: Literal["facts", "examples"], made: Callable[[str, str], T]
) -> Read[T]:
    """The name of an entry of graphs.yaml that is one file. `made`: of its name, and its place or ""."""

    def find(name: str) -> T:
        tree, where = _graphs_file(files)
        entry = config.build(GraphEntry, tree[name], where.at(name)) if name in tree else None
        if entry is None or entry.kind != kind:
            known = [n for n, e in tree.items() if isinstance(e, dict) and e.get("kind") == kind]
            raise where.error(f"no {kind} {name!r}; {did_you_mean(name, known)}")
        try:
            return made(name, graphs.get(name) or entry.where)
        except DataError as e:
            raise ConfError(f"{kind} {name!r}: {e}") from e

    return lambda value, where: _named(value, where, f"{kind} of graphs.yaml", find)


def _facts_ref(name: str, place: str) -> FactsRef:
    if not place:
        return FactsRef(name, "", "nowhere")
    from raypipe.kg.public_data import facts_version

    return FactsRef(name, str(Path(place).absolute()), facts_version(Path(place)))


def _pool(name: str, place: str) -> PoolRef:
    return pool_ref(name, Path(place)) if place else PoolRef(name, "", "nowhere", 0)


def _grammar_text(files: Conf, name: str) -> str:
    return files.below("grammar", name, ".lark").read_text(encoding="utf-8")


def _schema(files: Conf) -> Read[JsonSchema]:
    """The name of a file under schemas/, or a schema spelled out."""

    def find(name: str) -> dict[str, Any]:
        return config.read_yaml(files.below("schemas", name))

    def read(value: Any, where: Where) -> JsonSchema:
        if isinstance(value, str):
            value = _named(value, where, "a file under schemas/", find)
        if not isinstance(value, dict):
            raise where.error(f"expected a JSON schema as a mapping, found {config.kind_of(value)}")
        try:
            # In the order of the file: it is the order of the reply's fields.
            schema = JsonSchema(json.dumps(value, separators=(",", ":")))
            longest_reply(schema)
        except TypeError as e:
            raise where.error(f"expected what JSON can hold: {e}") from e
        except ConfError as e:
            raise where.error(str(e)) from e
        return schema

    return read


def _adapter(value: Any, where: Where) -> str | None:
    if value is not None and not isinstance(value, str):
        raise where.error(f"expected the name of an adapter, found {config.kind_of(value)}")
    return value


def _by_label(read: Read[T], needs_else: bool) -> Read[ByLabel[T]]:
    """One value, or `{by: REPLY, LABEL: value, ..., else: value}`."""

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
