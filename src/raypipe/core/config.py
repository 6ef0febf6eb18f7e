"""Conversion of YAML files to frozen dataclasses, by type hints. Each error names the file, the path in the
file, and the expected value."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import yaml

from raypipe.core.errors import ConfError, RaypipeError

T = TypeVar("T")
Resolve = Mapping[type, Callable[[Any, "Where"], Any]]
"""Maps a type to the function that reads its values, which a file gives only by name, such as a model."""
NO_READERS: Resolve = types.MappingProxyType({})
Errors = list[RaypipeError] | None
"""List to which all errors are added; None: the first error is raised."""


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
    """An invalid value in a configuration file, with its place."""

    def __init__(self, where: Where, message: str) -> None:
        at = f"{where.file}: {where.path}" if where.path else where.file
        super().__init__(f"{at}: {message}")
        self.where, self.message = where, message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.message)  # for pickle: the error may cross to another process


class _StrictLoader(yaml.CSafeLoader):  # libyaml is eight times as fast as Python, and in all wheels
    """Loader of safe YAML that refuses a repeated key. Plain YAML would silently take the second value."""


def _mapping(loader: yaml.CSafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            line = key_node.start_mark.line + 1
            raise yaml.constructor.ConstructorError(None, None, f"{key!r} occurs twice, again in line {line}")
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads the mapping in a YAML file. Raises ConfError if the file is missing, unreadable or no mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfError(f"{path}: cannot be read: {e}") from e
    tree = read_value(text, str(path))
    if not isinstance(tree, dict):
        raise ConfError(f"{path}: expected a mapping at the top, found {kind_of(tree)}")
    return tree


def read_value(text: str, what: str) -> Any:
    """Parses a YAML value. Raises ConfError, naming `what`, if the text is invalid, too deep or too large."""
    depth = 0
    try:
        # libyaml uses a stack frame per level, and crashes the process if the stack overflows.
        # This check takes .7 ms for models.yaml.
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_DEPTH:
                raise ConfError(f"{what}: expected at most {MOST_DEPTH} levels of values, found more")
        value = yaml.load(text, Loader=_StrictLoader)  # a SafeLoader: builds plain values only
    except yaml.YAMLError as e:
        said = " ".join(str(e).split()).replace('in "<unicode string>", ', "in ")
        raise ConfError(f"{what}: is not valid YAML: {said}") from e
    pending, count = [value], 0
    while pending:  # aliases may repeat values endlessly, or too often to be read
        one = pending.pop()
        count += 1
        if count > MOST_VALUES:
            raise ConfError(
                f"{what}: expected at most {MOST_VALUES:,} values, found more: an alias repeats them"
            )
        if isinstance(one, dict | list):
            pending.extend(one.values() if isinstance(one, dict) else one)
    return value


MOST_DEPTH = 200  # levels of nesting; the files of raypipe have six
MOST_VALUES = 1_000_000
"""Most values of a text, aliases expanded. The largest file of raypipe has some thousands."""


_KINDS: Mapping[type, str] = {
    dict: "a mapping",
    list: "a list",
    str: "text",
    bool: "true/false",
    int: "a whole number",
    float: "a number",
}
SHOWN = 80  # most characters of a value in a message: a file of another kind is one long text


def kind_of(value: Any) -> str:
    """Describes a value in the words of a configuration file, such as "a whole number (5)"."""
    if value is None:
        return "nothing"
    name = _KINDS.get(type(value), type(value).__name__)
    if isinstance(value, dict | list):
        return name
    said = repr(value)
    return f"{name} ({said if len(said) <= SHOWN else f'{said[:SHOWN]}...'})"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggests the closest known word, or lists all known words."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known) or 'nothing'}"


@functools.cache
def _hints(cls: Any) -> Mapping[str, Any]:
    """Returns the types of a class's init fields. Cached: reading types costs more than reading values."""
    hints = typing.get_type_hints(cls)
    return types.MappingProxyType({f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init})


def require_known(tree: Iterable[object], known: Iterable[str], where: Where, of: str = "") -> None:
    """Raises ConfError for a key of `tree` that is not in `known`. `of` follows the key in the message."""
    for key in tree:
        if key not in set(known):
            raise where.error(f"unknown field {key!r}{of}; {did_you_mean(str(key), known)}")


