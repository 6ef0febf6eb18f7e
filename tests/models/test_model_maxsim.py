"""MaxSim: every token of the query looks for its best match in the passage; rare tokens count for more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml
from checkout import ROOT

from raypipe.core.protocols import Model
from raypipe.models import catalog, load
from raypipe.models.catalog import Catalog

CONF = ROOT / "conf/models.yaml"
CLOSE = 1e-5


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def encoder_models() -> ModuleType:
    """The module, which imports torch and so is none of collection's."""
    from raypipe.models import encoder_models

    return encoder_models


@pytest.fixture
def tiny_maxsim(entries: Callable[..., Catalog], tiny: Callable[[str, bool], Path]) -> Model:
    entry = {"kind": "reranker", "loader": "maxsim", "max_tokens": 64, "path": str(tiny("bert", False))}
    return entries(m=entry).model("m")


def by_hand(model: Model, query: str, passage: str) -> float:
    """The formula, one pair at a time, from the library's own forward pass."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    from raypipe.models.encoder_models import piece_weights

    tokenizer = AutoTokenizer.from_pretrained(model.path)
    net = AutoModel.from_pretrained(model.path).eval()
    by_id = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    weights = piece_weights([piece for piece, _ in by_id])

    def tokens(text: str) -> tuple[np.ndarray, np.ndarray]:
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            vectors = net(**inputs).last_hidden_state[0, 1:-1].numpy()
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), inputs["input_ids"][0, 1:-1].numpy()

    asked, ids = tokens(query)
    held, _ = tokens(passage)
    return float((asked @ held.T).max(1) @ weights[ids] / weights[ids].sum())


def test_the_score_is_the_formula(tiny_maxsim: Model, texts: list[str]) -> None:
    pairs = [(q, p) for q in texts[3:5] for p in texts[:4]]
    scores = load.open_model(tiny_maxsim, "transformers", "cpu").score(pairs)
    np.testing.assert_allclose(scores, [by_hand(tiny_maxsim, q, p) for q, p in pairs], atol=CLOSE)


def test_a_score_depends_on_its_pair_alone(tiny_maxsim: Model, texts: list[str]) -> None:
    model = load.open_model(tiny_maxsim, "transformers", "cpu")
    pairs = [(q, p) for q in texts for p in texts]
    whole = model.score(pairs)
    np.testing.assert_allclose(whole[::-1], model.score(pairs[::-1]), atol=CLOSE)
    np.testing.assert_allclose(whole[:9], np.concatenate([model.score([p]) for p in pairs[:9]]), atol=CLOSE)
    itself = [whole[i] for i, (q, p) in enumerate(pairs) if q == p]
    np.testing.assert_allclose(itself, 1, atol=CLOSE)


def test_texts_without_tokens_or_without_words_have_a_stated_score(
    encoder_models: ModuleType, tiny_maxsim: Model, texts: list[str]
) -> None:
    model = load.open_model(tiny_maxsim, "transformers", "cpu")
    scores = model.score([("", texts[0]), (texts[0], ""), ("...", "..."), (texts[0], texts[0])])
    np.testing.assert_allclose(scores, [encoder_models.NO_TOKENS, encoder_models.NO_TOKENS, 1, 1], atol=CLOSE)


def test_rare_pieces_weigh_more_than_frequent_ones_and_punctuation_nothing(
    encoder_models: ModuleType,
) -> None:
    vocabulary = ["[PAD]", "[unused7]", "!", "a", "the", "of", "##s", "harbour", "##ousness"]
    weights = encoder_models.piece_weights(vocabulary)
    assert weights[:3].tolist() == [0, 0, 0]
    assert weights[3] == 0.5
    assert (np.diff(weights[4:]) > 0).all() and weights[4] == 0 and weights[-1] <= 1


def test_minilm_maxsim_puts_the_passage_that_answers_first_under_both_engines(texts: list[str]) -> None:
    model = catalog.read(yaml.safe_load(CONF.read_text()), CONF).model("minilm-maxsim")
    asked = {
        "At what hour does the museum open?": 6,
        "How did shares in the company that makes glass do?": 3,
        "Where does the show take place after its first season?": 2,
    }
    for backend in ("flagembedding", "transformers"):
        reranker = load.open_model(model, backend, "cpu")  # type: ignore[arg-type]
        scores = reranker.score([(q, t) for q in asked for t in texts]).reshape(len(asked), -1)
        assert scores.argmax(1).tolist() == list(asked.values())
