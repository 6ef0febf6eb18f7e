"""All that the official CRAG baseline does before its language model, question by question: pages to text,
sentences, vectors, and the twenty that are nearest."""

from __future__ import annotations

import asyncio
import bz2
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from bench_data import questions_file
from bench_rows import BenchRow, Contest
from embedding import model
from machine import Machine

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.digests import model_identity
from raypipe.core.records import Citation, Question, Source, source_id
from raypipe.core.textfile import json_lines
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor
from raypipe.recipes.recipe import Recipe
from raypipe.store.index import MemoryIndex
from raypipe.text.page_parser import fold

QUESTIONS, BEST, CUT = 2, 20, 1000  # of the file; sentences that the prompt gets; characters of one, at most
CLOSE = 1e-6  # two cosines that may change places

Asked = tuple[str, list[str]]
"""A question and the HTML of its pages."""
Found = list[list[tuple[str, float]]]
"""For each question its best sentences and their cosines."""


def asked(quick: bool) -> list[Asked]:
    rows = json_lines(bz2.decompress(questions_file(quick)))[: 1 if quick else QUESTIONS]
    return [(r["query"], [p["page_result"] for p in r["search_results"] if p["page_result"]]) for r in rows]


class Published:
    """The steps as published: BeautifulSoup, blingfire, sentence-transformers, NumPy."""

    def __init__(self, path: str) -> None:
        from sentence_transformers import SentenceTransformer

        self._net = SentenceTransformer(path, device="cpu")

    def __call__(self, questions: list[Asked]) -> Found:
        return [self._best(*q) for q in questions]

    def _best(self, query: str, pages: list[str]) -> list[tuple[str, float]]:
        from blingfire import text_to_sentences_and_offsets
        from bs4 import BeautifulSoup

        found: dict[str, None] = {}
        for page in pages:
            text = BeautifulSoup(page, "lxml").get_text(" ", strip=True)
            offsets = text_to_sentences_and_offsets(text)[1] if text else []
            found.update(dict.fromkeys(text[a:b][:CUT] for a, b in offsets))
        sentences = list(found)
        vectors, [asked] = self._encoded(sentences), self._encoded([query])
        cosines = vectors @ asked
        return [(fold(sentences[i]), float(cosines[i])) for i in np.argsort(-cosines)[:BEST]]

    def _encoded(self, texts: list[str]) -> np.ndarray:
        vectors: np.ndarray = self._net.encode(
            texts, batch_size=32, normalize_embeddings=True, show_progress_bar=False
        )
        return vectors


class Ours:
    """The recipe `crag-baseline` up to the ranking, in memory."""

    def __init__(self, recipe: Recipe) -> None:
        ranking = [s for s in recipe.question if s.name in ("dense", "fuse")]
        self._recipe = replace(recipe, question=tuple(ranking))
        self._kit = LocalKit(None, "transformers", threads=1)
        self._corpus = CorpusExecutor(self._recipe, self._kit)

    async def __call__(self, questions: list[Asked]) -> Found:
        return [await self._best(*q) for q in questions]

    async def _best(self, query: str, pages: list[str]) -> list[tuple[str, float]]:
        sources = [Source(source_id("page", p), "page", p) for p in dict.fromkeys(pages)]
        cited = tuple(Citation("q", n, "", "", s.id, None, None) for n, s in enumerate(sources))
        made = await self._corpus(arrow.corpus_table(sources))
        index = MemoryIndex(
            made.texts,
            made.passages,
            {model_identity(m): made.vectors[m.name] for m in self._recipe.embedders()},
        )
        ask = QuestionExecutor(self._recipe, self._kit.with_index(index))
        [question] = await ask([Question("q", query, citations=cited)])
        texts = await index.texts(list(question.order))
        scores = {hit.chunk: hit.scores["dense"] for hit in question.hits}
        best = {t: scores[c] for c, t in reversed(list(zip(question.order, texts, strict=True)))}
        return sorted(best.items(), key=lambda found: -found[1])[:BEST]


def unequal(ours: Found, peer: Found) -> str:
    """What differs, but for neighbours whose cosines are equal to the last digits."""
    for n, (a, b) in enumerate(zip(ours, peer, strict=True)):
        at = dict(b)
        for i, (text, score) in enumerate(a):
            if text not in at or abs(at[text] - b[i][1]) > CLOSE or abs(score - at[text]) > CLOSE:
                return f"question {n}, place {i}: {text[:40]!r} is not the peer's {b[i][0][:40]!r}"
    return ""


@contextmanager
def contest(quick: bool, machine: Machine) -> Iterator[Contest]:
    import torch

    questions = asked(quick)
    conf = Conf((Path(__file__).parents[2] / "conf",))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ours, peer = Ours(load_recipe("crag-baseline", None, conf)), Published(model("all-MiniLM-L6-v2").path)
    with asyncio.Runner() as loop:
        try:
            yield Contest(len(questions), lambda: loop.run(ours(questions)), lambda: peer(questions), unequal)
        finally:
            torch.set_num_threads(threads)


ROW = BenchRow(
    "the official CRAG baseline up to its prompt: five pages of a question to 20 sentences, one thread",
    "questions",
    contest,
    "the steps as published",
    least=3.5,
    short="Of 4.2 s of CPU for two questions, 4.0 embed their sentences (`embed_sentences`).",
    needs=("bs4", "lxml", "blingfire", "sentence_transformers"),
)
