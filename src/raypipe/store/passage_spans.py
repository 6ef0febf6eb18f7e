"""The passages of some sources and their words, as flat arrays; and the rows of the tables made of them.

Knows the columns of texts and passages, and Arrow. Knows no Lance.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.errors import ConfError
from raypipe.core.index import PassageWords
from raypipe.core.records import chunk_id, digest
from raypipe.store.errors import StoreError


@dataclass(frozen=True, slots=True)
class PassageSpans:
    """Distinct passages with their words, by source and span. A word is in the passage in which it starts."""

    sources: list[str]  # in their order
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
    """The passages of the sources in `order`, from tables that hold only these. `texts`: source, words and
    starts of one analyzer."""
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
    return PassageSpans(order.to_pylist(), place, starts, ends, offsets.astype(np.int64), hashes)


def passage_words(texts: pa.Table, passages: pa.Table, scope: tuple[str, ...] | None) -> PassageWords:
    """Words of each distinct passage, from tables that hold only what is in the scope."""
    names = texts["source"].to_pylist()
    order = pa.array(sorted(names) if scope is None else list(dict.fromkeys(scope)), pa.string())
    found = passage_spans(texts, passages, order)
    spans = zip(found.place.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True)
    ids = tuple(chunk_id(found.sources[s], (a, b)) for s, a, b in spans)
    return PassageWords(ids, found.offsets, found.hashes)


def segment_id(run: str, part: str, number: int) -> int:
    """Names a segment of a part: 63 bits, equal for the same part of the same run."""
    return int(digest("segment", run, part, str(number))[:16], 16) >> 1


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


def lengths_rows(found: PassageSpans, segment: int, bare: Collection[str]) -> pa.Table:
    """The rows of `lengths` for one segment; `bare`: sources without a passage, which get a row of zeros,
    since each of them would always look like missing work. Readers skip these rows."""
    n, none = len(found.place), len(bare)

    def column(values: np.ndarray, other: int) -> pa.Array:
        return pa.array(np.concatenate([values, np.full(none, other)]).astype(np.int32))

    names = pa.array(found.sources, pa.string()).take(pa.array(found.place))
    columns = {
        "source": pa.concat_arrays([names, pa.array(sorted(bare), pa.string())]),
        "parent_start": column(found.starts, 0),
        "parent_end": column(found.ends, 0),
        "segment": pa.array(np.full(n + none, segment, np.int64)),
        "passage": column(np.arange(n), -1),
        "words": column(np.diff(found.offsets), 0),
    }
    return pa.table(columns)
