"""The index of a folder of documents, which has a store of its own: brought up to date, and followed."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn, TypeAlias

from raypipe.api.data import documents_store, ingest_documents
from raypipe.api.pipelines import in_process, open_pipeline
from raypipe.api.served import require_unchanged
from raypipe.api.session import Place, Session, require_graphs
from raypipe.core.errors import ConfError, DataError, RaypipeError
from raypipe.evaluation.fault_budget import unread_rows
from raypipe.readers.documents import DOCUMENT_LIMITS, walk
from raypipe.recipes.recipe import Recipe
from raypipe.runs.pipeline.ingest_log import LOOKING_S, driving
from raypipe.runs.pipeline.recipe_tables import whole_corpus
from raypipe.store import Store
from raypipe.store.ids import Ids
from raypipe.store.sources import sizes

HERE_CHARS = 3_000_000
"""Characters of new texts up to which they are indexed in this process: some two minutes of MiniLM on two
cores. Ray, which takes ten seconds to start, is worth it beyond."""


def open_docs(
    recipe: Recipe | str,
    docs: str | Path,
    store: Place = None,
    session: Session | None = None,
    on_read: Callable[[], object] = lambda: None,
) -> Store:
    """Opens the store of a folder, then reads and indexes what changed.

    Unchanged files and indexed texts are skipped. `on_read` is called after reading: from then on removed
    files are not searched. Raises ConfError if the folder is missing or if the recipe reads no documents,
    DataError if no file can be read, and ModelMissing.
    """
    from raypipe.api.run import say_estimate  # with what runs know of this machine

    session = session or Session()
    if recipe == "live":
        raise ConfError("--docs: expected the name of a recipe, found live: a release has its own passages")
    session = session.over(store or documents_store(docs, session))
    found = require_graphs(session.recipe(recipe))
    read = ingest_documents(docs, store, session=session)
    opened = Store.open(read.store)
    on_read()
    if session.progress and read.bad:  # this read's are named, those of earlier ones counted
        counts, unread = read.summary.counts, len(unread_rows(opened))
        named = read.bad if counts["faults"] or counts["page_faults"] else ()
        lines = [f"not read: {bad}" for bad in named]
        if unread > len(named):
            listed = f"`raypipe inspect --faults --store {opened.uri}` lists them"
            lines.append(f"not read: {unread} in all; {listed}")
        print(*lines, sep="\n", file=sys.stderr)
    require_documents_read(found, opened)
    owner = f"index {found.name}"
    with in_process(session, opened, found) as pipeline, driving(opened, owner, LOOKING_S):
        missing = wanted = pipeline.sources(None)
        if all(map(opened.has, whole_corpus(found)[1])):
            builds = [pipeline.corpus.texts(wanted), pipeline.corpus.passages(wanted)]
            builds += [pipeline.corpus.vectors(model, wanted) for model in found.embedders()]
            missing = functools.reduce(Ids.joined, (Ids.of(build.missing_ids()) for build in builds))
        new = int(sizes(opened, missing).clip(0).sum())  # characters of the sources that some table lacks
        engine = new and any(m.loader == "vllm" for m in found.writers())  # which a job starts
        if new <= HERE_CHARS and not engine:
            if new:
                say_estimate(pipeline, session)
                require_unchanged(opened, found.embedders(), pipeline.worker.endpoints)
            pipeline.index(None)
            if new:
                pipeline.builder.compact()
            return opened
    with open_pipeline(session, opened, found, answers=False) as pipeline, driving(opened, owner, LOOKING_S):
        say_estimate(pipeline, session)
        pipeline.index(None)
        pipeline.builder.compact()  # a task has a hundred files, and each look at a table opens its parts
    return opened


LOOK_S, LOOKS = 1.0, 10
"""Seconds between two looks at a folder, at least; and how often as long as a look: looks take a tenth of one
core. Ten thousand files take .15 s."""


FileStates: TypeAlias = Mapping[str, object]
"""Name of a file -> size, time and inode, and whether it can be read."""


def file_states(docs: str | Path) -> FileStates:
    """Looks at the files of a folder; one that is not there has none."""
    root = Path(docs).absolute()
    found = walk(root, (), DOCUMENT_LIMITS) if root.exists() else ()
    return {f.name: (f.state, f.trouble is None) for f in found}


def follow(
    docs: str | Path, seen: FileStates, again: Callable[[], object], say: Callable[[str], None]
) -> NoReturn:
    """Calls `again` when the files of a folder are no longer as they were `seen`, until the process is
    interrupted. `say` gets what it raises; it is called again after all errors but those of the files."""
    said = ""
    while True:
        start = time.monotonic()
        now = file_states(docs)
        took = time.monotonic() - start
        try:
            if now != seen:
                again()
            seen, said = now, ""
        except RaypipeError as e:
            if said != (said := str(e)):
                say(said)
            seen = now if isinstance(e, DataError) else seen
        time.sleep(max(LOOK_S, LOOKS * took))


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
