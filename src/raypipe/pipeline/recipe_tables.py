"""The tables that a recipe searches: their names in a store, and which sources they lack.

Knows recipes and the store; reads, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raypipe.core.digests import model_identity
from raypipe.core.protocols import Model
from raypipe.recipes.recipe import Recipe
from raypipe.store import Store
from raypipe.store.coverage import lacking as lacking_tables
from raypipe.store.index import IndexSpec, index_spec


def texts_table(recipe: Recipe) -> str:
    """The table of its parsed sources."""
    return f"texts-{recipe.texts_digest()}"


def passages_table(recipe: Recipe) -> str:
    """The table of its chunks."""
    return f"passages-{recipe.passages_digest()}"


def vectors_table(recipe: Recipe, model: Model) -> str:
    """The searched copy of one of its embedders' vectors."""
    return f"vectors-{recipe.vectors_digest(model)}"


def searched(store: Store, recipe: Recipe) -> IndexSpec:
    """What a process opens to search: the recipe's tables at their present versions."""
    vectors = {model_identity(m): vectors_table(recipe, m) for m in recipe.embedders()}
    return index_spec(store, texts_table(recipe), passages_table(recipe), vectors)


def table_labels(recipe: Recipe) -> dict[str, str]:
    """What a source may lack (texts, passages, vectors of an embedder) -> the table that would have it. Equal
    labels mean the same in two recipes whose tables have other names."""
    vectors = {f"vectors {model_identity(m)}": vectors_table(recipe, m) for m in recipe.embedders()}
    return {"texts": texts_table(recipe), "passages": passages_table(recipe), **vectors}


def lacking(
    store: Store, recipe: Recipe, sources: Sequence[str], at: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """Source -> what it lacks of `table_labels`, for each of these that lacks anything: all that would be
    made of it where it has no text, and no vectors only where it has chunks. `at`: table -> version; for
    others the newest. A table that is not there lacks everything."""
    return lacking_tables(store, table_labels(recipe), sources, at)
