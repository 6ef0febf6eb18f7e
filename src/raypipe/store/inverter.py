"""Inverted index for BM25: rows of the tables `postings` and `lengths`, made from texts and passages.

A segment is a group of sources whose words are sorted together. A part (the sources that one task handles)
gets one or several segments of bounded size. So sorting needs memory for one segment, or for the longest
source. The finished rows of the whole part are held in memory, too.

Small segments are merged: their sources are inverted again. A search then reads fewer segments. Its scores
stay the same, to the bit, because statistics are sums over segments. Entries of removed passages disappear. A
merge makes three commits. First the merged rows enter `postings`, where no reader looks at them yet. Then
`lengths` names the merged rows instead of the old ones. Last, the old rows are removed. If the process dies
in between, the next merge removes the rows that `lengths` does not name.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset

from raypipe.core.arrow import SPANS, id_column, id_texts
from raypipe.core.bounded_rows import batches
from raypipe.core.errors import ConfError
from raypipe.core.index import PassageWords
from raypipe.core.records import chunk_id, digest
from raypipe.store.commit import append, transact, without_rows
from raypipe.store.database import Store
from raypipe.store.errors import StoreError, reaching
from raypipe.store.ids import SCAN_RATIO, SCAN_ROWS, rows
from raypipe.store.parts import write_rows
from raypipe.store.postings import PostingsTables
from raypipe.store.tables import LENGTHS, POSTINGS

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PassageSpans:
    """Distinct passages with their words, ordered by source and span. A passage is the parent span of a
    chunk. A word belongs to the passages in which it starts."""

    sources: pa.Array  # ids of all sources, also of those without passages
    place: np.ndarray  # (passages,) int64: index of the passage's source in `sources`
    starts: np.ndarray  # (passages,) int64: first character
    ends: np.ndarray  # (passages,) int64: last character + 1
    offsets: np.ndarray  # (passages + 1,) int64: words of passage i are hashes[offsets[i]:offsets[i + 1]]
    hashes: np.ndarray  # (words,) uint64: word hashes (`text.words`)


def word_columns(analyzer: str, schema: pa.Schema) -> list[str]:
    """Lists the columns with the sources, words and starts of an analyzer. Raises ConfError without them."""
    columns = ["source", f"words_{analyzer}", f"starts_{analyzer}"]
    if not set(columns) <= set(schema.names):
        raise ConfError(
            f"no words of analyzer {analyzer!r}: add `tokenize: {{analyzer: {analyzer}}}` and index again"
        )
    return columns


def passage_spans(texts: pa.Table, passages: pa.Table, order: pa.Array) -> PassageSpans:
    """Collects the passages of the sources in `order`. `texts` has three columns: source, words and starts of
    one analyzer. Raises StoreError if a source of `passages` is not in `texts` or not in `order`."""
    _, words, starts_at = texts.columns
    names = texts["source"].combine_chunks()
    real = passages.filter(pc.greater(passages["end"], passages["start"]))
    place = pc.index_in(real["source"], value_set=order)
    rank = pc.index_in(real["source"], value_set=names)
    if place.null_count or rank.null_count:
        raise StoreError("a source has passages and no text: the tables of the index do not match")
    spans = [real["parent_start"].to_numpy(), real["parent_end"].to_numpy()]
    distinct = np.unique(np.stack([place.to_numpy(), *spans, rank.to_numpy()]).astype(np.int64), axis=1)
    place, starts, ends, rank = distinct  # (passages,) int64 each, by source, then by span

    lengths = pc.list_value_length(words).to_numpy()  # (sources,) words of each
    flat = words.combine_chunks().flatten().to_numpy()
    # A word's position in the corpus as one ascending number: the row of its text, then its start.
    at = np.repeat(np.arange(len(names)) << 32, lengths) + starts_at.combine_chunks().flatten().to_numpy()
    first = np.searchsorted(at, (rank << 32) + starts)
    offsets = np.concatenate([[0], np.cumsum(np.searchsorted(at, (rank << 32) + ends) - first)])
    pick = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], np.diff(offsets))
    hashes = flat[pick].astype(np.uint64)
    return PassageSpans(order, place, starts, ends, offsets.astype(np.int64), hashes)


def passage_words(texts: pa.Table, passages: pa.Table, scope: tuple[str, ...] | None) -> PassageWords:
    """Collects the words of each distinct passage. The tables hold only sources of `scope` (None: all)."""
    order = texts["source"].combine_chunks().sort() if scope is None else id_column(dict.fromkeys(scope))
    found, names = passage_spans(texts, passages, order), id_texts(order)
    spans = zip(found.place.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True)
    ids = tuple(chunk_id(names[s], (a, b)) for s, a, b in spans)
    return PassageWords(ids, found.offsets, found.hashes)


def postings_rows(found: PassageSpans, segment: int) -> pa.Table:
    """Makes the rows of `postings` for one segment, ordered by word."""
    coded = pa.array(found.hashes).dictionary_encode()
    words, codes = coded.dictionary.to_numpy(), coded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(words)
    rank = np.empty(len(words), np.int64)
    rank[order] = np.arange(len(words))
    count = max(len(found.place), 1)
    passage = np.repeat(np.arange(len(found.place)), np.diff(found.offsets))
    key = rank[codes] * count + passage  # one number that sorts by word, then by passage
    key.sort()
    first = np.flatnonzero(np.diff(key, prepend=-1))
    counts = np.diff(first, append=len(key))
    word, passages = np.divmod(key[first], count)
    held = np.bincount(word, minlength=len(words))  # (words,) passages with the word
    offsets = pa.array(np.concatenate([[0], np.cumsum(held)]).astype(np.int32))
    columns = [
        pa.array(words[order].view(np.int64)),
        pa.array(np.full(len(words), segment, np.int64)),
        pa.array(np.full(len(words), len(found.place), np.int32)),
        pa.array(held.astype(np.int32)),
        pa.ListArray.from_arrays(offsets, pa.array(passages.astype(np.int32))),
        pa.ListArray.from_arrays(offsets, pa.array(counts.astype(np.int32))),
    ]
    return pa.table(columns, names=["word", "segment", "size", "found", "passages", "counts"])


def lengths_rows(found: PassageSpans, segment: int) -> pa.Table:
    """Makes the rows of `lengths` for one segment. A source without a passage gets a row with passage -1,
    since it would otherwise always look like missing work. Readers skip these rows."""
    bare = np.setdiff1d(np.arange(len(found.sources)), found.place)
    n, none = len(found.place), len(bare)

    def column(values: np.ndarray, other: int) -> pa.Array:
        return pa.array(np.concatenate([values, np.full(none, other)]).astype(np.int32))

    columns = {
        "source": found.sources.take(pa.array(np.concatenate([found.place, bare]))),
        "parent_start": column(found.starts, 0),
        "parent_end": column(found.ends, 0),
        "segment": pa.array(np.full(n + none, segment, np.int64)),
        "passage": column(np.arange(n), -1),
        "words": column(np.diff(found.offsets), 0),
    }
    return pa.table(columns)


SEGMENT_WORDS = 8_000_000  # most words of a segment with several sources: sorting takes about 300 MB
SLICE = 2_000  # most sources that are read together
MERGED_AT = 8
"""Number of small fragments at which a merge begins, so a search reads at most seven of them and the large
ones. Of every eight small ingests, one rewrites the rows of the other seven."""


class Inverter:
    """Maker of `lengths` and `postings` rows, from a table of texts and one of passages, for one analyzer."""

    def __init__(
        self, store: Store, texts: str, passages: str, analyzer: str, segment_words: int = SEGMENT_WORDS
    ) -> None:
        """Opens the tables. Raises StoreError if one is missing, and ConfError if the words are missing."""
        self.segment_words = segment_words
        self._texts, self._passages = store.dataset(texts), store.dataset(passages)
        self._columns = word_columns(analyzer, self._texts.schema)

    def rows(self, ids: list[str], run: str, part: str) -> tuple[pa.Table, pa.Table]:
        """Makes the rows of `lengths` and of `postings` for some sources. The segments' ids are made from
        `run` and `part`, so a part that is computed again gets the same ids."""
        lengths, postings = [LENGTHS.empty_table()], [POSTINGS.empty_table()]
        for names, texts, passages in self._segments(ids):
            found = passage_spans(texts, passages, id_column(names))
            # The segment's id: 63 bits, equal for the same part of the same run.
            segment = int(digest("segment", run, part, str(len(postings)))[:16], 16) >> 1
            lengths.append(lengths_rows(found, segment).cast(LENGTHS))
            postings.append(postings_rows(found, segment).cast(POSTINGS))
        return pa.concat_tables(lengths), pa.concat_tables(postings)

    def _segments(self, ids: list[str]) -> Iterator[tuple[list[str], pa.Table, pa.Table]]:
        """Yields the sources, texts and passages of each segment. A segment has at most `segment_words`
        words, unless it is a single source."""
        cuts = self._cuts(ids)
        texts, spans = _slices(self._texts, cuts, self._columns), _slices(self._passages, cuts, list(SPANS))

        def words(text: pa.Table) -> int:
            return int(pc.sum(pc.list_value_length(text[self._columns[1]])).as_py() or 0)

        pieces = zip(cuts, texts, spans, strict=True)
        sized = (((cut, text, span), words(text)) for cut, text, span in pieces)
        for group in _bounded(sized, self.segment_words):
            names = [source for cut, _, _ in group for source in cut]
            yield names, pa.concat_tables(t for _, t, _ in group), pa.concat_tables(s for *_, s in group)

    def _cuts(self, ids: list[str]) -> list[list[str]]:
        """Groups the sources that are read together. In each group, the text up to the last passage's end has
        at most `segment_words` characters, unless the group is a single source. Two words take at least three
        characters, so a group has fewer words than characters."""
        names, cuts = list(batches(ids, SLICE)), list[list[str]]()
        for some, spans in zip(names, _slices(self._passages, names, ["source", "parent_end"]), strict=True):
            reach = spans.group_by("source").aggregate([("parent_end", "max")])
            chars = dict(zip(id_texts(reach["source"]), reach["parent_end_max"].to_pylist(), strict=True))
            cuts += _bounded([(source, chars.get(source, 0)) for source in some], self.segment_words)
        return cuts


def _bounded(sized: Iterable[tuple[T, int]], most: int) -> Iterator[list[T]]:
    """Groups items in order, given with their sizes. A group has a size of at most `most`, or a single item.

    >>> list(_bounded(zip("abcde", (3, 2, 9, 1, 4)), 5))
    [['a', 'b'], ['c'], ['d', 'e']]
    """
    group, held = list[T](), 0
    for item, size in sized:
        if group and held + size > most:
            yield group
            group, held = [], 0
        group.append(item)
        held += size
    if group:
        yield group


def _slices(dataset: LanceDataset, cuts: list[list[str]], columns: list[str]) -> Iterator[pa.Table]:
    """Yields the rows of each group of sources. Few sources are found by the BTREE index. For many, the
    column `source` is scanned once, because a look-up costs as much as `SCAN_RATIO` scanned rows."""
    ids = [source for cut in cuts for source in cut]
    with reaching(dataset.uri):
        if len(ids) * SCAN_RATIO < dataset.count_rows():
            for some in cuts:
                yield rows(dataset, "source", some, columns)
            return
        wanted, at = id_column(ids), 0
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


def merge_segments(store: Store, postings: str, lengths: str, inverter: Inverter, at: int = MERGED_AT) -> int:
    """Merges an analyzer's small segments, if they fill at least `at` fragments of `postings`. Small means at
    most half of the words that a segment may have. Returns by how much the number of segments fell. If
    `postings` has at least `at` fragments, also removes those without a segment that `lengths` names.

    Only for the driver, and only if no build of these tables is unfinished, because `lengths` does not name
    the rows of such a build yet.
    """
    opened, most = store.dataset(postings), inverter.segment_words
    if len(opened.get_fragments()) < at:
        return 0
    segments = PostingsTables(opened, store.dataset(lengths)).segments()
    words = {id: int(s.lengths[s.lengths >= 0].sum(dtype=np.int64)) for id, s in segments.items()}
    small, unnamed = dict[int, list[int]](), list[int]()  # fragment -> its segments; fragments without any
    for fragment in opened.get_fragments():
        with reaching(opened.uri):
            held = np.unique(fragment.to_table(columns=["segment"])["segment"].to_numpy()).tolist()
        if not (named := [id for id in held if id in segments]):
            unnamed.append(fragment.fragment_id)
        elif all(2 * words[id] <= most for id in named):
            small[fragment.fragment_id] = named
    _drop(store, postings, unnamed)
    if len(small) < at:
        return 0
    fewer, gone = 0, list[int]()
    sized = [(number, sum(words[id] for id in named)) for number, named in small.items()]
    for group in _bounded(sized, most):  # each group of fragments becomes one segment
        old = [id for number in group for id in small[number]]
        if len(old) > 1:  # a single segment stays as it is
            fewer += len(old) - _merge(store, postings, lengths, inverter, old)
            gone += group
    _drop(store, postings, gone)
    store.index(postings)
    store.index(lengths)
    return fewer


def _merge(store: Store, postings: str, lengths: str, inverter: Inverter, old: Collection[int]) -> int:
    """Inverts the sources of the segments `old` again, and replaces the rows of these segments in `lengths`.
    The caller must remove their rows in `postings`. Returns the number of new segments."""
    there, run = store.dataset(lengths), f"merged-{uuid.uuid4().hex}"
    where = f"passage >= 0 AND segment IN ({', '.join(map(str, old))})"
    with reaching(there.uri):
        rows = there.to_table(columns=["source"], filter=where, with_row_address=True)
    new_lengths, new_postings = inverter.rows(id_texts(rows["source"].unique()), run, "merged")
    with reaching(store.table_uri(postings)), store.durable(postings):
        append(store, postings, run, write_rows(store, postings, new_postings), store.version(postings))
    with reaching(there.uri), store.durable(lengths):
        fragments = write_rows(store, lengths, new_lengths)
        removed, updated = without_rows(there, rows["_rowaddr"].to_numpy())
        operation = lance.LanceOperation.Update(removed, updated, fragments)
        transact(store, lengths, run, operation, there.version)
    return len(new_postings["segment"].unique())


def _drop(store: Store, postings: str, fragments: list[int]) -> None:
    """Removes fragments from a table of postings."""
    if fragments:
        dataset = store.dataset(postings)
        with reaching(dataset.uri), store.durable(postings):
            gone = lance.LanceOperation.Delete([], fragments, "merged by raypipe")
            transact(store, postings, f"merged-{uuid.uuid4().hex}", gone, dataset.version)
