"""Documents of one's own: a folder with a store of its own, read and indexed when it is asked about."""

from __future__ import annotations

import sys
from pathlib import Path

from raypipe.api.data import ingest_documents
from raypipe.api.pipelines import in_process, open_pipeline
from raypipe.api.session import Place, Session, require_graphs
from raypipe.core.errors import ConfError
from raypipe.pipeline.driver import Pipeline
from raypipe.recipes.recipe import Recipe
from raypipe.store import Store
from raypipe.store.ids import Ids
from raypipe.store.sizes import sizes

HERE_CHARS = 3_000_000
"""Characters of new texts up to which they are indexed in this process: some two minutes of MiniLM on two
cores. Ray, which takes ten seconds to start, is worth it beyond."""


def open_docs(
    recipe: Recipe | str, docs: str | Path, store: Place = None, session: Session | None = None
) -> Store:
    """The store of a folder, with what changed in it read and indexed for the recipe.

    Files that are as they were are not read, texts that are indexed are not indexed again. Raises ConfError
    for a folder that is not there and a recipe that reads no documents, DataError where no file of it can be
    read, ModelMissing.
    """
    session = session or Session()
    if recipe == "live":
        raise ConfError("--docs: expected the name of a recipe, found live: a release has its own passages")
    found = require_graphs(session.recipe(recipe))
    path = Path(session.settings.place(str(docs), "--docs"))
    if not path.exists():
        raise ConfError(f"--docs: expected a folder of documents, or a file, found nothing at {path}")
    read = ingest_documents(path, store, session=session)
    if session.progress:
        for bad in read.bad:
            print(f"not read: {bad}", file=sys.stderr)
    opened = Store.open(read.store)
    require_documents_read(found, opened)
    with in_process(session, opened, found) as pipeline:
        if _new_chars(pipeline) <= HERE_CHARS:
            pipeline.index(None)
            return opened
    with open_pipeline(session, opened, found, answers=False) as pipeline:
        pipeline.index(None)
    return opened


def require_documents_read(recipe: Recipe, store: Store) -> None:
    """Raises ConfError where a store has files of a folder, and a recipe that reads no documents."""
    kinds = recipe.source_kinds()
    if "document" in kinds or not store.has("layouts"):
        return
    if count := store.count("sources", "kind = 'document'"):
        raise ConfError(
            f"recipe {recipe.name} parses sources of kind {', '.join(kinds)}, and {count} of {store.uri} are "
            "of kind document, such as PDF files: take another recipe, such as local, or add document to "
            "`kinds` of its `parse`"
        )


def _new_chars(pipeline: Pipeline) -> int:
    """Characters of the sources that some table lacks."""
    store, wanted = pipeline.store, pipeline.sources(None)
    vectors = [pipeline.vectors_table(model) for model in pipeline.recipe.embedders()]
    missing = wanted
    if all(store.has(table) for table in (pipeline.texts_table, pipeline.passages_table, *vectors)):
        builds = [pipeline.corpus.texts(wanted), pipeline.corpus.passages(wanted)]
        builds += [pipeline.corpus.vectors(model, wanted) for model in pipeline.recipe.embedders()]
        missing = Ids.of({id for build in builds for id in build.missing_ids()})
    return int(sizes(store, missing).clip(0).sum())
