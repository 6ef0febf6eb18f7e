"""Writes the invented dataset to a folder, one question at a time: memory does not grow.

questions-00000.jsonl ...   one question a line; a new file after 256 MiB; read in name order
kg/NAME.parquet             the knowledge graph
synth.json                  seed, sizes, counts; written last, so that its presence says "complete"
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO

from raypipe.core.errors import ConfError
from raypipe.synth.ask.questions import Posed, pose
from raypipe.synth.pages import Pages, SearchResult
from raypipe.synth.tables import write_tables
from raypipe.synth.world.world import build_world

VERSION = 1  # raised when the same seed gives other files
PART_BYTES = 256 * 1024 * 1024
FEWEST_CHARS = 1_000  # below it, a page has no room for its frame and a fact
MANIFEST = "synth.json"


@dataclass(frozen=True, slots=True)
class SynthSummary:
    folder: Path
    questions: int
    citations: int  # search results, repeated and empty ones included
    pages: int  # distinct and not empty
    empty: int  # citations whose page is empty
    bytes: int  # of the question files
    seconds: float


def _encoded(posed: Posed, results: list[SearchResult]) -> bytes:
    """One line: the fields of the benchmark, then those that only an invented world can know."""
    asked, stated = posed.asked, any(r.states for r in results)
    tree = {
        "interaction_id": posed.id,
        "query_time": posed.now.stamp,
        "domain": posed.template.domain,
        "question_type": posed.template.type,
        "static_or_dynamic": posed.template.dynamism,
        "query": posed.text,
        "answer": asked.answer,
        "alt_ans": list(asked.alternatives),
        "split": posed.split,
        "popularity": posed.popularity,
        "kg_answerable": posed.kg_answerable,
        "premise_false": posed.premise_false,
        "answer_on_pages": stated,
        "template": f"{posed.template.id}/{posed.phrasing}",
        "kg_program": asked.program,
        "kg_rule": asked.rule if asked.program else "",
        "search_results": [
            {f.name: getattr(r, f.name) for f in fields(r) if f.name.startswith("page_")} for r in results
        ],
    }
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode()


class _Parts:
    """The question files: a line goes to the current one until that is full."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        self.names: list[str] = []
        self.bytes = 0
        self._room = 0

    def add(self, line: bytes) -> None:
        if self._file is None or self._room < len(line):
            self.close()
            self.names.append(f"questions-{len(self.names):05d}.jsonl")
            self._file, self._room = (self._folder / self.names[-1]).open("wb"), PART_BYTES
        self._file.write(line + b"\n")
        self._room -= len(line) + 1
        self.bytes += len(line) + 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _prepare(folder: Path) -> None:
    """Makes the folder, or empties it of an earlier run; anything else in it is not ours to overwrite."""
    folder.mkdir(parents=True, exist_ok=True)
    ours = {*folder.glob("questions-*.jsonl"), folder / "kg", folder / MANIFEST}
    strangers = sorted(p.name for p in folder.iterdir() if p not in ours)
    if strangers:
        raise ConfError(
            f"{folder}: expected an empty folder or an earlier dataset of this kind, found {strangers[0]!r}"
            f"{f' and {len(strangers) - 1} more' if len(strangers) > 1 else ''}. Name another folder."
        )
    (folder / MANIFEST).unlink(missing_ok=True)
    for part in folder.glob("questions-*.jsonl"):
        part.unlink()


def write(
    folder: Path,
    questions: int,
    pages: int = 50,
    seed: int = 1,
    page_chars: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SynthSummary:
    """Writes a dataset of `questions` questions with `pages` search results each about the world of `seed`.

    `page_chars` is the length of a page's HTML in characters, give or take a quarter; None gives real sizes
    (median about 250 KB). `progress` is called with (questions done, questions in all). The same arguments
    give the same bytes, and the first n questions are the same however many follow. Raises ConfError for
    sizes that make no sense and for a folder with other things in it.
    """
    if questions < 1 or pages < 1:
        raise ConfError(
            f"synth: expected at least one question and one page each, found {questions} and {pages}."
        )
    if folder.exists() and not folder.is_dir():
        raise ConfError(f"synth: expected a folder at {folder}, found a file. Name another place.")
    if page_chars is not None and page_chars < FEWEST_CHARS:
        raise ConfError(f"synth: expected page_chars of at least {FEWEST_CHARS}, found {page_chars}.")
    started = time.perf_counter()
    _prepare(folder)
    world = build_world(seed)
    tables = write_tables(world, folder / "kg")
    maker, parts, shared = Pages(world, page_chars), _Parts(folder), set[str]()
    distinct = empty = 0
    try:
        for number in range(questions):
            posed = pose(world, number)
            results = maker.results(posed, pages)
            found = {r.page_result for r in results if r.page_result}
            common = {r.page_url for r in results if r.shared and r.page_result}
            distinct += len(found) - len(common & shared)
            shared |= common
            empty += sum(not r.page_result for r in results)
            parts.add(_encoded(posed, results))
            if progress is not None:
                progress(number + 1, questions)
    finally:
        parts.close()
    manifest = {
        "version": VERSION,
        "seed": seed,
        "questions": questions,
        "pages": pages,
        "page_chars": page_chars,
        "files": parts.names,
        "tables": tables,
        "citations": questions * pages,
        "distinct_pages": distinct,
        "empty_citations": empty,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    seconds = time.perf_counter() - started
    return SynthSummary(folder, questions, questions * pages, distinct, empty, parts.bytes, seconds)
