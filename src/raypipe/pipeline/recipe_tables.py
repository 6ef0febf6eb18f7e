"""The tables that a recipe searches: their names in a store, and which sources they lack.

Knows recipes and the store; reads, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from raypipe.core.digests import model_identity
from raypipe.core.protocols import Model
from raypipe.core.records import digest
from raypipe.pipeline.answer_sources import WORDS
from raypipe.pipeline.approximate import require_measured
from raypipe.recipes.recipe import Recipe
from raypipe.store import Store
from raypipe.store.coverage import lacking as lacking_tables
from raypipe.store.coverage import sources_without
from raypipe.store.ids import Ids
from raypipe.store.index import IndexSpec, Pinned, index_spec

INDEX_WORDS = "index.words_"  # what a step reads that searches by words, then the analyzer


def texts_table(recipe: Recipe) -> str:
    return f"texts-{recipe.texts_digest()}"


def passages_table(recipe: Recipe) -> str:
    return f"passages-{recipe.passages_digest()}"


def vectors_table(recipe: Recipe, model: Model) -> str:
    """The searched copy of one of its embedders' vectors."""
    return f"vectors-{recipe.vectors_digest(model)}"


def whole_corpus(recipe: Recipe) -> tuple[str, tuple[str, ...]]:
    """Names the work of filling texts, passages and vectors in one pass, and these tables in their order."""
    vectors = (vectors_table(recipe, model) for model in recipe.embedders())
    tables = (texts_table(recipe), passages_table(recipe), *vectors)
    return f"corpus-{digest(*tables)}", tables


def postings_tables(recipe: Recipe) -> dict[str, tuple[str, str]]:
    """Analyzer -> its tables of postings and of lengths, for each that a question step searches with."""
    known = [w for stage in recipe.question for w in stage.step.reads() if w.startswith(INDEX_WORDS)]
    names = sorted({w.removeprefix(INDEX_WORDS) for w in known})
    digests = {name: digest("postings", recipe.passages_digest(), name) for name in names}
    return {name: (f"postings-{d}", f"lengths-{d}") for name, d in digests.items()}


def searched(store: Store, recipe: Recipe) -> IndexSpec:
    """What a process opens to search: the recipe's tables at their present versions. Postings are among them
    where they have every source of the passages but dead letters; else the texts' words are searched. Raises
    ConfError and RecallTooLow for an approximate index that may not be searched (`require_measured`)."""
    spec = tables_now(store, recipe)
    require_measured(store, recipe, spec)
    return spec


def tables_now(store: Store, recipe: Recipe) -> IndexSpec:
    """The same, whatever approximate indexes there are."""
    vectors = {model_identity(m): vectors_table(recipe, m) for m in recipe.embedders()}
    words = {name: t for name, t in postings_tables(recipe).items() if all(map(store.has, t))}
    spec = index_spec(store, texts_table(recipe), passages_table(recipe), vectors, words)
    return replace(spec, words=tuple(w for w in spec.words if _whole(store, spec.passages, w[2])))


def _whole(store: Store, passages: Pinned, lengths: Pinned) -> bool:
    """Whether postings have every source of the passages, but those that failed for good."""
    opened = (store.dataset(t.table, t.version) for t in (passages, lengths))
    if not (left := sources_without(*opened)):
        return True
    lost = store.scan("faults", ["id"], filter=f"digest = '{lengths.table}' AND NOT transient")["id"]
    return set(left) <= set(lost.to_pylist())


def searched_at(uri: str, recipe: Recipe, tables: Mapping[str, int]) -> IndexSpec:
    """The same, of tables at the versions of a run or release. Raises KeyError for one that it has not;
    postings are there where a question searched the whole store."""

    def at(table: str) -> Pinned:
        return Pinned(table, tables[table])

    vectors = tuple(sorted((model_identity(m), at(vectors_table(recipe, m))) for m in recipe.embedders()))
    words = [(name, p, q) for name, (p, q) in postings_tables(recipe).items() if p in tables and q in tables]
    inverted = tuple((name, at(p), at(q)) for name, p, q in words)
    return IndexSpec(uri, at(texts_table(recipe)), at(passages_table(recipe)), vectors, inverted)


def table_names(store: Store, recipe: Recipe) -> list[str]:
    """The tables of its corpus half that the store has."""
    named = [texts_table(recipe), passages_table(recipe)]
    named += [vectors_table(recipe, m) for m in recipe.embedders()]
    named += [t for tables in postings_tables(recipe).values() for t in tables]
    return [t for t in named if store.has(t)]


def table_labels(recipe: Recipe) -> dict[str, str]:
    """What a source may lack (texts, passages, vectors of an embedder, words of an analyzer) -> the table
    that would have it. Equal labels mean the same in two recipes whose tables have other names."""
    vectors = {f"vectors {model_identity(m)}": vectors_table(recipe, m) for m in recipe.embedders()}
    words = {f"{WORDS}{name}": lengths for name, (_, lengths) in postings_tables(recipe).items()}
    return {"texts": texts_table(recipe), "passages": passages_table(recipe), **vectors, **words}


def lacking(store: Store, recipe: Recipe, sources: Ids, at: Mapping[str, int], whole: bool) -> dict[str, Ids]:
    """What of `table_labels` is lacking -> those of the sources that lack it: texts alone where a source has
    no text, and vectors only where it has chunks. `at`: table -> version; for others the newest. A table that
    is not there lacks everything, but `words NAME` is lacking only where its postings are there, and a
    question searches the whole store (`whole`): else they are not read."""

    def read(label: str, table: str) -> bool:
        return not label.startswith(WORDS) or (whole and store.has(table) and (not at or table in at))

    labels = {label: table for label, table in table_labels(recipe).items() if read(label, table)}
    return lacking_tables(store, labels, sources, at)
