"""What may be searched: where each source of a store came from, and which of them a request wants.

Knows the store's questions and their citations. A url is only compared, never opened.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from raypipe.core.records import Citation, Question
from raypipe.store import Store


@dataclass(frozen=True, slots=True)
class Filters:
    """Which sources may be searched. A source must fit every filter that is given; none: every source
    fits."""

    hosts: tuple[str, ...] = ()  # a source was cited from one of these, or from a name below it
    sources: tuple[str, ...] = ()  # source ids

    def __bool__(self) -> bool:
        return bool(self.hosts or self.sources)


def narrowed(question: Question, filters: Filters) -> Question:
    """The question with the citations, and of them the sources, that fit. One without citations of its own,
    about a whole store, stays as it is."""
    if question.citations is None or not filters:
        return question
    cited = tuple(_narrowed(c, filters) for c in question.citations if within(c.url, filters.hosts))
    return replace(question, citations=tuple(c for c in cited if c.sources()))


def _narrowed(citation: Citation, filters: Filters) -> Citation:
    if not filters.sources:
        return citation
    page, snippet, name = (
        s if s in filters.sources else None for s in (citation.page, citation.snippet, citation.name)
    )
    return replace(citation, page=page, snippet=snippet, name=name)


def within(url: str, hosts: Collection[str]) -> bool:
    """True if the url's host is one of these or below one; with no hosts every url fits.

    >>> within("https://en.example.org/a", ["example.org"]), within("https://anexample.org/", ["example.org"])
    (True, False)
    """
    if not hosts:
        return True
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:  # a page may cite anything
        return False
    return any(host == h or host.endswith(f".{h}") for h in hosts)


class Catalogue:
    """The citations of every stored question, read when they are first needed: some seconds and 70 MB for
    CRAG's 135,000."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reading = threading.Lock()
        self._urls: dict[str, list[str]] | None = None

    def urls(self, sources: Collection[str]) -> dict[str, str]:
        """The url of each source that some question cites; of several, the first's."""
        known = self._known()
        return {s: known[s][0] for s in sources if s in known}

    def citations(self, question: str, filters: Filters) -> tuple[Citation, ...]:
        """Citations of a question about the whole store: one for each source that fits, by source id."""
        return tuple(
            Citation(question, i, u, "", s, None, None) for i, (s, u) in enumerate(self._fit(filters))
        )

    def _fit(self, filters: Filters) -> Iterator[tuple[str, str]]:
        known = self._known()
        for source in sorted(set(filters.sources) or known):
            fit = (url for url in known.get(source, ("",)) if within(url, filters.hosts))
            if (url := next(fit, None)) is not None:
                yield source, url

    def _known(self) -> dict[str, list[str]]:
        """Source id -> the urls that it was cited from, each once, by question id and rank."""
        with self._reading:
            if self._urls is None:
                found: dict[str, list[str]] = {}
                table = self._store.dataset("questions").to_table(columns=["id", "citations"]).sort_by("id")
                for cited in table["citations"].to_pylist():
                    for c in sorted(cited or (), key=lambda c: c["rank"]):
                        for source in (c["page"], c["snippet"], c["name"]):
                            if source is not None and c["url"] not in (urls := found.setdefault(source, [])):
                                urls.append(c["url"])
                self._urls = found
            return self._urls
