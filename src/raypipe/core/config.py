"""YAML files to frozen dataclasses. Every mistake is named with its file, its path in it, and what was meant.

Knows YAML, dataclasses and type hints. Does not know what the values mean: `recipes` and `models` do.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import yaml

from raypipe.core.errors import ConfError, RaypipeError

T = TypeVar("T")
Resolve = Mapping[type, Callable[[Any, "Where"], Any]]
"""Types that a file names instead of spelling out (a model, a table of fitted numbers): type -> reader."""


@dataclass(frozen=True, slots=True)
class Where:
    """A place in a configuration file, for messages."""

    file: str
    path: str = ""

    def at(self, key: str | int) -> Where:
        step = f"[{key}]" if isinstance(key, int) else (f".{key}" if self.path else key)
        return Where(self.file, self.path + step)

    def error(self, message: str) -> MisplacedValue:
        return MisplacedValue(self, message)


class MisplacedValue(ConfError):
    """Something in a configuration file that cannot be there, and its place."""

    def __init__(self, where: Where, message: str) -> None:
        at = f"{where.file}: {where.path}" if where.path else where.file
        super().__init__(f"{at}: {message}")
        self.where, self.message = where, message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.message)  # it may cross to another process


class _StrictLoader(yaml.CSafeLoader):  # libyaml reads eight times as fast as Python, and is in all wheels
    """Safe YAML in which a key that stands twice is an error, as the second would silently win."""


def _mapping(loader: yaml.CSafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            line = key_node.start_mark.line + 1
            raise yaml.constructor.ConstructorError(None, None, f"{key!r} stands twice, again in line {line}")
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ConfError for a file that is missing, unreadable or no mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfError(f"{path}: cannot be read: {e}") from e
    tree = read_value(text, str(path))
    if not isinstance(tree, dict):
        raise ConfError(f"{path}: expected a mapping at the top, found {kind_of(tree)}")
    return tree


def read_value(text: str, what: str) -> Any:
    """One value in YAML, as a file would have it. Raises ConfError, naming `what`."""
    try:
        _require_shallow(text, what)
        value = yaml.load(text, Loader=_StrictLoader)  # a SafeLoader: builds plain values only
    except yaml.YAMLError as e:
        said = " ".join(str(e).split()).replace('in "<unicode string>", ', "in ")
        raise ConfError(f"{what}: is not valid YAML: {said}") from e
    _require_finite(value, what)
    return value


MOST_DEPTH = 200  # levels; files that ship have six
MOST_VALUES = 1_000_000
"""Of one text, its aliases written out. The largest file that ships has some thousands."""


def _require_shallow(text: str, what: str) -> None:
    """Raises ConfError for values too deep to be read: libyaml takes a frame of the stack for each level,
    and ends the process where there is none left. Takes .7 ms for models.yaml."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEPTH:
            raise ConfError(f"{what}: expected at most {MOST_DEPTH} levels of values, found more")


def _require_finite(tree: Any, what: str) -> None:
    """Raises ConfError for aliases that repeat values without end, or far too often to be read."""
    left, count = [tree], 0
    while left:
        value = left.pop()
        count += 1
        if count > MOST_VALUES:
            raise ConfError(
                f"{what}: expected at most {MOST_VALUES:,} values, found more: an alias repeats them"
            )
        if isinstance(value, dict | list):
            left.extend(value.values() if isinstance(value, dict) else value)


_KINDS: Mapping[type, str] = {
    dict: "a mapping",
    list: "a list",
    str: "text",
    bool: "true/false",
    int: "a whole number",
    float: "a number",
}


SHOWN = 80  # characters of a value that a message repeats: a file of another kind is one long text


def kind_of(value: Any) -> str:
    """What a value is, in the words of a configuration file."""
    if value is None:
        return "nothing"
    name = _KINDS.get(type(value), type(value).__name__)
    if isinstance(value, dict | list):
        return name
    said = repr(value)
    return f"{name} ({said if len(said) <= SHOWN else f'{said[:SHOWN]}...'})"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """What may have been meant, or everything that is known."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known) or 'nothing'}"


@functools.cache
def _hints(cls: Any) -> Mapping[str, Any]:
    """The types of the fields that a class is made of: read once, since that costs more than their values."""
    hints = typing.get_type_hints(cls)
    return types.MappingProxyType({f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init})


def _lacking(cls: Any, tree: Mapping[str, Any]) -> list[str]:
    """The fields without a default that a tree does not have."""
    required = (f for f in dataclasses.fields(cls) if f.init and f.default is f.default_factory is MISSING)
    return [f.name for f in required if f.name not in tree]


def require_known(tree: Iterable[object], known: Iterable[str], where: Where, of: str = "") -> None:
    """Raises ConfError for a key that is not known. `of`: what it would be a field of, for the message."""
    for key in tree:
        if key not in set(known):
            raise where.error(f"unknown field {key!r}{of}; {did_you_mean(str(key), known)}")


def build(cls: type[T], tree: Any, where: Where, resolve: Resolve = types.MappingProxyType({})) -> T:
    """A dataclass from a mapping, by its type hints. Raises ConfError with file, path, expected and found."""
    if not isinstance(tree, dict):
        raise where.error(f"expected a mapping, found {kind_of(tree)}")
    hints = _hints(cls)  # type: ignore[arg-type]  # a class is hashable
    require_known(tree, hints, where)
    values = {k: _value(hints[k], v, where.at(k), resolve) for k, v in tree.items()}
    for name in _lacking(cls, tree):
        raise where.error(f"field {name!r} is missing")
    try:
        return cls(**values)
    except (ValueError, TypeError) as e:  # __post_init__ refused the combination
        raise where.error(str(e)) from e


def problems(
    cls: type[Any], tree: Any, where: Where, resolve: Resolve = types.MappingProxyType({})
) -> list[RaypipeError]:
    """Everything for which `build` would raise, one error each; none: it would not. What a combination of
    fields is refused for shows once every field alone is right."""
    if not isinstance(tree, dict):
        return [where.error(f"expected a mapping, found {kind_of(tree)}")]
    hints = _hints(cls)  # type: ignore[arg-type]  # a class is hashable
    found: list[RaypipeError] = []
    for key, value in tree.items():
        if key in hints:
            found += _value_problems(hints[key], value, where.at(key), resolve)
        else:
            found.append(where.at(str(key)).error(f"unknown field; {did_you_mean(str(key), hints)}"))
    found += [where.error(f"field {name!r} is missing") for name in _lacking(cls, tree)]
    return found or _raised(lambda: build(cls, tree, where, resolve))


def _value_problems(hint: Any, value: Any, where: Where, resolve: Resolve) -> list[RaypipeError]:
    """Of one value: those of each entry, where it holds records."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    inner = next((a for a in args if dataclasses.is_dataclass(a) and a not in resolve), None)
    if hint in resolve or not (dataclasses.is_dataclass(hint) or inner):
        return _raised(lambda: _value(hint, value, where, resolve))
    if dataclasses.is_dataclass(hint):
        return problems(typing.cast(type[Any], hint), value, where, resolve)
    record = typing.cast(type[Any], inner)
    if origin is tuple and isinstance(value, list):
        return [p for i, v in enumerate(value) for p in problems(record, v, where.at(i), resolve)]
    if origin in (Union, types.UnionType) and isinstance(value, dict):
        return problems(record, value, where, resolve)
    if origin is not None and origin not in (tuple, Union, types.UnionType) and isinstance(value, dict):
        return [p for k, v in value.items() for p in problems(record, v, where.at(str(k)), resolve)]
    return _raised(lambda: _value(hint, value, where, resolve))


