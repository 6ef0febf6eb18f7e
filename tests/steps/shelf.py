"""An index of a few texts, written by hand: everything is computed on the spot from the texts themselves."""

import asyncio
from collections.abc import Sequence

import numpy as np

from raypipe.core.index import PassageWords, VectorHit
from raypipe.core.protocols import Model
from raypipe.core.records import Block, Citation, Layout, Question, Span, chunk_id, parse_chunk_id
from raypipe.models.fake import HashEmbedder
from raypipe.models.kit import LocalKit
from raypipe.text.words import analyse

HASH = Model("hash", "embedder", "hash", "", "", "", "hash@1", dim=64)
OVERLAP = Model("overlap", "reranker", "overlap", "", "", "", "overlap@1")


def whole(text: str) -> list[tuple[Span, Span]]:
    """One chunk, which is its own passage."""
    return [((0, len(text)), (0, len(text)))]


class Shelf:
    """texts by source id; chunks as (chunk span, passage span) by source id, one for the whole text if not
    given."""

    def __init__(
        self, texts: dict[str, str], chunks: dict[str, list[tuple[Span, Span]]] | None = None
    ) -> None:
        self.of = texts
        self.chunks = {s: (chunks or {}).get(s, whole(t)) for s, t in texts.items()}
        self.hides: dict[str, tuple[Span, ...]] = {}  # by source id
        self.files: dict[str, Layout] = {}  # by source id
        self.parts: dict[str, tuple[Block, ...]] = {}  # by source id
        self.asked_words = 0

    def _scope(self, scope: tuple[str, ...] | None) -> list[str]:
        return sorted(self.of) if scope is None else [s for s in scope if s in self.of]

    async def search(self, model, vectors, scopes, top) -> list[list[VectorHit]]:
        out = []
        for vector, scope in zip(vectors, scopes, strict=True):
            rows = [(s, span, passage) for s in self._scope(scope) for span, passage in self.chunks[s]]
            known = HashEmbedder(model.dim).embed(
                [self.of[s][slice(*span)] for s, span, _ in rows], "passage"
            )
            found = [VectorHit(*row, float(v @ vector)) for row, v in zip(rows, known, strict=True)]
            out.append(sorted(found, key=lambda f: (-f.score, f.source, f.span))[:top])
        return out

    async def texts(self, chunks: Sequence[str]) -> list[str]:
        return [self.of[s][slice(*span)] for s, span in map(parse_chunk_id, chunks)]

    async def source_texts(self, sources: Sequence[str]) -> list[str | None]:
        return [self.of.get(s) for s in sources]

    async def hidden(self, sources: Sequence[str]) -> list[tuple[Span, ...]]:
        return [self.hides.get(s, ()) for s in sources]

    async def blocks(self, sources: Sequence[str]) -> list[tuple[Block, ...]]:
        return [self.parts.get(s, ()) for s in sources]

    async def layouts(self, sources: Sequence[str]) -> list[Layout | None]:
        return [self.files.get(s) for s in sources]

    async def words(self, analyzer: str, scope: tuple[str, ...] | None) -> PassageWords:
        self.asked_words += 1
        passages = [(s, p) for s in self._scope(scope) for p in dict.fromkeys(p for _, p in self.chunks[s])]
        hashes = [analyse(self.of[s][slice(*p)], analyzer)[0] for s, p in passages]
        offsets = np.cumsum([0, *(len(h) for h in hashes)]).astype(np.int64)
        flat = np.concatenate([np.zeros(0, np.uint64), *hashes])
        return PassageWords(tuple(chunk_id(s, p) for s, p in passages), offsets, flat)

    async def postings(self, analyzer: str, words: np.ndarray) -> None:
        return None


def question(text: str, *sources: str, name: str = "q", **fields) -> Question:
    """A question that cites each source as a page of its own; the whole shelf where none is given."""
    cited = tuple(Citation(name, i, f"https://{s}.example", "", s, None, None) for i, s in enumerate(sources))
    return Question(name, text, citations=cited or None, **fields)


def asked(step, shelf: Shelf, *questions: Question) -> list[Question]:
    """The questions through one step, as one batch."""
    return asyncio.run(step.open(LocalKit(shelf))(list(questions)))


def chunk(shelf: Shelf, source: str) -> str:
    """The id of a source's first passage."""
    return chunk_id(source, shelf.chunks[source][0][1])


def holds_laws(step, shelf: Shelf, questions: list[Question]) -> list[Question]:
    """The step's output, after checking that rows come back in order and batches do not matter."""
    together = asked(step, shelf, *questions)
    assert [q.id for q in together] == [q.id for q in questions]
    assert asked(step, shelf) == []
    for cut in range(1, len(questions)):
        assert asked(step, shelf, *questions[:cut]) + asked(step, shelf, *questions[cut:]) == together
    return together
