"""A second real embedder: static vectors distilled from MiniLM, one for each token of its vocabulary.

A text's vector is the mean of its tokens', as model2vec and sentence-transformers' StaticEmbedding have
it. It knows words and no order, and searches worse than MiniLM, for a reason.
"""

import json
from pathlib import Path

import numpy as np


def distill(source: Path, folder: Path, dim: int = 128) -> Path:
    """Writes the embedder: the first principal components of each token's own vector, by its rarity."""
    import torch
    from safetensors.torch import save_file
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    net = SentenceTransformer(str(source), device="cpu", local_files_only=True)
    vectors = net.encode([w.removeprefix("##") for w in words], batch_size=1024, show_progress_bar=False)
    centred = vectors - vectors.mean(axis=0)
    _, _, parts = np.linalg.svd(centred.T @ centred)
    reduced = centred @ parts[:dim].T  # (words, dim) float32
    # BERT's vocabulary is sorted by frequency: Zipf's law gives a word's share, SIF its weight (Arora 2017).
    share = 1 / np.arange(1, len(words) + 1) / np.log(len(words))
    reduced *= (1e-3 / (1e-3 + share))[:, None]
    folder.mkdir(parents=True)
    save_file({"embedding.weight": torch.tensor(reduced, dtype=torch.float32)}, folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    kind = "sentence_transformers.models.StaticEmbedding"
    modules = [{"idx": 0, "name": "0", "path": "", "type": kind}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config.json").write_text(
        json.dumps({"hidden_size": dim, "architectures": ["StaticEmbedding"]})
    )
    return folder
