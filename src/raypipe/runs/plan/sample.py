"""Sample of the sources, parsed and split by the recipe's own steps, to estimate the rest.

An upper bound on chunks is far too high for most texts. So a plan parses and splits a sample of the sources,
or all of them if they are few. Plans of the same sources choose the same sample. No model is called and
nothing is stored. A simple tokenizer replaces a missing one, and the counts are then only estimates.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from raypipe.core import arrow
from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.protocols import CorpusStep, Kit, Model, Tokenize
from raypipe.core.records import Source, Span
from raypipe.recipes.executor import CorpusExecutor, StageError, fine, with_texts
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import table_of
from raypipe.store.memo.lookup import CacheOnlyKit
from raypipe.text.words import sentences

SOURCES, CHARS = 1000, 12_000_000
"""Largest sample: number of sources, and characters of all its sources together, as many as 36 real pages."""


class Sampler:
    """Sample of a stream of sources: those with the smallest ids, so the same each time."""

    def __init__(self) -> None:
        self.kept: dict[str, Source] = {}
        self._chars, self._beyond = 0, ""  # the smallest id outside the sample; "": all are inside

    def add(self, source: Source) -> None:
        if source.id in self.kept or (self._beyond and source.id > self._beyond):
            return
        self.kept[source.id] = source
        self._chars += len(source.content)
        while len(self.kept) > SOURCES or self._chars > CHARS:
            self._beyond = max(self.kept)
            self._chars -= len(self.kept.pop(self._beyond).content)


def _words(text: str) -> Sequence[Span]:
    """Splits a text in place of a tokenizer: a token is up to five characters of a word, or a mark."""
    return [m.span() for m in re.finditer(r"\w{1,5}|[^\w\s]", text)]


class _SampleKit(CacheOnlyKit):
    """A kit without models, where `_words` replaces a missing tokenizer."""

    def __init__(self, kit: Kit) -> None:
        super().__init__(kit)
        self.stood_in = False

    def tokenizer(self, model: Model) -> Tokenize:
        try:
            return super().tokenizer(model)
        except (ConfError, ModelMissing):
            self.stood_in = True
            return _words


@dataclass(frozen=True, slots=True)
class Sample:
    """Chunks of the sampled sources, and their counts."""

    chunks: pa.Table  # chunks of sources without a fault: arrow.SPANS, chunk_text, fault
    each: Mapping[str, int]  # source without a fault -> number of its chunks
    chars: np.ndarray  # (sources of `each`,) characters
    passages: int  # distinct passages; several chunks may share one
    sentences: int  # sentences in these passages
    exact: bool  # True: each run makes the same chunks; False: a tokenizer was replaced

    @property
    def known(self) -> bool:
        """True if there is a chunk; without any, nothing can be estimated."""
        return bool(self.chunks.num_rows)

    def expected(self, chars: np.ndarray) -> np.ndarray:
        """Estimates the chunks of each source: (sources,). `chars`: (sources,) characters. Uses the chunks
        per character of sampled sources between the same powers of 2: pages are not split like snippets. Uses
        all sampled sources if none is of similar length."""
        size, chunks = np.frexp(self.chars)[1], np.fromiter(self.each.values(), float)
        total, found = np.bincount(size, self.chars, 64), np.bincount(size, chunks, 64)
        per_char = np.where(total > 0, found / np.maximum(total, 1), found.sum() / max(1, total.sum()))
        return np.asarray(per_char[np.frexp(chars)[1]] * chars)


NONE = Sample(pa.table({"source": arrow.id_column([])}), {}, np.zeros(0), 0, 0, False)


def look(recipe: Recipe, kit: Kit, sources: Sequence[Source]) -> Sample:
    """Parses and splits sources, in this process and a parser's child process. Returns NONE, an empty sample,
    without sources or passages, or if a step calls a model or raises (the later run reports the error)."""
    if not sources or not any(table_of(s.step) == "passages" for s in recipe.corpus):
        return NONE
    needed, stages = frozenset[str](), list[Stage[CorpusStep]]()  # columns and stages that chunks depend on
    for stage in reversed(recipe.corpus):
        table = table_of(stage.step)
        if table == "passages" or (table == "texts" and not needed.isdisjoint(stage.step.writes())):
            needed |= stage.step.reads()
            stages.insert(0, stage)
    own = _SampleKit(kit)
    corpus = CorpusExecutor(replace(recipe, corpus=tuple(stages)), own)
    try:
        with asyncio.Runner() as loop:
            texts = loop.run(corpus.texts(arrow.corpus_table(sources)))
            made = loop.run(corpus.passages(texts))
    except StageError:
        return NONE
    made = with_texts(made, texts) if recipe.embeds_from_texts else made
    whole = pa.concat_tables([t.select(["source", "fault"]) for t in (texts, made)])
    broken = set(arrow.id_texts(whole["source"].filter(whole["fault"].is_valid())))
    sizes, chunks = {s.id: len(s.content) for s in sources if s.id not in broken}, fine(made)
    counted = Counter(arrow.id_texts(chunks["source"]))
    each = {id: counted[id] for id in sizes}
    text_of = dict(zip(texts["source"].to_pylist(), texts["text"].to_pylist(), strict=True))
    spans = set(zip(*(chunks[n].to_pylist() for n in ("source", "parent_start", "parent_end")), strict=True))
    count = sum(len(sentences(text_of[source][start:end])) for source, start, end in spans)
    return Sample(chunks, each, np.fromiter(sizes.values(), float), len(spans), count, not own.stood_in)
