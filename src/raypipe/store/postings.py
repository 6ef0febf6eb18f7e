"""Inverted words of a snapshot's passages: BM25 over a whole collection without a read of its texts.

Each analyzer of a split has two tables, cut into segments (groups of sources). `postings` has a row per word
and segment: the segment's passages with the word, and the word's count in each. `lengths` has a row per
passage: its segment, its number in the segment, and its count of words. A segment never changes; new sources
get new segments. A removed source loses its rows of `lengths`, and readers skip its passages in the segments.
The number of passages, their mean length and document frequencies are sums over segments, so scores do not
depend on the cuts.

`lengths` is committed last, and only segments that it names are read. BM25's k1, b and variant of the idf are
not stored: one pair of tables serves every recipe with this analyzer and split.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset

from raypipe.core.arrow import id_texts
from raypipe.core.index import Occurrences
from raypipe.core.records import chunk_id, parse_chunk_id
from raypipe.store.errors import reaching
from raypipe.store.ids import SCAN_ROWS, filters, rows


@dataclass(frozen=True, slots=True)
class WordSegment:
    """The passages of a segment that are in the snapshot."""

    lengths: np.ndarray  # (passages,) int32: words of each passage, -1 for a removed one
    rows: np.ndarray  # (passages,) int64: row number in the table `lengths`, -1 for a removed one
    left: int  # passages that were not removed

    def has(self, passages: np.ndarray) -> np.ndarray:
        """Marks which passage numbers are in the snapshot: (n,) bool. A number may exceed the arrays."""
        inside = passages < len(self.lengths)
        left: np.ndarray = inside & (self.lengths[np.where(inside, passages, 0)] >= 0)
        return left


class PostingsTables:
    """The two tables of one analyzer at pinned versions. Keeps 12 bytes of memory per passage."""

    def __init__(self, postings: LanceDataset, lengths: LanceDataset) -> None:
        self._postings, self._lengths = postings, lengths
        self._opening = threading.Lock()
        self._segments: dict[int, WordSegment] | None = None
        self._frequencies: np.ndarray | None = None

    def found(self, words: np.ndarray) -> LancePostings:
        """Looks up words ((n,) uint64, ascending and distinct); their occurrences are read later."""
        segments = self.segments()
        rows = self._look_up(words)
        known = pa.array(segments.keys(), pa.int64())
        rows = rows.filter(pc.is_in(rows["segment"], value_set=known))
        order = np.argsort(words.view(np.int64))
        term = order[np.searchsorted(words.view(np.int64)[order], rows["word"].to_numpy())]
        segment = rows["segment"].to_numpy()
        row, held = rows["row"].to_numpy(), rows["found"].to_numpy().astype(np.int64)
        broken = rows["size"].to_numpy() > np.array([segments[s].left for s in segment.tolist()], np.int64)
        if broken.any():  # segments with removed passages: count the remaining ones
            lists = self.take(row[broken], ["passages"])["passages"]
            some = zip(segment[broken].tolist(), lists, strict=True)
            held = held.copy()
            held[broken] = [segments[s].has(passages.values.to_numpy()).sum() for s, passages in some]
        found = np.bincount(term, weights=held, minlength=len(words)).astype(np.int64)
        return LancePostings(self, len(words), found, term, segment, row)

    def segments(self) -> dict[int, WordSegment]:
        """Returns the segments by id; reads them at the first call."""
        with self._opening:
            if self._segments is None:
                self._segments = self._read_segments()
            return self._segments

    def _read_segments(self) -> dict[int, WordSegment]:
        at, parts = 0, [[np.zeros(0, np.int64)] for _ in range(4)]
        columns = ["segment", "passage", "words"]
        with reaching(self._lengths.uri):
            for batch in self._lengths.to_batches(columns=columns, batch_size=SCAN_ROWS):
                segment, passage, words = (batch[c].to_numpy() for c in columns)
                real = np.flatnonzero(passage >= 0)
                here = (segment, passage, words, np.arange(at, at + len(segment)))
                for part, values in zip(parts, here, strict=True):
                    part.append(values[real])
                at += len(segment)
        segment, passage, words, rows = (np.concatenate(p) for p in parts)
        order = np.argsort(segment, kind="stable")
        ids, first = np.unique(segment[order], return_index=True)
        found = {}
        for id, some in zip(ids.tolist(), np.split(order, first[1:]), strict=True) if len(ids) else ():
            size = int(passage[some].max()) + 1
            lengths, numbers = np.full(size, -1, np.int32), np.full(size, -1, np.int64)
            lengths[passage[some]], numbers[passage[some]] = words[some], rows[some]
            found[id] = WordSegment(lengths, numbers, len(some))
        return found

    @cached_property
    def size(self) -> tuple[int, int]:
        """Number of passages in the snapshot, and the sum of their words."""
        segments = self.segments().values()
        words = sum(int(s.lengths[s.lengths >= 0].sum(dtype=np.int64)) for s in segments)
        return sum(s.left for s in segments), words

    def _look_up(self, words: np.ndarray) -> pa.Table:
        """Reads the rows of `postings` for some words, without the lists in them; adds their row numbers."""
        names = words.view(np.int64).tolist()
        columns, found = ["word", "segment", "size", "found"], []
        with reaching(self._postings.uri):
            for where in [*filters("word", names)] or ["false"]:
                found.append(self._postings.to_table(columns=columns, filter=where, with_row_address=True))
            table = pa.concat_tables(found)
            fragments = self._postings.get_fragments()  # they never lose single rows
            counts = [fragment.count_rows() for fragment in fragments]
        names = (fragment.fragment_id for fragment in fragments)
        starts = dict(zip(names, accumulate(counts, initial=0), strict=False))
        address = table["_rowaddr"].to_numpy().astype(np.int64)
        first = np.array([starts[id] for id in (address >> 32).tolist()], np.int64)
        return table.drop(["_rowaddr"]).append_column("row", pa.array(first + (address & 0xFFFFFFFF)))

    def take(self, rows: np.ndarray, columns: list[str]) -> pa.Table:
        """Reads rows of `postings` by their row numbers."""
        with reaching(self._postings.uri):
            return self._postings.take(pa.array(rows), columns=columns)

    def spans(self, rows: np.ndarray) -> pa.Table:
        """Reads the source and span of passages, by their row numbers in `lengths`."""
        with reaching(self._lengths.uri):
            return self._lengths.take(pa.array(rows), columns=["source", "parent_start", "parent_end"])

    def rows_of(self, chunks: Collection[str]) -> np.ndarray:
        """Returns the row numbers of passages in `lengths`, (n,) int64, ascending; skips unknown passages."""
        spans = {parse_chunk_id(c) for c in chunks}
        columns = ["source", "parent_start", "parent_end", "segment", "passage"]
        found, segments = rows(self._lengths, "source", [s for s, _ in spans], columns), self.segments()
        here = [
            segments[r["segment"]].rows[r["passage"]]
            for r in found.to_pylist()
            if r["passage"] >= 0 and (r["source"].hex(), (r["parent_start"], r["parent_end"])) in spans
        ]
        return np.sort(np.array(here, np.int64))

    def frequencies(self) -> np.ndarray:
        """Returns the number of passages with each word of the snapshot: (distinct words,) int64."""
        segments = self.segments()
        with self._opening:
            if self._frequencies is None:
                self._frequencies = self._read_frequencies(segments)
            return self._frequencies

    def _read_frequencies(self, segments: dict[int, WordSegment]) -> np.ndarray:
        names, left = np.array(sorted(segments), np.int64), {id: s.left for id, s in segments.items()}
        words, held, broken = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], set()
        with reaching(self._postings.uri):
            for batch in self._postings.to_batches(columns=["word", "segment", "size", "found"]):
                segment = batch["segment"].to_numpy()
                ids, first = np.unique(segment, return_index=True)
                sizes = batch["size"].to_numpy()[first].tolist()
                broken |= {id for id, n in zip(ids.tolist(), sizes, strict=True) if left.get(id, n) < n}
                kept = np.isin(segment, names) & ~np.isin(segment, list(broken))
                words.append(batch["word"].to_numpy()[kept])
                held.append(batch["found"].to_numpy()[kept])
            for id in sorted(broken):
                table = self._postings.to_table(columns=["word", "passages"], filter=f"segment = {id}")
                word, passages = flat_lists(table["word"], table["passages"])
                there, counts = np.unique(word[segments[id].has(passages)], return_counts=True)
                words.append(there)
                held.append(counts)
        _, place = np.unique(np.concatenate(words), return_inverse=True)
        return np.bincount(place, weights=np.concatenate(held)).astype(np.int64)


def flat_lists(values: pa.ChunkedArray, lists: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Repeats each value by the length of its list, and concatenates the lists. Returns both."""
    lists = lists.combine_chunks()
    return np.repeat(values.to_numpy(), pc.list_value_length(lists).to_numpy()), lists.flatten().to_numpy()


