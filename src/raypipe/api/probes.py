"""Probes: whether an embedder or reranker behind an address still answers as when its numbers were stored.

A few fixed texts are sent before work. The first answer is kept in the store; a later one that differs means
that another model answers under the same name, whose numbers must not stand next to the old ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import cast

import numpy as np

from raypipe.core.digests import model_identity
from raypipe.core.errors import ConfError
from raypipe.core.protocols import Model
from raypipe.models import load
from raypipe.models.entry import REMOTE
from raypipe.models.load import Embedder, EndpointAddress, Reranker
from raypipe.store import Store
from raypipe.store.layout import PROBES

TEXTS = (
    "who wrote the first program?",
    "Ada Lovelace wrote the first program.",
    "3,14 \u20ac \u65e5\u672c\u8a9e",
)
FAR = 0.005
"""Distance from which on two answers are another model's: one less the cosine of two vectors, or between two
scores. The same model in half precision, batched otherwise, stays below .001."""


def require_unchanged(
    store: Store | None, models: Iterable[Model], endpoints: Mapping[str, EndpointAddress]
) -> None:
    """Asks each embedder and reranker behind an address about fixed texts, and keeps the first answers.

    Raises ConfError for an answer of another length or number, and for one that differs from the stored one;
    Unavailable for a server that is down. None: nothing is stored or compared."""
    for model in models:
        if model.loader not in REMOTE or model.kind == "generator":
            continue
        found = _answers(model, endpoints)
        if store is None:
            continue
        name = f"{PROBES}/{model_identity(model)}.json"
        kept = json.loads(store.files.read(name) or b"null")
        if kept is None:
            store.files.write(name, json.dumps({"model": model.name, "numbers": found.tolist()}).encode())
        elif (far := distance(np.asarray(kept["numbers"], np.float32), found)) > FAR:
            what = "vectors" if model.kind == "embedder" else "scores"
            raise ConfError(
                f"model {model.name!r} at endpoint {model.path!r} gives other {what} than those in "
                f"{store.uri} (distance {far:.3f}): another model answers there by the same name. Put the "
                f"old one back, or give its entry a `revision` of your own: then it is another model, "
                f"and what rests on it is computed again"
            )


def distance(old: np.ndarray, new: np.ndarray) -> float:
    """How far answers are apart: of vectors ((texts, dim) float32, unit rows) one less the smallest cosine,
    of scores the largest difference; infinity for another shape."""
    if old.shape != new.shape:
        return float("inf")
    if old.ndim == 2:
        return float(1 - (old * new).sum(axis=1).min())
    return float(np.abs(old - new).max())


def _answers(model: Model, endpoints: Mapping[str, EndpointAddress]) -> np.ndarray:
    opened = load.open_remote(model, endpoints)
    if model.kind == "reranker":
        return cast(Reranker, opened).score([(TEXTS[0], text) for text in TEXTS])
    embedder = cast(Embedder, opened)
    return np.concatenate([embedder.embed(TEXTS, "query"), embedder.embed(TEXTS, "passage")])
