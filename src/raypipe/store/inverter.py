"""Inverts the words of some sources: tables of texts and passages to rows of `postings` and `lengths`.

A part may get several segments, each of bounded size, so memory is bounded however many sources there are: by
a segment, what is read next to it, and the longest source.

Small segments are merged by inverting their sources again: a search reads fewer of them and gives the same
scores, to the bit. Statistics are sums over segments, so how a snapshot is cut changes none. What segments
say of passages that were taken out goes with them. Three commits: the merged rows come into `postings`, which
no reader looks at yet; `lengths` names them in place of the old ones; the old rows go. A process that dies in
between leaves rows that `lengths` does not name, which the next merge removes.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset
from lance.fragment import write_fragments

from raypipe.core.arrow import SPANS, id_column, id_texts
from raypipe.core.errors import ConfError
from raypipe.core.index import PassageWords
from raypipe.core.records import chunk_id, digest
from raypipe.store.commit import append, transact, without_rows
from raypipe.store.database import Store
from raypipe.store.errors import StoreError, reaching
from raypipe.store.ids import SCAN_RATIO, SCAN_ROWS, rows
from raypipe.store.postings import PostingsTables
from raypipe.store.tables import LENGTHS, POSTINGS, checked


@dataclass(frozen=True, slots=True)
class PassageSpans:
    """Distinct passages with their words, by source and span. A word is in the passage in which it starts."""

    sources: pa.Array  # ids, in their order
    place: np.ndarray  # (passages,) int64: number of its source
    starts: np.ndarray  # (passages,) int64
    ends: np.ndarray  # (passages,) int64
    offsets: np.ndarray  # (passages + 1,) int64: words of passage i are hashes[offsets[i]:offsets[i + 1]]
    hashes: np.ndarray  # (words,) uint64


def word_columns(analyzer: str, schema: pa.Schema) -> list[str]:
    """The columns of `texts` that have an analyzer's words. Raises ConfError where there are none."""
    columns = ["source", f"words_{analyzer}", f"starts_{analyzer}"]
    if not set(columns) <= set(schema.names):
        raise ConfError(
            f"no words of analyzer {analyzer!r} are here: add `tokenize: {{analyzer: {analyzer}}}` to the "
            "corpus half and index again"
        )
    return columns


def passage_spans(texts: pa.Table, passages: pa.Table, order: pa.Array) -> PassageSpans:
    """The passages of the sources in `order`. `texts`: source, words and starts of one analyzer."""
    _, words, starts_at = texts.columns
    names = texts["source"].combine_chunks()
    real = passages.filter(pc.greater(passages["end"], passages["start"]))
    place = pc.index_in(real["source"], value_set=order)
    rank = pc.index_in(real["source"], value_set=names)
    if place.null_count or rank.null_count:
        raise StoreError("a source has passages and no text: the tables of the index do not belong together")
    spans = [real["parent_start"].to_numpy(), real["parent_end"].to_numpy()]
    distinct = np.unique(np.stack([place.to_numpy(), *spans, rank.to_numpy()]).astype(np.int64), axis=1)
    place, starts, ends, rank = distinct  # (passages,) int64 each, by source, then by span

    lengths = pc.list_value_length(words).to_numpy()  # (sources,) words of each
    flat = words.combine_chunks().flatten().to_numpy()
    # A word's place in the corpus as one ascending number: row of its text, then its start.
    at = np.repeat(np.arange(len(names)) << 32, lengths) + starts_at.combine_chunks().flatten().to_numpy()
    first = np.searchsorted(at, (rank << 32) + starts)
    offsets = np.concatenate([[0], np.cumsum(np.searchsorted(at, (rank << 32) + ends) - first)])
    pick = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], np.diff(offsets))
    hashes = flat[pick].astype(np.uint64)
    return PassageSpans(order, place, starts, ends, offsets.astype(np.int64), hashes)


def passage_words(texts: pa.Table, passages: pa.Table, scope: tuple[str, ...] | None) -> PassageWords:
    """Words of each distinct passage, from tables that hold only what is in the scope."""
    order = texts["source"].combine_chunks().sort() if scope is None else id_column(dict.fromkeys(scope))
    found, names = passage_spans(texts, passages, order), id_texts(order)
    spans = zip(found.place.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True)
    ids = tuple(chunk_id(names[s], (a, b)) for s, a, b in spans)
    return PassageWords(ids, found.offsets, found.hashes)


def postings_rows(found: PassageSpans, segment: int) -> pa.Table:
    """The rows of `postings` for one segment, by word."""
    coded = pa.array(found.hashes).dictionary_encode()
    words, codes = coded.dictionary.to_numpy(), coded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(words)
    rank = np.empty(len(words), np.int64)
    rank[order] = np.arange(len(words))
    count = max(len(found.place), 1)
    passage = np.repeat(np.arange(len(found.place)), np.diff(found.offsets))
    key = rank[codes] * count + passage  # a word, then a passage, as one number
    key.sort()
    first = np.flatnonzero(np.diff(key, prepend=-1))
    counts = np.diff(first, append=len(key))
    word, passages = np.divmod(key[first], count)
    held = np.bincount(word, minlength=len(words))  # in how many passages each word is
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
    """The rows of `lengths` for one segment. A source without a passage gets a row of zeros, since it would
    always look like missing work. Readers skip these rows."""
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


