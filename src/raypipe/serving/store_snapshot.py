"""A store at one moment: the pinned tables that requests search, the questions stored then, and the urls that
these cite."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Collection, Mapping
from dataclasses import replace

from raypipe.core import arrow
from raypipe.core.records import CAPTURED_ID, Citation, Question
from raypipe.recipes.recipe import Recipe
from raypipe.runs.pipeline.recipe_tables import searched
from raypipe.runs.release import Release
from raypipe.serving.query import Filters, host_matches, narrow
from raypipe.store import Reading, Store
from raypipe.store.errors import reaching
from raypipe.store.ids import HEX, rows
from raypipe.store.index import LanceIndex

EXAMPLES = 5  # stored questions that the page offers
LOOKED_AT = 1000  # questions among which they are the first
_OF_DATA = f"id NOT LIKE '{CAPTURED_ID}%'"  # what users asked is shown to no one
log = logging.getLogger("raypipe.serving.store_snapshot")


class CitationCatalog:
    """The citations of all stored questions, read at the first use: seconds and 70 MB for CRAG's 135,000."""

    def __init__(self, store: Store, version: int) -> None:
        self._store, self._version = store, version
        self._lock = threading.Lock()
        self._urls: dict[str, list[str]] | None = None

    def urls(self, sources: Collection[str]) -> dict[str, str]:
        """The url of each source that a question cites: the first of several."""
        urls = self._urls_by_source()
        return {s: urls[s][0] for s in sources if s in urls}

    def citations(self, question: str, filters: Filters) -> tuple[Citation, ...]:
        """Citations for a question about the whole store: one for each matching source, by source id."""
        urls, found = self._urls_by_source(), list[Citation]()
        for source in sorted(filter(HEX.fullmatch, set(filters.sources) or urls)):
            matching = (url for url in urls.get(source, ("",)) if host_matches(url, filters.hosts))
            if (url := next(matching, None)) is not None:
                found.append(Citation(question, len(found), url, "", source, None, None))
        return tuple(found)

    def _urls_by_source(self) -> dict[str, list[str]]:
        """Source id -> the urls that cite it, each once, by question id and rank."""
        with self._lock:
            if self._urls is None:
                found: dict[str, dict[str, None]] = {}  # one error page can have thousands of addresses
                table = self._store.scan("questions", ["id", "citations"], self._version).sort_by("id")
                for cited in arrow.with_id_texts(table["citations"].to_pylist()):
                    for c in sorted(cited or (), key=lambda c: c["rank"]):
                        for source in (c["page"], c["snippet"], c["name"]):
                            if source is not None:
                                found.setdefault(source, {})[c["url"]] = None
                self._urls = {source: list(urls) for source, urls in found.items()}
            return self._urls


class StoreSnapshot:
    """A store at one moment: the index over its tables, and the questions stored in it.

    A question that is ingested again with other pages cites what these tables do not have, so the questions
    are pinned with them. Tags protect the tables of a release. Other tables are protected by a read lease for
    as long as this object lives; on a store that this process may not write there is none.
    """

    def __init__(self, recipe: Recipe, uri: str, release: Release | None) -> None:
        self._store = Store.open(uri)
        self.spec = release.opened(self._store)[1] if release else searched(self._store, recipe)
        version = release.tables["questions"] if release else self._store.version("questions")
        if release is None:
            self._lease(f"questions to {recipe.name}", {"questions": version})
        self.index = LanceIndex(self.spec)
        self._questions = self._store.dataset("questions", version)
        self._catalog = CitationCatalog(self._store, version)

    def _lease(self, owner: str, reads: Mapping[str, int]) -> None:
        """Leases the tables before they are opened: one that was dropped earlier is then found missing.
        `reads`: table -> version, of those that are not searched."""
        searched = {p.table: p.version for p in self.spec.pinned()}
        lease = Reading(self._store.files, owner, {**searched, **reads})
        try:
            lease.begin()
        except OSError as e:
            log.warning("no read lease at %s, the store cannot be written: %s", self._store.uri, e)
        else:
            weakref.finalize(self, lease.end)

    def resolve(self, question: Question, filters: Filters, key_filter: Filters) -> Question:
        """The stored question with this id or text, which has citations of its own; else the question itself,
        about the whole store. A given time overrides the stored one.

        With a key's filter the stored question counts where the filter lets some of its citations through.
        """
        asked = question
        for column in ("id", "text"):
            named = arrow.question.records(rows(self._questions, column, [question.text]))
            # What one user asked over pages of their own is not what another's question is answered from, and
            # a text of one conversation means something else in another.
            found = [q for q in named if not q.id.startswith(CAPTURED_ID)]
            found = [q for q in found if column == "id" or q.turns in ((), question.turns)]
            if found:
                first = min(found, key=lambda q: (q.turns != question.turns, q.id))
                asked_at, turns = question.asked_at or first.asked_at, question.turns or first.turns
                question = replace(first, asked_at=asked_at, due=question.due, turns=turns)
                break
        if key_filter and not (question.citations is not None and narrow(question, key_filter).citations):
            question = replace(asked, citations=self._catalog.citations(asked.id, key_filter))
        if question.citations is None and filters:
            question = replace(question, citations=self._catalog.citations(question.id, filters))
        return narrow(narrow(question, key_filter), filters)

    def urls(self, sources: set[str]) -> dict[str, str]:
        return self._catalog.urls(sources)

    def require_store(self) -> None:
        """Raises StoreError, or Unavailable, unless the store is still there."""
        Store.open(self._store.uri)

    def examples(self) -> list[str]:
        with reaching(self._store.uri):
            first = self._questions.to_table(["id"], filter=_OF_DATA, limit=LOOKED_AT)
        ids = sorted(first["id"].to_pylist())[:EXAMPLES]
        found = {q.id: q for q in arrow.question.records(rows(self._questions, "id", ids))}
        return [found[id].text for id in ids if not found[id].turns]

    def row_counts(self) -> dict[str, int]:
        pinned = {"texts": self.spec.texts, "passages": self.spec.passages}
        pinned |= {f"vectors:{identity}": p for identity, p in self.spec.vectors}
        return {name: self._store.count(p.table, version=p.version) for name, p in pinned.items()}
