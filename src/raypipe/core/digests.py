"""Identity of values: canonical forms, digests of models, and the data on which numbers were fitted.

Digests are computed from canonical forms, so the form of a value must never change. A form depends neither on
the Python version nor on the order of fields or of a mapping's keys.
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
    [
        *("name", "path", "repo", "revision", "adapter_paths", "tokenizer_path", "dialect", "template"),
        *("thought_tokens", "engine", "unsent", "weights_gib", "cache_control", "adopted"),
    ]
)
"""Fields of a Model that are not part of its identity: names, locations, settings that `weights` covers, and
settings that change no result. `weights` identifies the content. For a remote model it also covers endpoint
and dialect, for a generator the request settings."""


ADDED: Mapping[str, bool] = {"added": True}
"""Metadata of a field that was added to a record class in use. With its default value, the field is left out
of digests, so results from before the field still count."""


def identifying(record: Any) -> dict[str, Any]:
    """Returns name -> value of the fields of a record, such as a step, that are part of its digest."""
    found = {f.name: (f, getattr(record, f.name)) for f in dataclasses.fields(record)}
    return {n: v for n, (f, v) in found.items() if not (f.metadata.get("added") and v == f.default)}


def stable(value: object) -> str:
    """Returns the canonical form of a plain value. Raises TypeError for any other value.

    Plain values are None, bool, int, finite float, str, and tuples, mappings and frozen dataclasses of these.
    The form shows the type: 1, 1.0, True and "1" have four different forms. A Model or a Reference is
    represented by its identity.

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
    """Returns 32 hex digits that cover all that decides a model's results. Cached results are keyed by them.
    An adopted model (declared equal to another one, `Adoption`) has the other model's identity."""
    return own_identity(model.original)


def own_identity(model: Model) -> str:
    """Returns the identity of the model itself, even if it is adopted. Running engines are known by it."""
    fields = {f.name: getattr(model, f.name) for f in dataclasses.fields(model)}
    return digest("model", stable({k: v for k, v in fields.items() if k not in NOT_IDENTITY}))


HALVES = 2  # parts of a data set: one to fit on, one to measure the fit
_DIGITS = 8  # hex digits of a question's digest: 2,706 questions and 1,353 others collide once in 1,200 runs


@dataclass(frozen=True, slots=True)
class FittedOn:
    """Origin of fitted numbers. Reports mark scores of questions that were used in the fit."""

    data: str  # name and digest of the data
    split: str  # rows of the data that were used
    metric: str  # the fitted measure and its value there
    n: int = 0  # number of questions
    recipe: str = ""  # name of the recipe; "": any
    basis: str = ""  # digest of the steps that the numbers depend on; "": none
    seen: str = ""  # digests of these questions' texts, separated by spaces; "": not stored

    def has_seen(self, text: str) -> bool:
        """Returns whether the fit used a question with this text; False if `seen` is not stored.

        >>> on = FittedOn("demo", "half 0", "score", seen=seen_rows(["who wrote it?"]))
        >>> on.has_seen("who wrote it?"), on.has_seen("who sang it?")
        (True, False)
        """
        return row_digest(text) in self.seen.split()


def row_digest(text: str) -> str:
    """Returns 8 hex digits of a question's text, since ids (often line numbers) recur in other data."""
    return digest("seen", text)[:_DIGITS]


def seen_rows(texts: Iterable[str]) -> str:
    """Returns the digests of question texts, sorted and separated by spaces, for `FittedOn.seen`."""
    return " ".join(sorted({row_digest(t) for t in texts}))


def half_of(key: str) -> int:
    """Returns the half of the data, 0 or 1, to which a question belongs. `key` is the question's group, or
    else its id. Only `key` decides, so a question stays in its half whatever else the data hold.

    >>> [half_of(id) for id in ("q1", "q2", "q3", "q4")]
    [1, 0, 0, 1]
    """
    return part_of(key, HALVES, "split")


def part_of(key: str, parts: int, salt: str) -> int:
    """Maps a key to a number in 0..parts - 1. Another salt gives another mapping."""
    return int(digest(salt, key)[:8], 16) % parts
