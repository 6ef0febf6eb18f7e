"""Adapters of a store that were trained on some labels, by the digest of these labels.

Weights cannot be taken apart: an adapter goes whole, and releases whose models name it end.
"""

from __future__ import annotations

from collections.abc import Collection

import yaml

from raypipe.recipes.serialize import description
from raypipe.runs.release import releases
from raypipe.store import Store
from raypipe.store.files import Files
from raypipe.store.layout import ADAPTERS

RECIPE = "recipe.yaml"  # of an adapter: what it was made of


def trained_on(files: Files, labels: Collection[str]) -> dict[str, str]:
    """Adapter -> identity of its weights, of those that were trained on labels with one of these digests."""
    found = {}
    for name in files.names(ADAPTERS) if labels else ():
        raw = files.read(f"{ADAPTERS}/{name}/{RECIPE}")
        tree = yaml.safe_load(raw) if raw else None
        if tree and tree.get("labels", {}).get("digest") in labels:
            found[name] = str(tree["adapter"])
    return found


def releases_naming(store: Store, identities: Collection[str]) -> tuple[str, ...]:
    """Ids of the releases that a model with one of these adapters answers."""
    named = {
        r.id: {identity for m in description(r.recipe).models() for _, identity in m.adapters}
        for r in releases(store)
    }
    return tuple(id for id, has in named.items() if not has.isdisjoint(identities))


def remove_adapters(files: Files, names: Collection[str]) -> None:
    """Removes adapters, the file that says what they are first; the same again changes nothing."""
    for name in names:
        files.remove(f"{ADAPTERS}/{name}/{RECIPE}")
        files.remove_folder(f"{ADAPTERS}/{name}")
