"""Pickled weights and remote code are refused; a model that is not what its entry says does not load."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raypipe.core.errors import ConfError, DataError, ModelMissing
from raypipe.core.protocols import Model
from raypipe.models import folder, load
from raypipe.models.catalog import Catalog
from raypipe.models.hosts import Backend

pytestmark = pytest.mark.slow

Entries = Callable[..., Catalog]
Tiny = Callable[[str, bool], Path]
EMBEDDER = {
    "kind": "embedder",
    "loader": "flagembedding",
    "dim": 32,
    "pooling": "cls",
    "max_tokens": 64,
    "path": "m",
}
RERANKER = {"kind": "reranker", "loader": "flagembedding-reranker", "max_tokens": 64, "path": "m"}


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def test_pickled_weights_are_refused_and_converting_them_once_gives_the_same_vectors(
    entries: Entries, tiny: Tiny, tmp_path: Path, texts: list[str]
) -> None:
    import torch
    from safetensors.torch import load_file

    from raypipe.models.convert import from_pickles

    here = shutil.copytree(tiny("bert", False), tmp_path / "m")
    before = load.open_model(entries(m=EMBEDDER).model("m"), "transformers", "cpu").embed(texts, "passage")
    torch.save(load_file(here / "model.safetensors"), here / "pytorch_model.bin")
    (here / "model.safetensors").unlink()
    pickled = entries(m=EMBEDDER).model("m")
    with pytest.raises(
        ModelMissing, match=r"pickled weights only \(pytorch_model.bin\).*raypipe.models.convert"
    ):
        load.open_model(pickled, "transformers", "cpu")

    assert from_pickles(here) == [here / "model.safetensors"]
    after = load.open_model(entries(m=EMBEDDER).model("m"), "transformers", "cpu").embed(texts, "passage")
    np.testing.assert_array_equal(after, before)


def test_a_pickle_that_would_run_code_is_not_converted_and_does_not_run(tmp_path: Path) -> None:
    from raypipe.models.convert import from_pickles

    mark = tmp_path / "ran"
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"w": Bomb(mark)}))
    with pytest.raises(DataError, match="refused"):
        from_pickles(tmp_path)
    assert not mark.exists() and not (tmp_path / "model.safetensors").exists()


def test_pickles_beside_safetensors_are_never_opened(
    entries: Entries, tiny: Tiny, tmp_path: Path, texts: list[str]
) -> None:
    here = shutil.copytree(tiny("xlmr", False), tmp_path / "m")
    mark = tmp_path / "ran"
    for name in ("pytorch_model.bin", "colbert_linear.pt", "sparse_linear.pt"):
        (here / name).write_bytes(pickle.dumps(Bomb(mark)))
    model = entries(m={**EMBEDDER, "loader": "bge-m3"}).model("m")
    vectors = load.open_model(model, "flagembedding", "cpu").embed(texts, "passage")
    assert vectors.shape == (len(texts), 32) and not mark.exists()
    with folder.opened(model) as view:
        assert not [p for p in Path(view).iterdir() if p.suffix in (".bin", ".pt")]


@pytest.mark.parametrize("digest", [hashlib.sha256, lambda b: hashlib.sha1(b"blob %d\0" % len(b) + b)])
def test_a_file_of_a_hubs_snapshot_that_was_edited_or_cut_is_refused_and_a_whole_one_is_read_once(
    digest: Callable[[bytes], Any], tmp_path: Path
) -> None:
    whole, commit = b'{"model": {"vocab": ["a", "b"]}}', "c" * 40
    repo = tmp_path / "models--org--m"
    blob, snapshot = repo / "blobs" / digest(whole).hexdigest(), repo / "snapshots" / commit
    for made in (blob.parent, snapshot):
        made.mkdir(parents=True)
    blob.write_bytes(whole)
    (snapshot / "tokenizer.json").symlink_to(Path("../../blobs") / blob.name)
    model = Model("m", "tokenizer", "tokenizers", "org/m", commit, str(snapshot), f"org/m@{commit}")
    assert folder.require(model) == snapshot
    [note] = (repo / ".raypipe").iterdir()
    assert folder.require(model) == snapshot and note.name == blob.name
    for other in (whole[:-3], whole.replace(b"b", b"c")):
        blob.write_bytes(other)
        with pytest.raises(
            ConfError, match=r"tokenizer.json is not what the hub has at c+: expected contents"
        ):
            folder.require(model)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("backend", ["flagembedding", "transformers"])
def test_a_model_with_code_of_its_own_is_refused(
    entries: Entries, tiny: Tiny, tmp_path: Path, file: str, backend: Backend
) -> None:
    here = shutil.copytree(tiny("bert", False), tmp_path / "m")
    tree = json.loads((here / file).read_text())
    (here / file).write_text(json.dumps({**tree, "auto_map": {"AutoModel": "modeling_own.Own"}}))
    (here / "modeling_own.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ConfError, match=r"asks for code of its own \(auto_map.*never run"):
        load.open_model(entries(m=EMBEDDER).model("m"), backend, "cpu")


@pytest.mark.parametrize("backend", ["flagembedding", "transformers"])
def test_an_embedder_named_as_a_reranker_is_refused_instead_of_given_a_random_head(
    entries: Entries, tiny: Tiny, backend: Backend
) -> None:
    model = entries(m={**RERANKER, "path": str(tiny("bert", False))}).model("m")
    with pytest.raises(ConfError, match=r"no weights for classifier.weight and 1 more.*stay random"):
        load.open_model(model, backend, "cpu")


@pytest.mark.parametrize("backend", ["flagembedding", "transformers"])
def test_a_classifier_of_two_classes_is_no_reranker(
    entries: Entries, tiny: Tiny, tmp_path: Path, backend: Backend
) -> None:
    from transformers import BertForSequenceClassification

    here = shutil.copytree(tiny("bert", True), tmp_path / "m")
    net = BertForSequenceClassification.from_pretrained(here, num_labels=2, ignore_mismatched_sizes=True)
    net.save_pretrained(here)
    with pytest.raises(ConfError, match="one output, this one has 2"):
        load.open_model(entries(m=RERANKER).model("m"), backend, "cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": 48}, "dim is 48 in models.yaml, but its folder gives 32"),
        ({"max_tokens": 65}, "has room for 64"),
    ],
)
@pytest.mark.parametrize("shape", ["bert", "xlmr"])
def test_an_entry_that_its_weights_contradict_is_refused(
    entries: Entries, tiny: Tiny, shape: str, change: dict[str, int], message: str
) -> None:
    model = entries(m={**EMBEDDER, **change, "path": str(tiny(shape, False))}).model("m")
    with pytest.raises(ConfError, match=message):
        load.open_model(model, "transformers", "cpu")


def test_a_dtype_that_would_be_computed_as_another_is_refused(entries: Entries, tiny: Tiny) -> None:
    path = str(tiny("bert", False))
    half = entries(m={**EMBEDDER, "path": path, "dtype": "float16"}).model("m")
    for backend in ("flagembedding", "transformers"):
        with pytest.raises(ConfError, match="float16 is not computed on a CPU"):
            load.open_model(half, backend, "cpu")  # type: ignore[arg-type]
    brain = entries(m={**EMBEDDER, "path": path, "dtype": "bfloat16"}).model("m")
    with pytest.raises(ConfError, match="Use backend: transformers"):
        load.open_model(brain, "flagembedding", "cpu")


def test_a_folder_without_a_fast_tokenizer_or_with_broken_json_says_so(
    entries: Entries, tiny: Tiny, tmp_path: Path
) -> None:
    here = shutil.copytree(tiny("bert", False), tmp_path / "m")
    (here / "tokenizer.json").unlink()
    with pytest.raises(ConfError, match=r"tokenizer.json, found none.*save_pretrained"):
        folder.require(entries(m=EMBEDDER).model("m"))
    (here / "config.json").write_text("{")
    with pytest.raises(ConfError, match=r"config.json: not valid JSON"):
        folder.require(entries(m=EMBEDDER).model("m"))


def test_a_thread_that_loads_a_model_waits_for_another_and_may_open_a_second_one(
    entries: Entries, tiny: Tiny
) -> None:
    model = entries(m={**EMBEDDER, "path": str(tiny("bert", False))}).model("m")

    def config_of() -> bytes:
        with folder.opened(model) as view:
            return Path(view, "config.json").read_bytes()

    with ThreadPoolExecutor(1) as other:
        with folder.opened(model):
            waiting = other.submit(config_of)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.3)
            here = config_of()
        assert waiting.result(timeout=60) == here
