"""Both engines give FlagEmbedding's numbers, whatever the batch, the order and the length of the texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from checkout import ROOT

from raypipe.models import catalog, load
from raypipe.models.catalog import Catalog
from raypipe.models.hosts import Backend

pytestmark = pytest.mark.slow

CONF = ROOT / "conf/models.yaml"
Entries = Callable[..., Catalog]
Tiny = Callable[[str, bool], Path]
BACKENDS: tuple[Backend, ...] = ("flagembedding", "transformers")
CLOSE = 1e-5

EMBEDDERS = {
    "bert-mean": ("bert", {"loader": "flagembedding", "pooling": "mean"}),
    "bert-cls": ("bert", {"loader": "flagembedding", "pooling": "cls"}),
    "xlmr-cls": ("xlmr", {"loader": "flagembedding", "pooling": "cls"}),
    "bge-m3": ("xlmr", {"loader": "bge-m3", "pooling": "cls"}),
}


def embedder(entries: Entries, tiny: Tiny, name: str, backend: Backend, **fields: object) -> Any:
    shape, own = EMBEDDERS[name]
    entry = {
        "kind": "embedder",
        "dim": 32,
        "max_tokens": 64,
        "path": str(tiny(shape, False)),
        **own,
        **fields,
    }
    return load.open_model(entries(m=entry).model("m"), backend, "cpu")


def reranker(entries: Entries, tiny: Tiny, shape: str, backend: Backend, max_tokens: int = 64) -> Any:
    entry = {
        "kind": "reranker",
        "loader": "flagembedding-reranker",
        "max_tokens": max_tokens,
        "path": str(tiny(shape, True)),
    }
    return load.open_model(entries(m=entry).model("m"), backend, "cpu")


@pytest.mark.parametrize("name", EMBEDDERS)
def test_embedders_are_equal_under_both_engines(
    entries: Entries, tiny: Tiny, texts: list[str], name: str
) -> None:
    texts = [*texts, "", texts[0] * 10]
    flag, fast = (embedder(entries, tiny, name, e) for e in BACKENDS)
    one, two = flag.embed(texts, "passage"), fast.embed(texts, "passage")
    assert one.dtype == two.dtype == np.float32 and one.shape == (len(texts), 32)
    np.testing.assert_allclose(np.linalg.norm(two, axis=1), 1, atol=CLOSE)
    np.testing.assert_allclose(one, two, atol=CLOSE)
    assert np.abs(two @ two.T - np.eye(len(texts))).max() < 0.999, "different texts have different vectors"


@pytest.mark.parametrize("shape", ["bert", "xlmr"])
def test_rerankers_are_equal_under_both_engines(
    entries: Entries, tiny: Tiny, texts: list[str], shape: str
) -> None:
    queries = [texts[4], texts[8], texts[0] * 10]
    pairs = [(q, p) for q in queries for p in [*texts, "", texts[1] * 10]]
    flag, fast = (reranker(entries, tiny, shape, e) for e in BACKENDS)
    one, two = flag.score(pairs), fast.score(pairs)
    assert one.dtype == two.dtype == np.float32 and one.shape == (len(pairs),)
    np.testing.assert_allclose(one, two, atol=CLOSE)
    assert two.min() >= 0 and two.max() <= 1 and np.ptp(two) > 0.01


@pytest.mark.drill
def test_minilm_is_equal_under_both_engines(texts: list[str]) -> None:
    minilm = catalog.read(yaml.safe_load(CONF.read_text()), CONF).model("all-MiniLM-L6-v2")
    texts = [*texts, " ".join(texts), " ".join(texts * 3)]
    one, two = (load.open_model(minilm, e, "cpu").embed(texts, "passage") for e in BACKENDS)
    np.testing.assert_allclose(one, two, atol=CLOSE)
    near = two @ two[4]
    assert near[4] == pytest.approx(1, abs=CLOSE) and near[:4].max() < 0.5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["bert-mean", "bge-m3"])
def test_a_vector_does_not_depend_on_its_batch_or_place(
    entries: Entries, tiny: Tiny, texts: list[str], name: str, backend: Backend
) -> None:
    model = embedder(entries, tiny, name, backend)
    whole = model.embed(texts, "query")
    parts = np.concatenate([model.embed(texts[:2], "query"), model.embed(texts[2:], "query")])
    np.testing.assert_allclose(whole, parts, atol=CLOSE)
    np.testing.assert_allclose(whole[::-1], model.embed(texts[::-1], "query"), atol=CLOSE)
    np.testing.assert_allclose(whole, np.concatenate([model.embed([t], "query") for t in texts]), atol=CLOSE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_score_does_not_depend_on_its_batch_or_place(
    entries: Entries, tiny: Tiny, texts: list[str], backend: Backend
) -> None:
    model = reranker(entries, tiny, "xlmr", backend)
    pairs = [(q, p) for q in texts[3:6] for p in texts]
    whole = model.score(pairs)
    np.testing.assert_allclose(
        whole, np.concatenate([model.score(pairs[:5]), model.score(pairs[5:])]), atol=CLOSE
    )
    np.testing.assert_allclose(whole[::-1], model.score(pairs[::-1]), atol=CLOSE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_instructions_go_before_the_text_as_flagembedding_puts_them(
    entries: Entries, tiny: Tiny, texts: list[str], backend: Backend
) -> None:
    from FlagEmbedding import FlagModel

    asked, told = "Find the ship: ", "A ship's log: "
    ours = embedder(entries, tiny, "bert-cls", backend, query_instruction=asked, passage_instruction=told)
    theirs = FlagModel(
        str(tiny("bert", False)),
        query_instruction_for_retrieval=asked,
        passage_instruction_for_retrieval=told,
        use_fp16=False,
        devices="cpu",
        query_max_length=64,
        passage_max_length=64,
    )
    np.testing.assert_allclose(ours.embed(texts, "query"), theirs.encode_queries(texts), atol=CLOSE)
    np.testing.assert_allclose(ours.embed(texts, "passage"), theirs.encode_corpus(texts), atol=CLOSE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_long_texts_are_cut_at_max_tokens(
    entries: Entries, tiny: Tiny, texts: list[str], backend: Backend
) -> None:
    model = embedder(entries, tiny, "bert-mean", backend, max_tokens=16)
    long = f"{texts[0]} {texts[0]} {texts[1]}"
    changed_after_the_cut = f"{texts[0]} {texts[0]} {texts[3]}"
    vectors = model.embed([long, changed_after_the_cut, "No."], "passage")
    np.testing.assert_allclose(vectors[0], vectors[1], atol=CLOSE)


def test_bfloat16_is_another_model_and_close_to_the_first(
    entries: Entries, tiny: Tiny, texts: list[str]
) -> None:
    full = embedder(entries, tiny, "bert-mean", "transformers").embed(texts, "passage")
    brain = embedder(entries, tiny, "bert-mean", "transformers", dtype="bfloat16").embed(texts, "passage")
    np.testing.assert_allclose(np.linalg.norm(brain, axis=1), 1, atol=CLOSE)
    cosines = (full * brain).sum(1)
    assert cosines.min() > 0.995 and np.abs(full - brain).max() > CLOSE


def test_batches_of_a_gpus_size_hold_every_pair_once_and_at_most_six_percent_of_padding() -> None:
    from raypipe.models.encoder import GPU_TOKENS, by_length

    rng = np.random.default_rng(0)
    short, chunks = rng.integers(20, 90, 100), rng.normal(190, 25, 400).astype(int)
    lengths = [*short.tolist(), *np.clip(chunks, 60, 512).tolist()]
    groups = by_length(lengths, GPU_TOKENS)
    padded = [max(lengths[i] for i in group) * len(group) for group in groups]
    assert sorted(i for group in groups for i in group) == list(range(500))
    assert max(padded) <= GPU_TOKENS and len(groups) < 25
    assert 1 - sum(lengths) / sum(padded) <= 0.06
