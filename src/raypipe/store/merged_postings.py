"""Merges small segments of postings: a search reads fewer of them and gives the same scores, to the bit.

Statistics are sums over segments, so how a snapshot is cut changes none. Merging leaves out what segments say
of passages that were taken out, which frees their bytes. Three commits: the merged rows come into `postings`,
which no reader looks at yet; `lengths` names them in place of the old ones; the old rows go. A process that
dies in between leaves rows that `lengths` does not name, which the next merge removes.

Only for the driver, and only while no build of these tables is unfinished: its rows are not named yet either.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import write_fragments

from raypipe.store.commit import append, transact, without_rows
from raypipe.store.database import Store
from raypipe.store.errors import reaching
from raypipe.store.inverter import SEGMENT_WORDS
from raypipe.store.passage_spans import grouped_postings, segment_id
from raypipe.store.postings import PostingsTables, WordSegment, flat_lists
from raypipe.store.tables import LENGTHS, POSTINGS, checked

MERGED_AT = 8
"""Small fragments from which they are merged: a search reads at most seven of them next to the large ones,
and one of eight small ingests writes once more what the others added."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A fragment of `postings`, all of whose segments are small, and what is left of these."""

    fragment: int
    segments: tuple[int, ...]  # ids of those that `lengths` names
    words: int


def merge_segments(
    store: Store, postings: str, lengths: str, segment_words: int = SEGMENT_WORDS, at: int = MERGED_AT
) -> int:
    """Merges the small segments of an analyzer where there are at least `at` fragments of them, and removes
    rows that no segment of `lengths` names. Returns how many segments there are fewer."""
    opened = store.dataset(postings)
    if len(opened.get_fragments()) < at:
        return 0
    tables = PostingsTables(opened, store.dataset(lengths))
    segments = tables.segments()
    parts, unnamed = _parts(opened, segments, segment_words)
    _drop(store, postings, unnamed)
    if len(parts) < at:
        return 0
    groups = _groups(parts, segment_words)
    for group in groups:
        _merge(store, postings, lengths, PostingsTables(opened, store.dataset(lengths)), group)
    _drop(store, postings, [p.fragment for group in groups for p in group])
    store.index(postings)
    store.index(lengths)
    return sum(len(p.segments) for group in groups for p in group) - len(groups)


def _parts(
    dataset: lance.LanceDataset, segments: dict[int, WordSegment], most: int
) -> tuple[list[_Part], list[int]]:
    """The fragments whose segments are all small, and those of which no segment is named."""
    words = {id: int(s.lengths[s.lengths >= 0].sum(dtype=np.int64)) for id, s in segments.items()}
    parts, unnamed = [], []
    for fragment in dataset.get_fragments():
        with reaching(dataset.uri):
            held = np.unique(fragment.to_table(columns=["segment"])["segment"].to_numpy()).tolist()
        named = tuple(id for id in held if id in segments)
        if not named:
            unnamed.append(fragment.fragment_id)
        elif all(2 * words[id] <= most for id in named):
            parts.append(_Part(fragment.fragment_id, named, sum(words[id] for id in named)))
    return parts, unnamed


def _groups(parts: list[_Part], most: int) -> list[list[_Part]]:
    """Fragments that are merged into one segment each: none has more words than it may. A fragment that is
    alone, with one segment, stays."""
    groups: list[list[_Part]] = []
    held = 0
    for part in parts:
        if not groups or held + part.words > most:
            groups.append([])
            held = 0
        groups[-1].append(part)
        held += part.words
    return [g for g in groups if len(g) > 1 or len(g[0].segments) > 1]


def _merge(store: Store, postings: str, lengths: str, tables: PostingsTables, group: list[_Part]) -> None:
    """Writes the segments of some fragments as one, which `lengths` then names in their place."""
    named = [id for part in group for id in part.segments]
    merged, segments = segment_id(uuid.uuid4().hex, "merged", 0), tables.segments()
    pairs = [np.zeros((3, 0), np.int64)]  # word, passage, how often
    rows, count = [np.zeros(0, np.int64)], 0
    for part in group:
        found = _postings(store, postings, part)
        for id in part.segments:
            there = segments[id].lengths >= 0
            new = count + np.cumsum(there) - 1  # its number in the merged segment
            word, passage, often = found[id]
            left = segments[id].has(passage)
            pairs.append(np.stack([word[left], new[passage[left]], often[left]]))
            rows.append(segments[id].rows[there])
            count += int(there.sum())
    word, passage, often = np.concatenate(pairs, axis=1)
    added = grouped_postings(word, passage, often, merged, count).cast(POSTINGS)
    with reaching(store.table_uri(lengths)):
        moved = store.dataset(lengths).take(pa.array(np.concatenate(rows)), columns=LENGTHS.names)
    numbers = {"segment": pa.array(np.full(count, merged)), "passage": pa.array(np.arange(count), pa.int32())}
    for name, column in numbers.items():
        moved = moved.set_column(LENGTHS.names.index(name), name, column)
    run = f"merged-{merged:016x}"
    for table, data in ((postings, added), (lengths, moved.cast(LENGTHS))):
        _add(store, table, run, data, [] if table == postings else named)


def _postings(store: Store, postings: str, part: _Part) -> dict[int, tuple[np.ndarray, ...]]:
    """WordSegment -> word, passage and how often, one entry for each word in each passage."""
    dataset = store.dataset(postings)
    with reaching(dataset.uri):
        found = dataset.get_fragment(part.fragment).to_table(
            columns=["word", "segment", "passages", "counts"]
        )
    out: dict[int, tuple[np.ndarray, ...]] = {}
    for id in part.segments:
        rows = found.filter(pc.equal(found["segment"], id))
        word, passage = flat_lists(rows["word"], rows["passages"])
        often = rows["counts"].combine_chunks().flatten().to_numpy()
        out[id] = word, passage.astype(np.int64), often.astype(np.int64)
    return out


def _add(store: Store, table: str, run: str, data: pa.Table, instead: list[int]) -> None:
    """One commit that adds rows to a table and takes out those of the segments that they stand for."""
    dataset = store.dataset(table)
    with reaching(dataset.uri), store.durable(table):
        fragments = write_fragments(checked(table, dataset.schema, data), dataset)
        if not instead:
            append(store, table, run, fragments, dataset.version)
            return
        where = f"passage >= 0 AND segment IN ({', '.join(map(str, instead))})"
        old = dataset.to_table(columns=[], filter=where, with_row_address=True)["_rowaddr"].to_numpy()
        removed, updated = without_rows(dataset, old)
        transact(store, table, run, lance.LanceOperation.Update(removed, updated, fragments), dataset.version)


def _drop(store: Store, postings: str, fragments: list[int]) -> None:
    """Takes fragments out of a table of postings."""
    if fragments:
        dataset = store.dataset(postings)
        with reaching(dataset.uri), store.durable(postings):
            gone = lance.LanceOperation.Delete([], fragments, "merged by raypipe")
            transact(store, postings, f"merged-{uuid.uuid4().hex}", gone, dataset.version)