class LancePostings:
    """Occurrences of some words in a snapshot (`core.index.Postings`)."""

    def __init__(
        self,
        tables: PostingsTables,
        words: int,
        found: np.ndarray,
        term: np.ndarray,
        segment: np.ndarray,
        row: np.ndarray,
    ) -> None:
        """Keeps the places of the words. `found` is the number of passages with each word. `term` (the word's
        number), `segment` and `row` have an entry per row of `postings` to read."""
        self._tables, self._words, self.found = tables, words, found
        self._term, self._segment, self._row = term, segment, row
        self.passages, total = tables.size
        self.mean_length = total / self.passages if self.passages else 0.0

    async def segments(self) -> AsyncIterator[Occurrences]:
        for id in np.unique(self._segment).tolist():
            yield await asyncio.to_thread(self._occurrences, id)

    def _occurrences(self, id: int) -> Occurrences:
        here = np.flatnonzero(self._segment == id)
        here = here[np.argsort(self._term[here])]
        lists = self._tables.take(self._row[here], ["passages", "counts"])
        segment = self._tables.segments()[id]
        term, passages = flat_lists(pa.chunked_array([pa.array(self._term[here])]), lists["passages"])
        passages, counts = passages.astype(np.int64), lists["counts"].combine_chunks().flatten().to_numpy()
        left = segment.has(passages)
        if not left.all():
            term, passages, counts = term[left], passages[left], counts[left]
        starts = np.searchsorted(term, np.arange(self._words + 1))
        return Occurrences(segment.lengths, segment.rows, starts, passages, counts)

    async def frequencies(self) -> np.ndarray:
        return await asyncio.to_thread(self._tables.frequencies)

    async def chunks(self, rows: np.ndarray) -> list[str]:
        distinct, place = np.unique(rows, return_inverse=True)
        if not len(distinct):
            return []
        spans = await asyncio.to_thread(self._tables.spans, distinct)
        sources, starts, ends = map(id_texts, spans.columns)
        ids = [chunk_id(s, (a, b)) for s, a, b in zip(sources, starts, ends, strict=True)]
        return [ids[i] for i in place.tolist()]

    async def rows_of(self, chunks: Collection[str]) -> np.ndarray:
        return await asyncio.to_thread(self._tables.rows_of, chunks)
