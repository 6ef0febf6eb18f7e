"""Index of a folder of documents: `open_docs` updates it, and `follow` waits for changes of the folder."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeAlias

from raypipe.api.data import documents_folder, documents_store, ingest_documents
from raypipe.api.pipelines import in_process, open_pipeline
from raypipe.api.served_models import require_unchanged
from raypipe.api.session import Place, Session, require_graphs
from raypipe.core.errors import ConfError, DataError, RaypipeError
from raypipe.evaluation.fault_budget import unread_rows
from raypipe.readers.documents import DOCUMENT_LIMITS, walk
from raypipe.recipes.recipe import Recipe
from raypipe.runs.pipeline.ingest_folder import FileState, folder_id, states_of, withdrawn
from raypipe.runs.pipeline.ingest_log import LOOKING_S, driving
from raypipe.runs.pipeline.recipe_tables import whole_corpus
from raypipe.store import Store
from raypipe.store.ids import Ids
from raypipe.store.sources import sizes

HERE_CHARS = 3_000_000
"""Most characters of new texts that this process indexes itself: some two minutes of MiniLM on two cores. For
more texts Ray is started, which takes ten seconds."""


def open_docs(
    recipe: Recipe | str,
    docs: str | Path,
    store: Place = None,
    session: Session | None = None,
    on_read: Callable[[Store], object] = lambda store: None,
) -> Store:
    """Reads and indexes the changed files of a folder, and returns the folder's store.

    Unchanged files and indexed texts are skipped. Texts beyond HERE_CHARS, or for a step with vLLM, are
    indexed on Ray. `on_read` is called with the store after reading and before indexing. The tables then hold
    neither removed files nor the old texts of changed files. Raises ConfError if the folder is missing or if
    the recipe reads no documents, DataError if no file can be read, and ModelMissing.
    """
    from raypipe.api.run import say_estimate  # imported late: it reads the records of runs on this machine

    session = session or Session()
    if recipe == "live":
        raise ConfError("--docs: expected the name of a recipe, found live: a release has its own passages")
    session = session.over(store or documents_store(docs, session))
    found = require_graphs(session.recipe(recipe))
    read = ingest_documents(docs, store, session=session)
    opened = Store.open(read.store)
    on_read(opened)
    if session.progress and read.bad:  # unread files of this read are named, earlier ones counted
        counts, unread = read.summary.counts, len(unread_rows(opened))
        named = read.bad if counts["faults"] or counts["page_faults"] else ()
        lines = [f"not read: {bad}" for bad in named]
        if unread > len(named):
            list_them = f"raypipe inspect --faults --store {opened.uri}"
            lines.append(f"not read: {unread} in all; `{list_them}` lists them")
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
        engine = new and any(m.loader == "vllm" for m in found.writers())  # only a Ray job starts engines
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
        pipeline.builder.compact()  # a task covers a hundred files, and each read of a table opens all parts
    return opened


@dataclass(slots=True)
class ServedDocs:
    """A folder whose documents an endpoint searches, as they were when it last opened the tables."""

    recipe: str
    docs: str
    store: str | None
    session: Session
    searched: Mapping[str, FileState] = field(default_factory=dict)  # file -> state in these tables

    def open(self) -> str:
        """Reads and indexes the folder, and returns the URI of its store. Raises as `open_docs`."""
        opened = open_docs(self.recipe, self.docs, self.store, self.session)
        self.searched = self._states(opened)
        return opened.uri

    def read_again(self, reopen: Callable[[], object]) -> None:
        """Reads and indexes changed files, then calls `reopen`: the endpoint then searches the newest tables.

        Until then it searches the old texts of changed files. `reopen` is also called before indexing if
        documents are gone or have other fields, and before a DataError is raised. Raises as `open_docs`."""

        def swap(opened: Store, at_once: Callable[..., bool] = withdrawn) -> None:
            if at_once(self.searched, now := self._states(opened)):
                reopen()
                self.searched = now

        try:
            opened = open_docs(self.recipe, self.docs, self.store, self.session, swap)
        except DataError:  # a folder without documents empties its store
            reopen()
            raise
        swap(opened, lambda *states: True)

    def _states(self, opened: Store) -> Mapping[str, FileState]:
        return states_of(opened, folder_id(documents_folder(self.docs, self.session)))


LOOK_S, LOOKS = 1.0, 10
"""Pause between two looks at a folder: at least LOOK_S seconds, and at least LOOKS times as long as the last
look took, so that looks use a tenth of one core. A look at ten thousand files takes .15 s."""

FileStates: TypeAlias = Mapping[str, object]  # file name -> (size, time and inode; True if it can be read)


def file_states(docs: str | Path) -> FileStates:
    """Maps each file of a folder to its size, time, inode and readability; {} if the folder is missing."""
    root = Path(docs).absolute()
    found = walk(root, (), DOCUMENT_LIMITS) if root.exists() else ()
    return {f.name: (f.state, f.trouble is None) for f in found}


def follow(
    docs: str | Path, seen: FileStates, again: Callable[[], object], say: Callable[[str], None]
) -> NoReturn:
    """Calls `again` after each change of a folder's files, until the process is interrupted.

    `seen` is the state of the files when they were last read. `say` receives an error of `again`, unless it
    is the same as the last one. After a DataError, `again` is called at the next change of the files; after
    another error, it is called at the next look, a second or more later."""
    message = ""
    while True:
        start = time.monotonic()
        states = file_states(docs)
        took = time.monotonic() - start
        try:
            if states != seen:
                again()
            seen, message = states, ""
        except RaypipeError as e:
            if message != (message := str(e)):
                say(message)
            seen = states if isinstance(e, DataError) else seen
        time.sleep(max(LOOK_S, LOOKS * took))


def require_documents_read(recipe: Recipe, store: Store) -> None:
    """Raises ConfError if a store has documents of a folder, and the recipe does not parse documents."""
    kinds = recipe.source_kinds()
    if "document" in kinds or not store.has("layouts"):
        return
    if count := store.count("sources", "kind = 'document'"):
        parsed = f"recipe {recipe.name} parses kinds {', '.join(kinds)}"
        rest = f"{count} of {store.uri} are of kind document"
        raise ConfError(f"{parsed}, and {rest}: take another, such as local, or add document to its `parse`")
