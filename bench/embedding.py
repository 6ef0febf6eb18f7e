"""An embedder next to sentence-transformers, one thread each: what two rows of the bench share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import yaml
from bench_rows import Contest
from machine import Machine

from raypipe.core.protocols import Model
from raypipe.models import catalog, load

CONF = Path(__file__).parents[1] / "conf" / "models.yaml"
CLOSE = 1e-6  # of one minus a cosine


def model(name: str) -> Model:
    return catalog.read(yaml.safe_load(CONF.read_text()), CONF).model(name)


def flops(tokens: Sequence[int], layers: int, hidden: int, inner: int) -> float:
    """Multiplications and additions of an encoder over texts of these lengths: four products of the hidden
    size and two of the inner one a token and layer, and attention's two over all tokens of the text."""
    each = 2 * (4 * hidden * hidden + 2 * hidden * inner)
    return float(sum(layers * (n * each + 4 * n * n * hidden) for n in tokens))


@contextmanager
def against_sentence_transformers(texts: list[str], machine: Machine) -> Iterator[Contest]:
    import torch
    from sentence_transformers import SentenceTransformer

    ours = load.open_model(of := model("all-MiniLM-L6-v2"), "transformers", "cpu")
    peer = SentenceTransformer(of.path, device="cpu")
    peer.max_seq_length = of.max_tokens
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    net = peer[0].auto_model.config
    tokens = [
        min(len(ids), of.max_tokens)
        for ids in peer.tokenizer(texts, truncation=False, verbose=False)["input_ids"]
    ]
    work = flops(tokens, net.num_hidden_layers, net.hidden_size, net.intermediate_size)

    def unequal(a: np.ndarray, b: np.ndarray) -> str:
        far = float((1 - (a * b).sum(axis=1)).max())
        return "" if far < CLOSE else f"one minus the cosine is up to {far:.1e}"

    try:
        yield Contest(
            len(texts),
            lambda: ours.embed(texts, "passage"),
            lambda: peer.encode(texts, batch_size=32, normalize_embeddings=True, show_progress_bar=False),
            unequal,
            machine.gemm_fp32 / (work / len(texts)),
        )
    finally:
        torch.set_num_threads(threads)
