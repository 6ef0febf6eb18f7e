"""The stand-ins: the same files each time, small, and of the shapes that the loaders expect."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from invented import sentences

from raypipe.contrib.world import standins
from raypipe.core.errors import DataError
from raypipe.core.protocols import Model
from raypipe.models import catalog, generator_files
from raypipe.models.folder import identity

pytestmark = pytest.mark.slow

BUILD = """
import sys
from pathlib import Path
from raypipe.contrib.world import standins
standins.build(Path(sys.argv[1]), sys.stdin.read().splitlines(), seed=int(sys.argv[2]))
"""


def build_elsewhere(folder: Path, seed: int, hash_seed: str) -> None:
    """In a process of its own, where sets and dicts of strings come in another order."""
    subprocess.run(
        [sys.executable, "-c", BUILD, str(folder), str(seed)],
        input="\n".join(sentences(500)),
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )


def digests(folder: Path) -> dict[str, str]:
    files = (p for p in sorted(folder.rglob("*")) if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> standins.Standins:
    return standins.build(tmp_path_factory.mktemp("standins"), sentences(500))


@pytest.mark.drill
def test_the_same_seed_gives_the_same_files_in_any_process(built, tmp_path):
    build_elsewhere(tmp_path / "same", 0, "1")
    assert digests(tmp_path / "same") == digests(built.chat.parent)


def test_another_seed_gives_other_weights_and_the_same_tokenizers(built, tmp_path):
    other = standins.build(tmp_path, sentences(500), seed=100)
    mine, theirs = digests(built.chat.parent), digests(other.chat.parent)
    assert mine.keys() == theirs.keys()
    assert {n for n in mine if mine[n] != theirs[n]} == {n for n in mine if n.endswith(".safetensors")}


def test_the_two_adapters_differ(built):
    one, two = (identity(folder, "adapter") for _, folder in built.adapters)
    assert one != two


def test_the_chat_model_passes_the_check_before_a_start(built):
    model = check(built.chat, standins.CONTEXT, dict(built.adapters))
    assert generator_files.rank(model) == standins.ADAPTER_RANK


def test_the_chat_tokenizer_spells_every_text_exactly(built):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(built.chat)
    for text in ("two  spaces\n\nand\ttabs ", "naïve 東京 🙂", '{"a":[1,2]}', "\x00\x7f"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_chat_template_writes_roles_as_marks_and_asks_for_the_assistant(built):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(built.chat)
    chat = [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "Where?"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|begin|><|system|>Be brief.<|end|><|user|>Where?<|end|><|assistant|>"
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert ids[:2] == [standins.BEGIN, standins.SYSTEM] and ids[-1] == standins.ASSISTANT


def test_the_embedder_tells_texts_apart_and_the_reranker_orders_pairs(built):
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    texts = sentences(20, seed=3)
    tokenizer = AutoTokenizer.from_pretrained(built.embedder)
    with torch.inference_mode():
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        vectors = AutoModel.from_pretrained(built.embedder)(**batch).last_hidden_state[:, 0].numpy()
        model = AutoModelForSequenceClassification.from_pretrained(built.reranker)
        scores = model(**tokenizer(["Where?"] * 20, texts, padding=True, return_tensors="pt")).logits
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)  # (20, hidden) float32, unit rows
    assert vectors.shape == (20, standins.BERT_HIDDEN) and scores.shape == (20, 1)
    assert np.abs((units @ units.T)[~np.eye(20, dtype=bool)]).max() < 0.999
    assert len({round(float(s), 4) for s in scores[:, 0]}) == 20


def test_no_words_are_no_texts_to_train_on(tmp_path):
    with pytest.raises(DataError, match="found none"):
        standins.build(tmp_path, ["", " "])


@pytest.fixture
def copy(built, tmp_path) -> Path:
    for file in built.chat.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def edit(path: Path, **change: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


def check(folder: Path, context: int = 4096, adapters: Mapping[str, Path] = MappingProxyType({})) -> Model:
    """The model of a folder, as an entry names it, checked as before its engine starts."""
    entry = {
        "kind": "generator",
        "loader": "vllm",
        "path": str(folder),
        "max_model_len": context,
        "adapters": {name: str(path) for name, path in adapters.items()},
    }
    model = catalog.read({"m": entry}, folder / "models.yaml").model("m")
    generator_files.check(model)
    return model


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
        (lambda f: edit(f / "config.json", auto_map={"AutoModel": "x.Y"}), "code of its own"),
        (lambda f: edit(f / "tokenizer_config.json", auto_map={"A": "x.Y"}), "code of its own"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "only .pytorch_model.bin"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors, found none"),
        (lambda f: os.truncate(f / "model.safetensors", 100_000), "end early"),
        (lambda f: (f / "model.safetensors").write_bytes(b"<html>not found</html>"), "end early"),
        (lambda f: (f / generator_files.INDEX).write_text('{"weight_map": {"a": "model-2.bin"}}'), "model-2"),
        (lambda f: (f / "chat_template.jinja").unlink(), "no chat template"),
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json, found none"),
    ],
)
def test_a_folder_that_must_not_be_started_is_refused_with_what_to_do(copy, spoil, message):
    check(copy)
    spoil(copy)
    with pytest.raises(Exception, match=message) as caught:
        check(copy)
    assert type(caught.value).__name__ in ("ConfError", "ModelMissing")


def test_a_context_larger_than_the_model_is_refused_with_both_numbers(copy):
    with pytest.raises(Exception, match=f"at most {standins.CONTEXT} tokens, found 100000"):
        check(copy, context=100_000)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(Exception, match="nowhere"):
        check(tmp_path / "nowhere")


def test_an_adapter_must_be_lora_in_safetensors(built, copy, tmp_path):
    folder = tmp_path / "adapter"
    folder.mkdir()
    for file in built.adapters[0][1].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    good = {"a": folder}
    check(copy, adapters=good)
    edit(folder / "adapter_config.json", r=4096)
    with pytest.raises(Exception, match="rank 4096"):
        check(copy, adapters=good)
    edit(folder / "adapter_config.json", peft_type="PREFIX_TUNING")
    with pytest.raises(Exception, match="peft_type LORA"):
        check(copy, adapters=good)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(Exception, match="pickles are never opened"):
        check(copy, adapters=good)
    with pytest.raises(Exception, match="no folder"):
        check(copy, adapters={"b": tmp_path / "nowhere"})


def test_the_identity_of_a_folder_moves_with_its_template_and_not_with_its_notes(copy):
    before = identity(copy, "generator")
    (copy / "README.md").write_text("notes")
    assert identity(copy, "generator") == before
    for name in ("chat_template.jinja", "generation_config.json"):  # the engine reads both
        old, before = before, ""
        (copy / name).write_text("{}")
        before = identity(copy, "generator")
        assert before != old
