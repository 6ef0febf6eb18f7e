"""Inverts the words of some sources: tables of texts and passages to rows of `postings` and `lengths`.

Knows Lance. Reads, and changes nothing. A part may get several segments, each of bounded size, so memory is
bounded however many sources there are: by a segment, what is read next to it, and the longest source.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset

from raypipe.core.arrow import SPANS
from raypipe.store.database import Store
from raypipe.store.errors import reaching
from raypipe.store.lookups import SCAN_RATIO, SCAN_ROWS, rows
from raypipe.store.passage_spans import lengths_rows, passage_spans, postings_rows, segment_id, word_columns
from raypipe.store.tables import LENGTHS, POSTINGS

SEGMENT_WORDS = 8_000_000  # of a segment at most, or one source: sorting them takes some 300 MB
SLICE = 2_000  # sources that are read at once, at most


class Inverter:
    """The texts and passages of one split, and the analyzer whose words are inverted."""

    def __init__(
        self, store: Store, texts: str, passages: str, analyzer: str, segment_words: int = SEGMENT_WORDS
    ) -> None:
        """Raises StoreError for a table that is not there, ConfError where no words of the analyzer are."""
        self._segment_words = segment_words
        self._texts, self._passages = store.dataset(texts), store.dataset(passages)
        self._columns = word_columns(analyzer, self._texts.schema)

    def rows(self, ids: list[str], run: str, part: str) -> tuple[pa.Table, pa.Table]:
        """The rows of `lengths` and of `postings` of some sources."""
        lengths, postings = [LENGTHS.empty_table()], [POSTINGS.empty_table()]
        for names, texts, passages in self._segments(ids):
            found = passage_spans(texts, passages, pa.array(names, pa.string()))
            segment = segment_id(run, part, len(postings))
            real = set(np.unique(found.place).tolist())
            bare = [s for i, s in enumerate(names) if i not in real]
            lengths.append(lengths_rows(found, segment, bare).cast(LENGTHS))
            postings.append(postings_rows(found, segment).cast(POSTINGS))
        return pa.concat_tables(lengths), pa.concat_tables(postings)

    def _segments(self, ids: list[str]) -> Iterator[tuple[list[str], pa.Table, pa.Table]]:
        """Sources, their texts and passages, a segment at a time: none has more words than it may, but one
        that is a single source."""
        names: list[str] = []
        texts: list[pa.Table] = []
        passages: list[pa.Table] = []
        words = 0
        cuts = self._cuts(ids)
        spans = _slices(self._passages, cuts, list(SPANS))
        for cut, text in zip(cuts, _slices(self._texts, cuts, self._columns), strict=True):
            more = pc.sum(pc.list_value_length(text[self._columns[1]])).as_py() or 0
            if names and words + more > self._segment_words:
                yield names, pa.concat_tables(texts), pa.concat_tables(passages)
                names, texts, passages, words = [], [], [], 0
            names = [*names, *cut]
            texts.append(text)
            passages.append(next(spans))
            words += more
        if names:
            yield names, pa.concat_tables(texts), pa.concat_tables(passages)

    def _cuts(self, ids: list[str]) -> list[list[str]]:
        """The sources that are read at once, by how far their passages reach: two words are at least three
        characters, so a cut of `segment_words` characters has fewer words, if it is not a single source."""
        names = [ids[at : at + SLICE] for at in range(0, len(ids), SLICE)]
        cuts: list[list[str]] = []
        for some, spans in zip(names, _slices(self._passages, names, ["source", "parent_end"]), strict=True):
            reach = spans.group_by("source").aggregate([("parent_end", "max")])
            chars = dict(zip(reach["source"].to_pylist(), reach["parent_end_max"].to_pylist(), strict=True))
            cut: list[str] = []
            held = 0
            for source in some:
                if cut and held + chars.get(source, 0) > self._segment_words:
                    cuts.append(cut)
                    cut, held = [], 0
                cut.append(source)
                held += chars.get(source, 0)
            cuts.append(cut)
        return cuts


def _slices(dataset: LanceDataset, cuts: list[list[str]], columns: list[str]) -> Iterator[pa.Table]:
    """The rows of some sources, a cut at a time. Few are found by BTREE; of many the whole column of sources
    is read once, which costs a two-hundredth a row."""
    ids = [source for cut in cuts for source in cut]
    with reaching(dataset.uri):
        if len(ids) * SCAN_RATIO < dataset.count_rows():
            for some in cuts:
                yield rows(dataset, "source", some, columns)
            return
        wanted, at = pa.array(ids, pa.string()), 0
        found, places = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for batch in dataset.to_batches(columns=["source"], batch_size=SCAN_ROWS):
            place = pc.index_in(batch["source"], value_set=wanted)
            here = np.flatnonzero(place.is_valid().to_numpy(zero_copy_only=False))
            found.append(here + at)
            places.append(place.fill_null(-1).to_numpy()[here].astype(np.int64))
            at += batch.num_rows
        ends = np.cumsum([len(cut) for cut in cuts])
        row, of = np.concatenate(found), np.searchsorted(ends, np.concatenate(places), side="right")
        for i in range(len(cuts)):
            yield dataset.take(pa.array(row[of == i]), columns=columns)
