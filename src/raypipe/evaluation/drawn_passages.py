"""Passages drawn from a store's documents: what questions are made from. Knows the store; asks no model.

Passages are sentences, up to PASSAGE_CHARS together, of the text that `parse` gives of a source; their spans
are those of that text. The draw follows from the seed and from the documents alone, so a second one is equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from raypipe.core import arrow
from raypipe.core.records import Span, digest
from raypipe.store import Store
from raypipe.text.bm25 import DEFAULTS, Bm25Corpus, scores
from raypipe.text.html import ParsedPage, fold, storable
from raypipe.text.page_parser import ParseJob, ParseRefused, SandboxedParser
from raypipe.text.windows import sentences
from raypipe.text.words import analyse

PASSAGE_CHARS, LEAST_CHARS = 900, 200
MOST_DOCUMENTS = 2000  # that are read for a draw: some 40 MB of text
MOST_PASSAGES = 6000  # among which others like one are looked for
MOST_OF_ONE = 50  # passages of one document
LETTERS = 0.6  # share of a passage's characters that are letters, at least: no tables, no menus
KINDS = ("page", "document")  # of sources that are drawn from


@dataclass(frozen=True, slots=True)
class DrawnPassage:
    """A passage of a document."""

    source: str  # source id
    span: Span  # in the source's parsed text
    text: str
    document: str  # id or url of the document; may be ""
    title: str  # may be ""


@dataclass(frozen=True, slots=True)
class Draw:
    """Passages in the order in which they are drawn: one of each document, then a second one of each, ..."""

    passages: tuple[DrawnPassage, ...]
    documents: int  # with a passage
    unreadable: int  # documents that could not be parsed, or have no passage
    corpus: Bm25Corpus = field(repr=False)  # words of the passages

    def like(self, text: str, without: str | None, top: int) -> list[DrawnPassage]:
        """The passages that share most words with a text (BM25), best first; none of the source `without`."""
        query, _ = analyse(text, "stems")
        k1, b = DEFAULTS["lucene"]
        found, values = scores(self.corpus, np.unique(query), "lucene", k1, b)
        ranked = sorted(zip(found.tolist(), values.tolist(), strict=True), key=lambda f: (-f[1], f[0]))
        others = (self.passages[i] for i, _ in ranked if self.passages[i].source != without)
        return [p for p, _ in zip(others, range(top), strict=False)]


def draw(store: Store, seed: int) -> Draw:
    """Draws from all documents of a store, the first MOST_DOCUMENTS in the order that the seed gives."""
    kinds = store.scan("sources", ["id", "kind"]).to_pylist()
    names, rounds, unreadable = _names(store), dict[str, list[DrawnPassage]](), 0
    found = [r["id"] for r in kinds if r["kind"] in KINDS and r["id"] in names]
    ids = sorted(found, key=lambda id: digest(str(seed), id))[:MOST_DOCUMENTS]
    for source, page in _texts(store, ids):
        cut = [] if page is None else _passages(source, page, names[source])
        unreadable += not cut
        rounds[source] = sorted(cut, key=lambda p: digest(str(seed), p.source, str(p.span)))[:MOST_OF_ONE]
    deepest = max(map(len, rounds.values()), default=0)
    order = [cut[n] for n in range(deepest) for cut in rounds.values() if n < len(cut)]
    kept = tuple(order[:MOST_PASSAGES])
    words = [analyse(p.text, "stems")[0] for p in kept]
    corpus = Bm25Corpus(np.cumsum([0, *map(len, words)]), np.concatenate([np.empty(0, np.uint64), *words]))
    return Draw(kept, len(ids) - unreadable, unreadable, corpus)


def _texts(store: Store, ids: Sequence[str], at_once: int = 50) -> Iterator[tuple[str, ParsedPage | None]]:
    """Source id -> its text as `parse` gives it; None where it has none."""
    with SandboxedParser() as parser:
        for start in range(0, len(ids), at_once):
            some = ids[start : start + at_once]
            found = {s.id: s for s in arrow.source.records(store.rows("sources", "id", some))}
            for id in some:
                if found[id].kind != "page":
                    yield id, ParsedPage(fold(found[id].content), (), "plain")
                    continue
                [page] = parser.run([ParseJob(storable(found[id].content).encode())])
                yield id, None if isinstance(page, ParseRefused) else page


def _passages(source: str, page: ParsedPage, name: tuple[str, str]) -> list[DrawnPassage]:
    """The passages of a text, one after the other, without those that are no prose, and without those in
    which the page carries something that it does not show."""
    text, out, spans = page.text, list[DrawnPassage](), sentences(page.text)
    while spans:
        n = 1
        while n < len(spans) and spans[n][1] - spans[0][0] <= PASSAGE_CHARS:
            n += 1
        span, spans = (spans[0][0], spans[n - 1][1]), spans[n:]
        said = text[span[0] : span[1]]
        prose = sum(c.isalpha() for c in said) >= LETTERS * len(said)
        shown = not any(a < span[1] and b > span[0] for a, b in page.hidden)
        if LEAST_CHARS <= len(said) <= 2 * PASSAGE_CHARS and prose and shown and n > 1:
            out.append(DrawnPassage(source, span, said, *name))
    return out


def _names(store: Store) -> Mapping[str, tuple[str, str]]:
    """Source id -> the id or url of its document, and its title; of all documents and cited pages."""
    found: dict[str, tuple[str, str]] = {}
    for row in store.scan("documents").to_pylist():
        found.setdefault(row["source"], (row["id"], row["title"]))
    for batch in store.batches("questions", ["citations"]):
        for cited in batch["citations"].to_pylist():
            for c in cited or ():
                if c["page"] is not None:
                    found.setdefault(c["page"], (c["url"], ""))
    return found
