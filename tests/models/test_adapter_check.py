"""Adapters that an engine would take in silence, or refuse after half a minute, are refused before it."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from raypipe.core.errors import ConfError, ModelMissing
from raypipe.models import catalog
from raypipe.models.generator_files import check_adapter, max_rank

LAYERS, HIDDEN, RANK = 2, 16, 4
SHAPES = {"self_attn.q_proj": (16, 16), "self_attn.v_proj": (8, 16), "mlp.up_proj": (32, 16)}
PREFIX = "base_model.model."
DIGEST = "sha256:" + "ab" * 32


def modules(layers=LAYERS):
    return [f"model.layers.{n}.{name}" for n in range(layers) for name in SHAPES]


def factors(module, rank=RANK, hidden=HIDDEN, dtype=np.float32):
    out = SHAPES[module.split(".", 3)[3]][0]
    return {
        f"{PREFIX}{module}.lora_A.weight": np.full((rank, hidden), 0.5, dtype),
        f"{PREFIX}{module}.lora_B.weight": np.full((out, rank), 0.5, dtype),
    }


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "base"
    folder.mkdir()
    tensors = {f"{m}.weight": np.zeros(SHAPES[m.split(".", 3)[3]], np.float32) for m in modules()}
    tensors |= {"model.norm.weight": np.ones(HIDDEN, np.float32), "lm_head.weight": np.zeros((9, HIDDEN))}
    halves = list(tensors)[:4], list(tensors)[4:]
    for n, names in enumerate(halves, 1):  # two shards, as large models have
        save_file({k: tensors[k] for k in names}, folder / f"model-0000{n}-of-00002.safetensors")
    return folder


@pytest.fixture
def adapter(tmp_path):
    folder = tmp_path / "adapter"
    folder.mkdir()
    save_file({k: t for m in modules() for k, t in factors(m).items()}, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 8,
        "bias": "none",
        "use_dora": False,
        "target_modules": ["q_proj", "up_proj", "v_proj"],
        "base_model_name_or_path": DIGEST,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def config(folder, **change):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


def tensors(folder, change):
    path = folder / "adapter_model.safetensors"
    found = load_file(path)
    save_file(change(found), path)


def first(found):
    return sorted(k for k in found if ".lora_A." in k)[0]


BROKEN = {
    "a wrong prefix": (
        lambda f: tensors(
            f, lambda t: {k.replace("model.layers", "language_model.layers"): v for k, v in t.items()}
        ),
        "another model, or another prefix",
    ),
    "a raw state dict": (
        lambda f: tensors(f, lambda t: {k.replace("_A.", "_A.default."): v for k, v in t.items()}),
        "tensors named base_model.model.MODULE.lora_A.weight",
    ),
    "a lone lora_A": (
        lambda f: tensors(f, lambda t: {k: v for k, v in t.items() if k != first(t).replace("_A.", "_B.")}),
        "lora_A and lora_B of .*, found only lora_A",
    ),
    "another base's widths": (
        lambda f: tensors(f, lambda t: {k: v for m in modules() for k, v in factors(m, hidden=8).items()}),
        r"matrix of \[32, 16\].*another model",
    ),
    "more layers than the base": (
        lambda f: tensors(f, lambda t: {k: v for m in modules(3) for k, v in factors(m).items()}),
        "found model.layers.2.* more: another model",
    ),
    "fewer layers than it targets": (
        lambda f: tensors(f, lambda t: {k: v for m in modules(1) for k, v in factors(m).items()}),
        "found none of model.layers.1",
    ),
    "r smaller than the tensors'": (lambda f: config(f, r=2), "factors of rank 2"),
    "NaN": (lambda f: tensors(f, lambda t: {**t, first(t): t[first(t)] * np.nan}), "not finite"),
    "infinity in half precision": (
        lambda f: tensors(f, lambda t: {k: (v * np.inf).astype(np.float16) for k, v in t.items()}),
        "not finite",
    ),
    "DoRA": (lambda f: config(f, use_dora=True), "use_dora"),
    "trained biases": (lambda f: config(f, bias="lora_only"), "bias none, found 'lora_only'"),
    "lora_bias": (lambda f: config(f, lora_bias=True), "lora_bias"),
    "saved modules": (lambda f: config(f, modules_to_save=["lm_head"]), "modules_to_save"),
    "pissa": (lambda f: config(f, init_lora_weights="pissa"), "'pissa' changes the base's weights"),
    "targets wider than the tensors": (
        lambda f: config(f, target_modules=["q_proj", "v_proj", "up_proj", "lm_head"]),
        "none of lm_head",
    ),
    "targets narrower than the tensors": (
        lambda f: config(f, target_modules=["q_proj", "v_proj"]),
        "do not name model.layers.0.mlp.up_proj",
    ),
    "a rank above the engine's limit": (lambda f: config(f, r=1024), "rank 1024: expected 1 to 512"),
    "such a rank of one module": (
        lambda f: config(f, rank_pattern={"q_proj": 600}),
        "rank 600: expected 1 to 512",
    ),
    "no alpha": (lambda f: config(f, lora_alpha=None), "expected lora_alpha"),
    "another base by digest": (
        lambda f: config(f, base_model_name_or_path="sha256:" + "cd" * 32),
        "trained on sha256:cdcd",
    ),
    "another base by commit": (
        lambda f: config(f, base_model_name_or_path="org/name@" + "0" * 40),
        "trained on org/name@000",
    ),
    "no tensor": (lambda f: tensors(f, lambda t: {}), "no tensor at all"),
    "whole numbers": (
        lambda f: tensors(f, lambda t: {k: v.astype(np.int8) for k, v in t.items()}),
        "found I8",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_adapter_is_refused_with_what_is_wrong(base, adapter, broken):
    check_adapter("web", adapter, base, DIGEST)
    spoil, said = BROKEN[broken]
    spoil(adapter)
    with pytest.raises(ConfError, match=said) as refused:
        check_adapter("web", adapter, base, DIGEST)
    assert str(refused.value).startswith(f"adapter 'web': {adapter}")


def test_a_broken_adapter_is_refused_where_a_recipe_names_its_model(base, adapter, tmp_path):
    entry = {"kind": "generator", "loader": "vllm", "path": "base", "adapters": {"web": "adapter"}}
    found = catalog.read({"m": {**entry, "max_model_len": 64}}, tmp_path / "models.yaml", tmp_path)
    with pytest.raises(ConfError, match=f"expected an adapter of sha256:.*trained on {DIGEST}"):
        found.model("m")
    config(adapter, base_model_name_or_path="../base")
    assert [name for name, _ in found.model("m").adapters] == ["web"]
    config(adapter, r=2)
    with pytest.raises(ConfError, match=f"adapter 'web': {adapter}: .*factors of rank 2"):
        found.model("m")


def test_what_vllm_serves_as_it_was_meant_is_taken(base, adapter):
    config(adapter, base_model_name_or_path="../base", use_rslora=True, init_lora_weights="gaussian")
    tensors(adapter, lambda t: {k: v.astype(np.float16) for k, v in t.items()})
    check_adapter("web", adapter, base, DIGEST)
    config(adapter, target_modules=r".*\.(q_proj|v_proj|up_proj)")
    check_adapter("web", adapter, base)
    config(adapter, rank_pattern={"mlp.up_proj": 12}, target_modules="all-linear")
    tensors(
        adapter,
        lambda t: {k: v for m in modules() for k, v in factors(m, 12 if "mlp" in m else RANK).items()},
    )
    check_adapter("web", adapter, base)
    assert max_rank(json.loads((adapter / "adapter_config.json").read_text())) == 12


def test_part_of_the_layers_is_taken_where_the_config_says_so(base, adapter):
    tensors(adapter, lambda t: {k: v for m in modules(1) for k, v in factors(m).items()})
    config(adapter, layers_to_transform=[0])
    check_adapter("web", adapter, base)


def test_a_base_in_four_bits_has_no_shapes_to_compare(base, adapter):
    for file in base.iterdir():
        packed = {
            k.replace(".weight", ".qweight") if "layers" in k else k: v.astype(np.int32)
            for k, v in load_file(file).items()
        }
        save_file(packed, file)
    check_adapter("web", adapter, base)


def test_files_that_are_missing_are_named(base, adapter, tmp_path):
    with pytest.raises(ModelMissing, match="no such folder"):
        check_adapter("web", tmp_path / "nowhere", base)
    shutil.copy(adapter / "adapter_config.json", tmp_path)
    with pytest.raises(ModelMissing, match="pickles are never opened"):
        check_adapter("web", tmp_path, base)
    whole = (adapter / "adapter_model.safetensors").read_bytes()
    (adapter / "adapter_model.safetensors").write_bytes(whole[:-10])
    with pytest.raises(ModelMissing, match="end early"):
        check_adapter("web", adapter, base)
