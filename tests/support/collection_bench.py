"""A small collection of papers and queries without pages of their own, and the recipe that ranks them."""

import json

import numpy as np
from reruns import FAKES, Bench

__all__ = ["RANKS", "Bench", "papers", "queries", "write_beir"]

RANKS = FAKES[: FAKES.index("  - extract:")].replace(
    "  - shortlist: {model: overlap-reranker, pages: 5}\n", ""
)


def papers(seed, count):
    """Papers of Zipf words, one in three with the same text as another."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(f"w{w % 500}" for w in rng.zipf(1.3, 40)) for _ in range(count)]
    for at in range(0, count - 1, 3):
        texts[at + 1] = texts[at]
    return [{"_id": f"p{seed}-{i}", "title": f"title {i % 5}", "text": t} for i, t in enumerate(texts)]


def queries(count):
    rng = np.random.default_rng(99)
    return [{"_id": f"q{i}", "text": " ".join(f"w{w % 500}" for w in rng.zipf(1.4, 6))} for i in range(count)]


def write_beir(folder, corpus, asked):
    """A folder that `ingest` reads as BEIR."""
    folder.mkdir(exist_ok=True)
    for name, lines in (("corpus", corpus), ("queries", asked)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    judged = [f"{q['_id']} 0 {d['_id']} 1\n" for q, d in zip(asked, corpus, strict=False)]
    (folder / "qrels.trec").write_text("".join(judged))
    return folder
