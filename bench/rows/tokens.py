"""Texts to tokens, as an embedder makes them for a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_data import chunks
from bench_rows import BenchRow, Contest
from embedding import model
from machine import Machine
from tokenizers import Tokenizer

from raypipe.models.encoder import Encoder


@contextmanager
def contest(quick: bool, machine: Machine) -> Iterator[Contest]:
    found = chunks(quick, 8 if quick else 1000)
    of = model("all-MiniLM-L6-v2")
    ours = Encoder.load(of, "cpu").copy_of_tokenizer()
    peer = Tokenizer.from_file(str(Path(of.path) / "tokenizer.json"))
    peer.no_truncation()
    peer.no_padding()

    yield Contest(
        sum(len(e.ids) for e in ours.encode_batch_fast(found)),
        lambda: [e.ids for e in ours.encode_batch_fast(found)],
        lambda: [peer.encode(text).ids for text in found],
        lambda a, b: "" if a == b else "the tokens differ",
    )


ROW = BenchRow(
    "1,000 chunks to an embedder's tokens, all cores",
    "tokens",
    contest,
    "HF tokenizers, one thread",
    by="wall",
    least=1.8,
    needs=("tokenizers", "transformers"),
    short="The same library on all cores, so the ratio is that of the cores that are free. The workers of a "
    "job have one core each: 1.0. A cache of words was not tried here.",
)