SEGMENT_WORDS = 8_000_000  # of a segment at most, or one source: sorting them takes some 300 MB
SLICE = 2_000  # sources that are read at once, at most
MERGED_AT = 8
"""Small fragments from which they are merged: a search reads at most seven of them next to the large ones,
and one of eight small ingests writes once more what the others added."""


class Inverter:
    """The texts and passages of one split, and the analyzer whose words are inverted."""

    def __init__(
        self, store: Store, texts: str, passages: str, analyzer: str, segment_words: int = SEGMENT_WORDS
    ) -> None:
        """Raises StoreError for a table that is not there, ConfError where no words of the analyzer are."""
        self.segment_words = segment_words
        self._texts, self._passages = store.dataset(texts), store.dataset(passages)
        self._columns = word_columns(analyzer, self._texts.schema)

    def rows(self, ids: list[str], run: str, part: str) -> tuple[pa.Table, pa.Table]:
        """The rows of `lengths` and of `postings` of some sources."""
        lengths, postings = [LENGTHS.empty_table()], [POSTINGS.empty_table()]
        for names, texts, passages in self._segments(ids):
            found = passage_spans(texts, passages, id_column(names))
            # 63 bits, equal for the same part of the same run
            segment = int(digest("segment", run, part, str(len(postings)))[:16], 16) >> 1
            lengths.append(lengths_rows(found, segment).cast(LENGTHS))
            postings.append(postings_rows(found, segment).cast(POSTINGS))
        return pa.concat_tables(lengths), pa.concat_tables(postings)

    def _segments(self, ids: list[str]) -> Iterator[tuple[list[str], pa.Table, pa.Table]]:
        """Sources, texts and passages, a segment at a time: of bounded words, or of a single source."""
        names: list[str] = []
        texts: list[pa.Table] = []
        passages: list[pa.Table] = []
        words = 0
        cuts = self._cuts(ids)
        spans = _slices(self._passages, cuts, list(SPANS))
        for cut, text in zip(cuts, _slices(self._texts, cuts, self._columns), strict=True):
            more = pc.sum(pc.list_value_length(text[self._columns[1]])).as_py() or 0
            if names and words + more > self.segment_words:
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
            chars = dict(zip(id_texts(reach["source"]), reach["parent_end_max"].to_pylist(), strict=True))
            cut: list[str] = []
            held = 0
            for source in some:
                if cut and held + chars.get(source, 0) > self.segment_words:
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
    """Merges the small segments of an analyzer where there are at least `at` fragments of them, and removes
    rows that no segment of `lengths` names. Returns how many segments there are fewer.

    Only for the driver, and only while no build of these tables is unfinished: its rows are not named yet
    either."""
    opened, most = store.dataset(postings), inverter.segment_words
    if len(opened.get_fragments()) < at:
        return 0
    segments = PostingsTables(opened, store.dataset(lengths)).segments()
    words = {id: int(s.lengths[s.lengths >= 0].sum(dtype=np.int64)) for id, s in segments.items()}
    small, unnamed = dict[int, list[int]](), list[int]()  # fragment -> its segments; those without any
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
    # Fragments that become one segment each: none has more words than it may.
    groups, size = list[list[int]](), 0
    for number, named in small.items():
        own = sum(words[id] for id in named)
        if not groups or size + own > most:
            groups.append([])
            size = 0
        groups[-1].append(number)
        size += own
    fewer, gone = 0, list[int]()
    for group in groups:
        old = [id for number in group for id in small[number]]
        if len(old) > 1:  # else it stays
            fewer += len(old) - _merge(store, postings, lengths, inverter, old)
            gone += group
    _drop(store, postings, gone)
    store.index(postings)
    store.index(lengths)
    return fewer


def _merge(store: Store, postings: str, lengths: str, inverter: Inverter, old: Collection[int]) -> int:
    """Inverts the sources of some segments again, in place of these; how many segments that makes."""
    there, run = store.dataset(lengths), f"merged-{uuid.uuid4().hex}"
    where = f"passage >= 0 AND segment IN ({', '.join(map(str, old))})"
    with reaching(there.uri):
        rows = there.to_table(columns=["source"], filter=where, with_row_address=True)
    new_lengths, new_postings = inverter.rows(id_texts(rows["source"].unique()), run, "merged")
    with reaching(store.table_uri(postings)), store.durable(postings):
        dataset = store.dataset(postings)
        fragments = write_fragments(checked(postings, dataset.schema, new_postings), dataset)
        append(store, postings, run, fragments, dataset.version)
    with reaching(there.uri), store.durable(lengths):
        fragments = write_fragments(checked(lengths, there.schema, new_lengths), there)
        removed, updated = without_rows(there, rows["_rowaddr"].to_numpy())
        operation = lance.LanceOperation.Update(removed, updated, fragments)
        transact(store, lengths, run, operation, there.version)
    return len(new_postings["segment"].unique())


def _drop(store: Store, postings: str, fragments: list[int]) -> None:
    """Takes fragments out of a table of postings."""
    if fragments:
        dataset = store.dataset(postings)
        with reaching(dataset.uri), store.durable(postings):
            gone = lance.LanceOperation.Delete([], fragments, "merged by raypipe")
            transact(store, postings, f"merged-{uuid.uuid4().hex}", gone, dataset.version)