def _raised(check: Callable[[], object]) -> list[RaypipeError]:
    try:
        check()
    except RaypipeError as e:
        return [e]
    return []


def _value(hint: Any, value: Any, where: Where, resolve: Resolve) -> Any:
    origin = typing.get_origin(hint)
    if hint in resolve:
        return resolve[hint](value, where)
    if origin in (Union, types.UnionType):
        return _union(hint, value, where, resolve)
    if origin is Literal:
        return _literal(hint, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise where.error(f"expected a list, found {kind_of(value)}")
        item = typing.get_args(hint)[0]
        return tuple(_value(item, v, where.at(i), resolve) for i, v in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise where.error(f"expected a mapping, found {kind_of(value)}")
        inner = typing.get_args(hint)[1]
        return types.MappingProxyType({k: _value(inner, v, where.at(k), resolve) for k, v in value.items()})
    if dataclasses.is_dataclass(hint):
        return build(hint, value, where, resolve)  # type: ignore[arg-type]
    return _scalar(hint, value, where)


def _union(hint: Any, value: Any, where: Where, resolve: Resolve) -> Any:
    options = [a for a in typing.get_args(hint) if a is not type(None)]
    if value is None:
        if len(options) < len(typing.get_args(hint)):
            return None
        raise where.error("expected a value, found nothing")
    errors: list[ConfError] = []
    for option in options:
        try:
            return _value(option, value, where, resolve)
        except ConfError as e:
            meant = isinstance(value, dict) and dataclasses.is_dataclass(option)
            errors.insert(0 if meant else len(errors), e)
    raise errors[0]


def _literal(hint: Any, value: Any, where: Where) -> Any:
    options = typing.get_args(hint)
    if value not in options or isinstance(value, bool) != isinstance(options[0], bool):
        raise where.error(f"expected one of {', '.join(map(str, options))}, found {kind_of(value)}")
    return value


def _scalar(hint: Any, value: Any, where: Where) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is Any or (isinstance(value, hint) and not (hint in (int, float) and isinstance(value, bool))):
        return value
    expected = {**_KINDS, bool: "true or false"}.get(hint, str(hint))
    raise where.error(f"expected {expected}, found {kind_of(value)}")


@dataclass(frozen=True, slots=True)
class Conf:
    """The folders in which configuration is looked up, first match wins: recipes/, clusters/, ... in each."""

    folders: tuple[Path, ...]

    def find(self, kind: str, name: str, suffix: str = ".yaml") -> Path:
        """A file by path or by name under `kind`/. Raises ConfError listing what there is."""
        if name.endswith((suffix, ".yml")) or "/" in name:
            path = Path(name)
            if path.is_file():
                return path
            raise ConfError(f"{name}: {'a folder, expected a file' if path.is_dir() else 'no such file'}")
        for folder in self.folders:
            path = folder / kind / f"{name}{suffix}"
            if path.is_file():
                return path
        known = {p.name.removesuffix(suffix) for f in self.folders for p in (f / kind).glob(f"*{suffix}")}
        raise ConfError(f"no {name!r} under {kind}/; {did_you_mean(name, known)}")

    def layers(self, name: str) -> list[Path]:
        """One file of each folder that has it, the first match last: to lay each over those before it."""
        found = dict.fromkeys((f / name).resolve() for f in self.folders if (f / name).is_file())
        return list(reversed(found)) or [self.file(name)]

    def file(self, name: str) -> Path:
        """One file next to the folders of kinds, such as models.yaml."""
        for folder in self.folders:
            if (folder / name).is_file():
                return folder / name
        looked = ", ".join(str(f) for f in self.folders) or "nowhere"
        raise ConfError(f"no {name} found; looked in: {looked}. Set RAYPIPE_CONF to the folder that has it")