def build(cls: type[T], tree: Any, where: Where, resolve: Resolve = NO_READERS, errors: Errors = None) -> T:
    """Builds a dataclass from a mapping. `resolve` maps types to functions that read them. Raises the first
    error, a ConfError or another RaypipeError of such a function. If `errors` is a list, it gets all errors
    instead, and the result after an error is None."""
    before = len(errors or ())
    with collected(errors):
        if not isinstance(tree, dict):
            raise where.error(f"expected a mapping, found {kind_of(tree)}")
        hints, values = _hints(cls), dict[str, Any]()  # type: ignore[arg-type]  # a class is hashable
        if errors is None:
            require_known(tree, hints, where)
        for key, value in tree.items():
            with collected(errors):
                if key not in hints:
                    raise where.at(str(key)).error(f"unknown field; {did_you_mean(str(key), hints)}")
                values[key] = _value(hints[key], value, where.at(key), resolve, errors)
        for f in dataclasses.fields(cls):  # type: ignore[arg-type]
            if f.init and f.default is f.default_factory is MISSING and f.name not in tree:
                with collected(errors):
                    raise where.error(f"field {f.name!r} is missing")
        if len(errors or ()) == before:
            try:
                return cls(**values)
            except (ValueError, TypeError) as e:  # __post_init__ refused the combination
                raise where.error(str(e)) from e
    return None  # type: ignore[return-value]


@contextmanager
def collected(errors: Errors) -> Iterator[None]:
    """Adds a RaypipeError that a block raises to `errors`. Raises it instead if `errors` is None."""
    try:
        yield
    except RaypipeError as e:
        if errors is None:
            raise
        errors.append(e)


def problems(cls: type[Any], tree: Any, where: Where, resolve: Resolve = NO_READERS) -> list[RaypipeError]:
    """Returns the errors of all fields of a mapping; if there are none, the error of their combination."""
    errors: list[RaypipeError] = []
    build(cls, tree, where, resolve, errors)
    return errors


def reader(hint: Any, resolve: Resolve) -> Callable[[Any, Where], Any]:
    """Returns a function that reads a value of the type `hint`, as `build` reads a field of that type."""
    return lambda value, where: _value(hint, value, where, resolve)


def _value(hint: Any, value: Any, where: Where, resolve: Resolve, errors: Errors = None) -> Any:
    origin = typing.get_origin(hint)
    if hint in resolve:
        return resolve[hint](value, where)
    if origin in (Union, types.UnionType):
        return _union(hint, value, where, resolve, errors)
    if origin is Literal:
        known = typing.get_args(hint)
        if value not in known or isinstance(value, bool) != isinstance(known[0], bool):
            raise where.error(f"expected one of {', '.join(map(str, known))}, found {kind_of(value)}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise where.error(f"expected a list, found {kind_of(value)}")
        item = typing.get_args(hint)[0]
        return tuple(_value(item, v, where.at(i), resolve, errors) for i, v in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise where.error(f"expected a mapping, found {kind_of(value)}")
        inner = typing.get_args(hint)[1]
        built = {k: _value(inner, v, where.at(k), resolve, errors) for k, v in value.items()}
        return types.MappingProxyType(built)
    if dataclasses.is_dataclass(hint):
        return build(hint, value, where, resolve, errors)  # type: ignore[arg-type]
    return _scalar(hint, value, where)


def _union(hint: Any, value: Any, where: Where, resolve: Resolve, errors: Errors) -> Any:
    options = [a for a in typing.get_args(hint) if a is not type(None)]
    if value is None:
        if len(options) < len(typing.get_args(hint)):
            return None
        raise where.error("expected a value, found nothing")
    record = next((o for o in options if dataclasses.is_dataclass(o) and o not in resolve), None)
    if errors is not None and record is not None and isinstance(value, dict):
        return build(record, value, where, resolve, errors)  # type: ignore[arg-type]
    refusals: list[ConfError] = []
    for option in options:
        try:
            return _value(option, value, where, resolve)
        except ConfError as e:
            meant = isinstance(value, dict) and dataclasses.is_dataclass(option)
            refusals.insert(0 if meant else len(refusals), e)
    raise refusals[0]


def _scalar(hint: Any, value: Any, where: Where) -> Any:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) <= sys.float_info.max:  # also refuses NaN
            raise where.error(f"expected a finite number, found {kind_of(value)}")
        return float(value)
    if hint is Any or (isinstance(value, hint) and not (hint in (int, float) and isinstance(value, bool))):
        return value
    expected = {**_KINDS, bool: "true or false"}.get(hint, str(hint))
    raise where.error(f"expected {expected}, found {kind_of(value)}")
