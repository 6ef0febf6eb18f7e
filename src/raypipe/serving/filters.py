"""Filters: which sources a request may search, by host and by id, and the urls of a store's sources.

Knows the store's questions and their citations. A url is only compared, never opened.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from raypipe.core.records import Citation, Question
from raypipe.store import Store


@dataclass(frozen=True, slots=True)
class Filters:
    hosts: tuple[str, ...] = ()  # of a url that cites the source, or a parent domain of it
    sources: tuple[str, ...] = ()  # source ids

    def __bool__(self) -> bool:
        return bool(self.hosts or self.sources)


def narrow(question: Question, filters: Filters) -> Question:
    """The question with only the citations and sources that match. One about the whole store is unchanged."""
    if question.citations is None or not filters:
        return question
    cited = [c for c in question.citations if host_matches(c.url, filters.hosts)]
    if filters.sources:

        def kept(source: str | None) -> str | None:
            return source if source in filters.sources else None

        cited = [replace(c, page=kept(c.page), snippet=kept(c.snippet), name=kept(c.name)) for c in cited]
    return replace(question, citations=tuple(c for c in cited if c.sources()))


def host_matches(url: str, hosts: Collection[str]) -> bool:
    """True if the url's host is one of these or a subdomain of one, or if there are no hosts.

    >>> host_matches("https://en.example.org/a", ["example.org"])
    True
    >>> host_matches("https://anexample.org/", ["example.org"])
    False
    """
    if not hosts:
        return True
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:  # a page may cite anything
        return False
    return any(host == h or host.endswith(f".{h}") for h in hosts)


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
        for source in sorted(set(filters.sources) or urls):
            matching = (url for url in urls.get(source, ("",)) if host_matches(url, filters.hosts))
            if (url := next(matching, None)) is not None:
                found.append(Citation(question, len(found), url, "", source, None, None))
        return tuple(found)

    def _urls_by_source(self) -> dict[str, list[str]]:
        """Source id -> the urls that cite it, each once, by question id and rank."""
        with self._lock:
            if self._urls is None:
                found: dict[str, list[str]] = {}
                table = self._store.scan("questions", ["id", "citations"], self._version).sort_by("id")
                for cited in table["citations"].to_pylist():
                    for c in sorted(cited or (), key=lambda c: c["rank"]):
                        for source in (c["page"], c["snippet"], c["name"]):
                            if source is not None and c["url"] not in (urls := found.setdefault(source, [])):
                                urls.append(c["url"])
                self._urls = found
            return self._urls
