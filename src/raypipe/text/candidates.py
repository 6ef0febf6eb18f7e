"""The sentences that may answer: those of some passages, with what stands around each.

Pure functions over texts and their blocks. A sentence lies in one block; headings, titles and menus are no
sentences, but say what the ones below them are about.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from raypipe.core.records import Block, BlockKind, Span
from raypipe.text.windows import sentences

MAX_CHARS = 1000
"""A longer sentence is cut there: a table or menu that came out as one (the cap of CRAG's baseline)."""

_CONTENT = frozenset({"paragraph", "item", "cell"})
_LABEL_CHARS = 60  # a longer cell is no label of the next


@dataclass(frozen=True, slots=True)
class SourceText:
    text: str
    blocks: tuple[Block, ...] = ()  # (): one block
    hidden: tuple[Span, ...] = ()  # what a browser does not show


@dataclass(frozen=True, slots=True)
class Sentence:
    source: str  # source id
    span: Span  # in the source's parsed text
    text: str  # the text of that span
    kind: BlockKind = "paragraph"  # of its block
    around: str = ""  # what it stands under: the page's title, the nearest heading, the cell before it
    before: str = ""  # the sentence before it in its block
    rank: int = 0  # of the best of the passages it stands in, from 0


@dataclass(frozen=True, slots=True)
class _Run:
    """Passages of one source that overlap or touch."""

    start: int
    end: int
    passages: int
    rank: int  # of the best


def candidates(
    passages: Iterable[tuple[str, Span]], texts: Mapping[str, SourceText], most: int | None = None
) -> list[Sentence]:
    """The sentences of some passages (source, span), best passage first; each sentence once, by source as
    met and by place; of each passage the first `most`.

    A sentence that the end of a passage cuts counts whole where most of it is inside. Of two passages that
    overlap the first 2 * `most` are taken. Equal sentences of several sources count once, where they are met
    first. Hidden ones are left out; headings and menus are taken only where there is nothing else.
    """
    by_source: dict[str, list[tuple[Span, int]]] = {}
    for rank, (source, span) in enumerate(passages):
        by_source.setdefault(source, []).append((span, rank))
    found: dict[str, Sentence] = {}
    other: dict[str, Sentence] = {}
    for source, spans in by_source.items():
        for run in _runs(spans):
            taken = 0
            for s in _sentences(source, texts[source], run):
                kept = found if s.kind in _CONTENT else other
                taken += kept is found
                if most is not None and (taken if kept is found else len(other)) > most * run.passages:
                    continue
                kept.setdefault(s.text, s)
    return list((found or other).values())


def _runs(spans: Sequence[tuple[Span, int]]) -> list[_Run]:
    runs: list[_Run] = []
    for (start, end), rank in sorted(spans):
        last = runs[-1] if runs else None
        if last is None or start > last.end:
            runs.append(_Run(start, end, 1, rank))
        else:
            runs[-1] = _Run(last.start, max(end, last.end), last.passages + 1, min(rank, last.rank))
    return runs


def _sentences(source: str, page: SourceText, run: _Run) -> Iterator[Sentence]:
    """The sentences of a run of passages, with those of headings and menus."""
    text, blocks = page.text, page.blocks or (Block(0, len(page.text), "paragraph"),)
    first = bisect_right([b.end for b in blocks], run.start)
    last = bisect_left([b.start for b in blocks], run.end)
    title = next((text[b.start : b.end] for b in blocks if b.kind == "title"), "")
    heading = next((text[b.start : b.end] for b in blocks[:first][::-1] if b.kind == "heading"), "")
    for i in range(first, last):
        block = blocks[i]
        label = ""
        if block.kind == "heading":
            heading = text[block.start : block.end]
        elif block.kind == "cell" and i and blocks[i - 1].kind == "cell":
            label = text[blocks[i - 1].start : blocks[i - 1].end]
        around = " ".join(part for part in (title, heading, label[:_LABEL_CHARS]) if part)
        before = ""
        for span in _inside(text, block, run):
            said = text[slice(*span)]
            if not any(a < span[1] and span[0] < b for a, b in page.hidden):
                yield Sentence(source, span, said, block.kind, around, before, run.rank)
            before = said


def _inside(text: str, block: Block, run: _Run) -> Iterator[Span]:
    """The sentences of a block of which at least half are in the run. A block may be a whole page, so only
    the surroundings of the run are split."""
    start = max(block.start, run.start - MAX_CHARS)
    end = min(block.end, run.end + MAX_CHARS)
    for a, b in sentences(text[start:end]):
        a, b = start + a, min(start + b, start + a + MAX_CHARS)
        if 2 * (min(b, run.end) - max(a, run.start)) >= b - a and any(c.isalnum() for c in text[a:b]):
            yield a, b
