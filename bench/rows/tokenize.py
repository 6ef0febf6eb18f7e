"""Texts to tokens, as they are counted for splits and budgets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_data import chunks
from embedding import model
from tokenizers import Tokenizer

from raypipe.api.bench import BenchRow, Contest
from raypipe.models import load
from raypipe.models.machine_limits import Machine


@contextmanager
def contest(quick: bool, machine: Machine) -> Iterator[Contest]:
    found = chunks(quick, 8 if quick else 1000)
    of = model("minilm-tokens")
    spans, peer = load.open_tokenizer(of), Tokenizer.from_file(str(Path(of.path) / "tokenizer.json"))
    peer.no_truncation()
    peer.no_padding()
    tokens = sum(len(spans(t)) for t in found)

    def theirs() -> list[list[tuple[int, int]]]:
        return [peer.encode(t, add_special_tokens=False).offsets for t in found]

    yield Contest(
        tokens,
        lambda: [spans(t) for t in found],
        theirs,
        lambda a, b: "" if a == b else "the tokens differ",
    )


ROW = BenchRow(
    "1,000 chunks to tokens",
    "tokens",
    contest,
    "HF tokenizers, one thread",
    least=1.8,
    needs=("tokenizers",),
    short="SHORT_TOKENIZE",
)
