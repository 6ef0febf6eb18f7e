"""Identity: the canonical form of a value, the digest of a model, and the origin of fitted numbers.

Knows plain values, mappings and frozen dataclasses; knows no recipe, no store and no fit. Digests are made of
these forms, so a form never changes: another Python, another field order or another mapping order gives the
same.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from raypipe.core.protocols import Model
from raypipe.core.records import digest
from raypipe.core.references import Reference

NOT_IDENTITY = frozenset(
    {
        "name",
        "path",
        "repo",
        "revision",
        "adapter_paths",
        "tokenizer_path",
        "dialect",
        "template",
        "thought_tokens",
        "engine",
        "unsent",
        "weights_gib",
        "cache_control",
        "adopted",
    }
)
"""Fields of a Model that say what it is called and where it lies. `weights` names what is in it; of a remote
model the endpoint and its dialect, too; and how a generator is asked, where its entry says so."""


ADDED: Mapping[str, bool] = {"added": True}
"""Metadata of a field that came after records of its class were in use: with its default it is in no digest,
so what was computed before the field was there still counts."""


def identifying(record: Any) -> dict[str, Any]:
    """The fields of a step, or another record, that are in its digest."""
    found = {f.name: (f, getattr(record, f.name)) for f in dataclasses.fields(record)}
    return {n: v for n, (f, v) in found.items() if not (f.metadata.get("added") and v == f.default)}


def stable(value: object) -> str:
    """The canonical form of None, bool, int, float, str, tuples, mappings and frozen dataclasses of these.

    Types are told apart (1, 1.0, True and "1" have four forms); the order of fields and of a mapping's keys
    does not matter; a Model and a Reference are what their identity says.

    Raises TypeError for anything else: what has no stable form must not reach a digest.

    >>> stable({"top": 5, "by": ("dense", None)})
    '{"by":("dense",null),"top":5}'
    """
    kind = type(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return int.__repr__(value)
    if isinstance(value, float) and kind is float:
        if not math.isfinite(value):
            raise TypeError(f"no stable form: {value!r} is not a finite number")
        return float.__repr__(value)
    if kind is str:
        return json.dumps(value)
    if isinstance(value, tuple):
        return "(" + ",".join(stable(v) for v in value) + ")"
    if isinstance(value, Mapping):
        return "{" + ",".join(sorted(f"{stable(k)}:{stable(v)}" for k, v in value.items())) + "}"
    if isinstance(value, Model):
        return f"Model({model_identity(value)})"
    if isinstance(value, Reference):
        return f"{kind.__name__.removesuffix('Ref')}({','.join(map(stable, value.identity()))})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made: Any = getattr(value, "__dataclass_params__", None)
        if not made.frozen:
            raise TypeError(f"no stable form: dataclass {kind.__qualname__} is not frozen")
        return kind.__name__ + stable(identifying(value))
    raise TypeError(
        f"no stable form: {kind.__module__}.{kind.__qualname__} ({value!r:.80}); expected None, bool, int, "
        "float, str, a tuple, a mapping or a frozen dataclass"
    )


def model_identity(model: Model) -> str:
    """32 hex digits that name everything about a model that decides its numbers: what it computed is stored
    under them. An adopted model has those of the other one."""
    return own_identity(model.original)


def own_identity(model: Model) -> str:
    """The same of the model itself, adopted or not: what computes now, an engine or a server, is named so."""
    fields = {f.name: getattr(model, f.name) for f in dataclasses.fields(model)}
    return digest("model", stable({k: v for k, v in fields.items() if k not in NOT_IDENTITY}))


HALVES = 2  # parts of a data set: one is fitted on, the other says how good the fit is
_DIGITS = 8  # of a question's digest: 2,706 questions meet one of 1,353 others by chance once in 1,200 runs


@dataclass(frozen=True, slots=True)
class FittedOn:
    """Origin of fitted numbers. Scores of questions that a fit has seen are marked."""

    data: str  # name and digest of the data
    split: str  # which rows of it
    metric: str  # what was fitted, and how well it does there
    n: int = 0  # questions
    recipe: str = ""  # name of the recipe; "": of any
    basis: str = ""  # digest of the steps that the numbers rest on; "": they rest on no recipe
    seen: str = ""  # digests of these questions' texts, parted by spaces; "": not kept

    def has_seen(self, text: str) -> bool:
        """Returns whether a question with this text was among those of the fit.

        >>> on = FittedOn("demo", "half 0", "score", seen=seen_rows(["who wrote it?"]))
        >>> on.has_seen("who wrote it?"), on.has_seen("who sang it?")
        (True, False)
        """
        return row_digest(text) in self.seen.split()


def row_digest(text: str) -> str:
    """Names a question by its text: ids are often line numbers, which other data have, too."""
    return digest("seen", text)[:_DIGITS]


def seen_rows(texts: Iterable[str]) -> str:
    """The questions of a fit as `FittedOn` keeps them."""
    return " ".join(sorted({row_digest(t) for t in texts}))


def half_of(key: str) -> int:
    """The half, 0 or 1, that a question belongs to, by its id, or by its group where questions come in
    groups. Nothing but the key decides, so a question stays in its half whatever else the data hold.

    >>> [half_of(id) for id in ("q1", "q2", "q3", "q4")]
    [1, 0, 0, 1]
    """
    return part_of(key, HALVES, "split")


def part_of(key: str, parts: int, salt: str) -> int:
    """Returns one of 0..parts - 1 for a key; another salt deals them otherwise."""
    return int(digest(salt, key)[:8], 16) % parts
