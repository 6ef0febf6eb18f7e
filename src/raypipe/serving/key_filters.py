"""Filters of keys: the part of the store that each key may search. Plain values.

    filters:
      acme:
        keys: [a-key-of-16-characters-or-more]
        hosts: [example.org]
        where: team = 'hr'

Keys become digests when the file is read, so replicas get no usable key.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raypipe.core import config
from raypipe.core.config import Where
from raypipe.core.errors import ConfError
from raypipe.serving.access import KEY_CHARS, ApiKeys
from raypipe.text.filters import Filters, parse

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True)
class FilterEntry:
    """An entry of the file, with its keys as plain text."""

    keys: tuple[str, ...]  # keys with this filter; two during the exchange of a key
    hosts: tuple[str, ...] = ()  # this and the next two as in `Filters`; all empty: the whole store
    sources: tuple[str, ...] = ()
    where: str = ""

    def __post_init__(self) -> None:
        if not self.keys:
            raise ValueError("keys: expected at least one")


@dataclass(frozen=True, slots=True)
class FilterFile:
    filters: Mapping[str, FilterEntry]


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """A named filter and the keys that have it, as digests."""

    name: str
    keys: ApiKeys = field(default_factory=ApiKeys)
    filters: Filters = field(default_factory=Filters)  # the part of a store to search; empty: all


UNFILTERED = KeyFilter("default")
"""Filter of a key that the file does not name, and of requests that need no key."""


def read_key_filters(path: Path) -> tuple[KeyFilter, ...]:
    """Reads the filters of a file. Raises as `key_filters_in`."""
    return key_filters_in(config.read_yaml(path), str(path))


def key_filters_in(tree: Any, path: str) -> tuple[KeyFilter, ...]:
    """Builds the filters of a file's content, which messages call `path`. Raises ConfError for an invalid
    filter, and for a key that could be guessed or that two filters have; no message contains a key."""
    try:
        return _key_filters(tree, path)
    except ConfError as e:
        raise ConfError(_masked(str(e), tree)) from None


def _masked(message: str, tree: Any) -> str:
    """Removes from a message all texts of the tree that are as long as a key: a key may be in any place. Near
    matches of field names stay."""
    known = [f.name for cls in (FilterFile, FilterEntry) for f in dataclasses.fields(cls)]
    long = {t for t in _texts(tree) if len(t) >= KEY_CHARS and not difflib.get_close_matches(t, known)}
    for text in sorted(long, key=len, reverse=True):
        for form in (repr(text)[1:-1], text):
            message = message.replace(form, "...").replace(form[: config.SHOWN - 1], "...")
    return message


def _texts(tree: Any) -> set[str]:
    """Collects every key and value of a tree, as text."""
    if isinstance(tree, dict):
        return {str(k) for k in tree}.union(*map(_texts, tree.values()))
    return set().union(*map(_texts, tree)) if isinstance(tree, list) else {str(tree)}


def _key_filters(tree: Any, path: str) -> tuple[KeyFilter, ...]:
    file = config.build(FilterFile, tree, Where(path))
    built: list[KeyFilter] = []
    owners: dict[bytes, str] = {}
    for name, entry in file.filters.items():
        where = f"{path}: filters.{name}"
        if not _NAME.fullmatch(name) or name == UNFILTERED.name:
            expected = f"expected a name of small letters, digits and -, and not {UNFILTERED.name!r}"
            raise ConfError(f"{where}: {expected}")
        try:
            if "where" in tree["filters"][name]:
                parse(entry.where)
            keys, filters = ApiKeys.of(entry.keys), Filters(entry.hosts, entry.sources, entry.where)
        except (ConfError, ValueError) as e:
            raise ConfError(f"{where}: {e}") from e
        for number, digest in enumerate(keys.digests, start=1):
            if (other := owners.setdefault(digest, name)) != name:
                raise ConfError(
                    f"{where}: key {number} is also a key of filter {other}; each filter needs its own keys"
                )
        built.append(KeyFilter(name, keys, filters))
    if not built:
        raise ConfError(f"{path}: expected at least one filter, found none")
    return tuple(built)


def filter_of(key: str, key_filters: Sequence[KeyFilter]) -> KeyFilter | None:
    """Finds the filter of this key; None if no filter has it. Compares every key, each in constant time."""
    matches = [f for f in key_filters if f.keys.accepts(key)]
    return matches[0] if matches else None
