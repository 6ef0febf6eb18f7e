"""A store at one moment: pinned tables that requests search, and the stored questions with their urls."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from raypipe.core import arrow
from raypipe.core.arrow import id_texts
from raypipe.core.records import CAPTURED_ID, Question
from raypipe.recipes.recipe import Recipe
from raypipe.runs.pipeline.recipe_tables import searched
from raypipe.runs.release import Release
from raypipe.store import Reading, Store
from raypipe.store.errors import reaching
from raypipe.store.fields import SourceFields
from raypipe.store.ids import rows
from raypipe.store.index import LanceIndex
from raypipe.text.filters import ConditionError, Filters

EXAMPLES = 5  # most stored questions that the web page offers
LOOKED_AT = 1000  # stored questions that are read; the examples are the first of them by id
_OF_DATA = f"id NOT LIKE '{CAPTURED_ID}%'"  # excludes captured questions: no user sees another's
_NO_QUESTION = "0" * 16  # id and text that no stored question has
log = logging.getLogger("raypipe.serving.store_snapshot")


class StoreSnapshot:
    """A store at one moment: the index over its tables, and its stored questions.

    The questions are pinned with the tables, because a question that is later ingested with other pages would
    cite sources that these tables lack. Tags protect a release's tables from deletion. A read lease protects
    other tables while this object lives, unless this process cannot write to the store.
    """

    def __init__(self, recipe: Recipe, uri: str, release: Release | None) -> None:
        self._store = Store.open(uri)
        self.spec = release.opened(self._store)[1] if release else searched(self._store, recipe)
        version = release.tables["questions"] if release else self._store.version("questions")
        if release is None:
            self._lease(f"questions to {recipe.name}", {"questions": version})
        self.index = LanceIndex(self.spec)
        self._questions = self._store.dataset("questions", version)

    def _lease(self, owner: str, reads: Mapping[str, int]) -> None:
        """Takes a read lease, which protects the searched tables and `reads` (table -> version) from
        deletion. It is taken before the tables are opened, because an open table could otherwise be dropped.
        Only warns if the store cannot be written."""
        searched = {p.table: p.version for p in self.spec.pinned()}
        lease = Reading(self._store.files, owner, {**searched, **reads})
        try:
            lease.begin()
        except OSError as e:
            log.warning("no read lease at %s, the store cannot be written: %s", self._store.uri, e)
        else:
            weakref.finalize(self, lease.end)

    def resolve(self, question: Question, filters: Filters, key_filter: Filters) -> Question:
        """Replaces a question by the stored one with this id or text, if any, and applies the filters.

        The given time and turns override the stored ones. Captured questions of users are never used. A
        question that is not stored is about the whole store. The request's `filters` drop citations of a
        stored question. In a question about the whole store, hosts and ids become citations of the matching
        sources, and the condition becomes `where`. `key_filter` is the part of the store that the key may
        search. It hides a stored question if none of its citations is in this part, and hides all other
        sources from `filters`. Raises ConditionError if the request's condition does not fit the fields."""
        asked = question
        for column in ("id", "text"):
            named = arrow.question.records(rows(self._questions, column, [question.text]))
            # A user's question over their own pages must not answer another user's question, and the same
            # text means different things in different conversations.
            stored = [q for q in named if not q.id.startswith(CAPTURED_ID)]
            stored = [q for q in stored if column == "id" or q.turns in ((), question.turns)]
            if stored:
                first = min(stored, key=lambda q: (q.turns != question.turns, q.id))
                asked_at, turns = question.asked_at or first.asked_at, question.turns or first.turns
                question = replace(first, asked_at=asked_at, due=question.due, turns=turns)
                break
        if not (key_filter or filters):
            return question
        places = self.index.fields()
        if key_filter:
            try:
                places.check(key_filter.where)
                visible = places.within(key_filter)
                own = places.narrowed(question.citations or (), key_filter)
            except ConditionError as e:
                log.error("a key's filter matches nothing: %s", e)
                visible, own = places.none(), ()
            places, whole = visible, replace(asked, citations=visible.citations(asked.id))
            # Stored turns may quote what the filter hides.
            question = replace(question, citations=own, turns=asked.turns) if own else whole
        places.check(filters.where)
        if question.citations is not None:
            return replace(question, citations=places.narrowed(question.citations, filters))
        if not question.where:  # else the stored question's condition and the request's must both hold
            question, filters = replace(question, where=filters.where), replace(filters, where="")
        cited = places.within(filters).citations(question.id) if filters else None
        return replace(question, citations=cited)

    def searched(
        self, filters: Filters, key_filter: Filters, offset: int, limit: int
    ) -> tuple[int, dict[str, str]]:
        """Counts the sources that a question about the whole store searches. Lists `limit` of them from
        `offset` on, as source -> a url that cites the source and passes the filters; "" if there is none."""
        question = self.resolve(Question(_NO_QUESTION, _NO_QUESTION), filters, key_filter)
        places = self.index.fields()
        if question.where:  # the condition of a question about the whole store
            cited = places.within(Filters(where=question.where)).citations(question.id)
            question = replace(question, citations=cited)
        texts, version = self.spec.texts.table, self.spec.texts.version
        if question.citations is not None:
            urls = {source: c.url for c in question.citations for source in c.sources()}
            read = rows(self._store.dataset(texts, version), "source", list(urls), ["source"])
            some = sorted(id_texts(read["source"]))
            return len(some), {source: urls[source] for source in some[offset:][:limit]}
        some = id_texts(self._store.scan(texts, ["source"], version, offset=offset, limit=limit)["source"])
        urls = places.urls(some)
        return self._store.count(texts, version=version), {source: urls.get(source, "") for source in some}

    def urls(self, sources: set[str]) -> dict[str, str]:
        """Maps each source to the first url by which a stored question cites it. Sources without such a url
        are left out."""
        return self._cited.urls(sorted(sources))

    @cached_property
    def _cited(self) -> SourceFields:
        return SourceFields.cited(self._questions)

    def require_store(self) -> None:
        """Raises StoreError or Unavailable if the store no longer exists or cannot be reached."""
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
