"""Texts into chunks of 700 characters, 100 of them shared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from bench_data import texts
from bench_rows import BenchRow, Contest
from machine import Machine

from raypipe.text.words import character_windows

SIZE, SHARED = 700, 100


@contextmanager
def contest(quick: bool, machine: Machine) -> Iterator[Contest]:
    splitters = import_module("langchain_text_splitters")  # in no list of requirements: it has no types here
    found = texts(quick)
    splitter = splitters.CharacterTextSplitter(separator=" ", chunk_size=SIZE, chunk_overlap=SHARED)

    def ours() -> list[list[str]]:
        return [[t[a:b] for a, b in character_windows(t, SIZE, SHARED)] for t in found]

    yield Contest(
        sum(map(len, found)) / 1e6,
        ours,
        lambda: [splitter.split_text(t) for t in found],
        lambda a, b: "" if a == b else "the chunks differ",
    )


ROW = BenchRow(
    "texts of the real pages into chunks of 700 characters",
    "million characters",
    contest,
    "LangChain's CharacterTextSplitter",
    least=2.5,
    needs=("langchain_text_splitters",),
)
