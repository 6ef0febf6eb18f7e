"""Checks of a vLLM model's files before its engine starts, in addition to `folder.require`.

The weights must be complete, a chat template must exist, max_model_len must fit, and adapters must belong to
this very model. All checks run before an engine process exists, so that a mistake fails immediately and names
its remedy. vLLM loads most broken adapters silently. An adapter whose tensors have names with a wrong prefix
has no effect. An adapter that was trained on another base makes replies nonsense. An adapter with values that
are not finite ruins later replies of other adapters and of the base (vLLM 0.32, in both of two runs).
`marks_of` and `escape_marks` keep a chat template's special tokens out of texts, for serving and training.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.protocols import Model
from raypipe.models import folder
from raypipe.models.folder import ADAPTER, WEIGHTS, json_object, matching, text_config
from raypipe.models.weight_files import TensorHeader, folder_headers, headers

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # values of vLLM's max_lora_rank
INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""Names of LoRA initialisations that keep the base's weights, as vLLM's PEFTHelper lists them. Other
initialisations, such as pissa, change the base."""
_UNSUPPORTED = """use_dora lora_bias modules_to_save alora_invocation_tokens layer_replication use_bdlora
    use_qalora trainable_token_indices"""
UNSUPPORTED = tuple(_UNSUPPORTED.split())
"""Fields of adapter_config.json that vLLM cannot serve: they need more than a pair of factors per weight."""
FLOATS: Mapping[str, tuple[str, int]] = {
    "F32": ("<u4", 0x7F800000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
}
"""dtype -> NumPy form of its bits, and mask of the exponent: a value with all these bits is not finite."""

_KEY = re.compile(r"\Abase_model\.model\.(?P<module>.+)\.lora_(?P<factor>[AB])\.weight")
_PINNED = re.compile(r"\A(sha256:[0-9a-f]{64}|[^@\s]+@[0-9a-f]{40})")
"""Pattern of an identity of weights by digest or commit, as in `Model.weights`."""
_AGAIN = "Train it again for this base, or correct the entry in models.yaml"


def max_rank(config: Mapping[str, Any]) -> int:
    pattern = config.get("rank_pattern") or {}
    return max([int(config["r"]), *(int(r) for r in pattern.values())])


def check_adapter(name: str, folder: Path, base: Path, weights: str = "") -> None:
    """Checks the adapter in `folder`. Raises ModelMissing for missing files, and ConfError for an adapter
    that an engine would refuse or that spoils replies. `base` is the folder of the base model. `weights` is
    the identity of the base; "" means unknown."""
    where = f"adapter {name!r}: {folder}"
    if not folder.is_dir():
        raise ModelMissing(f"{where}: no such folder. Put the adapter there, or correct its path")
    config = json_object(folder / ADAPTER[0])
    file = folder / ADAPTER[1]
    if not file.is_file():
        found = "found none (pickles are never opened)"
        raise ModelMissing(f"{where}: expected {ADAPTER[1]}, {found}. Save it with safe_serialization=True")
    _check_config(where, config)
    tensors = headers(file)
    named = str(config.get("base_model_name_or_path") or "")  # counts only as a digest or commit
    if weights and _PINNED.fullmatch(named) and not weights.startswith(named):
        raise ConfError(f"{where}: expected an adapter of {weights}, found one trained on {named}. {_AGAIN}")
    pairs = _pairs(where, tensors)
    _check_modules(where, config, pairs, folder_headers(base), base)
    _check_finite(where, file, tensors)


def _check_config(where: str, config: Mapping[str, Any]) -> None:
    rank = config.get("r")
    if config.get("peft_type") != "LORA" or not isinstance(rank, int):
        raise ConfError(f"{where}: expected peft_type LORA with a rank r, found {config.get('peft_type')!r}")
    pattern = config.get("rank_pattern") or {}
    for r in (rank, *pattern.values()):
        if not isinstance(r, int) or not 1 <= r <= RANKS[-1]:
            raise ConfError(f"{where}: rank {r}: expected 1 to {RANKS[-1]}, the most that vLLM takes")
    if not isinstance(config.get("lora_alpha"), int | float) or not config.get("target_modules"):
        raise ConfError(f"{where}: expected lora_alpha and target_modules in {ADAPTER[0]}")
    if config.get("bias", "none") != "none":
        raise ConfError(f"{where}: expected bias none, found {config['bias']!r}, which vLLM does not serve")
    if odd := [f for f in UNSUPPORTED if config.get(f)]:
        raise ConfError(f"{where}: expected a plain LoRA, as vLLM serves, found {odd[0]} in {ADAPTER[0]}")
    init = config.get("init_lora_weights", True)
    if isinstance(init, str) and init.lower() not in INITS:
        convert = "Convert it to a plain LoRA (PEFT's path_initial_model_for_weight_conversion)"
        raise ConfError(f"{where}: init_lora_weights {init!r} changes the base's weights. {convert}")


def _pairs(where: str, tensors: Mapping[str, TensorHeader]) -> dict[str, dict[str, TensorHeader]]:
    """Returns the factors A and B of each module. Raises ConfError for other tensors or a missing factor."""
    pairs: dict[str, dict[str, TensorHeader]] = {}
    for key, tensor in tensors.items():
        if (found := _KEY.fullmatch(key)) is None:
            expected = "tensors named base_model.model.MODULE.lora_A.weight and lora_B"
            raise ConfError(
                f"{where}: expected {expected}, found {key!r}. Save it with PEFT's save_pretrained"
            )
        pairs.setdefault(found["module"], {})[found["factor"]] = tensor
    if not pairs:
        raise ConfError(f"{where}: expected pairs of lora_A and lora_B, found no tensor at all")
    if lone := sorted(m for m, pair in pairs.items() if len(pair) < 2):
        [factor] = pairs[lone[0]]
        raise ConfError(
            f"{where}: expected lora_A and lora_B of {lone[0]}, found only lora_{factor}. The file is "
            "incomplete: save it again"
        )
    return pairs


def _check_modules(
    where: str,
    config: Mapping[str, Any],
    pairs: Mapping[str, Mapping[str, TensorHeader]],
    weights: Mapping[str, TensorHeader],
    base: Path,
) -> None:
    """Raises ConfError if an adapter does not fit its base. Each module of the adapter must be in the base,
    have the right shapes and rank, and be named in `target_modules` of the adapter's config."""
    # Module of the base -> [outputs, inputs] of its matrix; None: packed weights, whose tensor differs.
    modules: dict[str, tuple[int, int] | None] = {}
    for name, tensor in weights.items():
        of, _, last = name.rpartition(".")
        if last == "weight" and len(tensor.shape) == 2:
            packed = tensor.dtype.startswith(("U", "I"))
            modules[of] = None if packed else (tensor.shape[0], tensor.shape[1])
        elif last in ("qweight", "weight_packed"):
            modules.setdefault(of, None)
    if strange := sorted(pairs.keys() - modules.keys()):
        found = f"{strange[0]} and {len(strange) - 1} more: another model, or another prefix of names"
        raise ConfError(f"{where}: expected modules of {base}, found {found}. {_AGAIN}")
    for module, pair in sorted(pairs.items()):
        ranks = (config.get("rank_pattern") or {}).items()  # PEFT uses the first pattern that ends the name
        matched = (int(r) for pattern, r in ranks if re.match(rf"\A(.*\.)?({pattern})$", module))
        rank = next(matched, int(config["r"]))
        a, b = pair["A"].shape, pair["B"].shape
        if len(a) != 2 or len(b) != 2 or a[0] != b[1] or a[0] != rank:
            expected = f"expected factors of rank {rank}, as {ADAPTER[0]} says"
            found = f"found shapes {list(a)} and {list(b)}"
            raise ConfError(f"{where}: {module}: {expected}, {found}: save both again")
        wanted = modules[module]
        if wanted is not None and (b[0], a[1]) != wanted:
            expected = f"expected factors of a matrix of {list(wanted)}, as in {base}, found {[b[0], a[1]]}"
            raise ConfError(f"{where}: {module}: {expected}: it is of another model. {_AGAIN}")
    _check_targets(where, config, set(pairs), modules)


def _check_targets(
    where: str, config: Mapping[str, Any], found: set[str], modules: Mapping[str, object]
) -> None:
    """Raises ConfError unless an adapter has tensors for exactly the modules that its config targets. If it
    limits layers or excludes modules, some tensors may be missing. The target all-linear allows any."""
    targets = config["target_modules"]
    if targets == "all-linear":
        return
    if isinstance(targets, str):
        meant = {m for m in modules if re.fullmatch(targets, m)}
    else:
        meant = {m for m in modules if any(m == t or m.endswith(f".{t}") for t in targets)}
    if more := sorted(found - meant):
        raise ConfError(f"{where}: target_modules of {ADAPTER[0]} do not name {more[0]}. Save both again")
    part = any(config.get(f) for f in ("layers_to_transform", "exclude_modules"))
    if not part and (lacking := sorted(meant - found)):
        raise ConfError(
            f"{where}: expected weights of each module in target_modules, found none of {lacking[0]} and "
            f"{len(lacking) - 1} more. {_AGAIN}"
        )


def _check_finite(where: str, file: Path, tensors: Mapping[str, TensorHeader]) -> None:
    if unknown := [n for n, t in tensors.items() if t.dtype not in FLOATS]:
        found = f"{tensors[unknown[0]].dtype} of {unknown[0]}"
        raise ConfError(f"{where}: expected tensors of {', '.join(FLOATS)}, found {found}. Save it again")
    stat = file.stat()
    if odd := _not_finite(str(file), stat.st_size, stat.st_mtime_ns):
        diverged = f"{odd} has values that are not finite: training diverged"
        raise ConfError(f"{where}: {diverged}. Use an earlier checkpoint")


@lru_cache(maxsize=64)
def _not_finite(path: str, size: int, mtime_ns: int) -> str:
    """Returns the name of the first tensor with a value that is not finite; "" if there is none. `size` and
    `mtime_ns` are in the cache key, so that only a changed file is read again."""
    if not size:
        return ""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    for name, tensor in headers(Path(path)).items():
        if tensor.dtype not in FLOATS:
            continue
        form, exponent = FLOATS[tensor.dtype]
        bits = np.frombuffer(data[tensor.start : tensor.end].tobytes(), dtype=form)
        if bool(((bits & exponent) == exponent).any()):
            return name
    return ""


INDEX = "model.safetensors.index.json"
TEMPLATE = "chat_template.jinja"


def check(model: Model) -> None:
    """Raises ModelMissing or ConfError if files of a vLLM model are missing or wrong."""
    place = folder.require(model)
    if (place / INDEX).is_file():
        named = set(json_object(place / INDEX).get("weight_map", {}).values())
        if missing := sorted(name for name in named if not (place / name).is_file()):
            raise ModelMissing(f"{place}: {INDEX} names {', '.join(missing)}, which are missing. Fetch them")
    for shard in matching(place, (WEIGHTS,)):
        headers(shard)  # raises if it is incomplete
    own_template = (place / TEMPLATE).is_file()
    if not own_template and not json_object(place / "tokenizer_config.json").get("chat_template"):
        remedy = f"Use its chat or instruct version, or put the template of its family in {TEMPLATE}"
        if model.repo:
            remedy = f"Fetch it again: {folder.download_command(model.repo, model.revision)}. {remedy}"
        raise ConfError(f"{place}: its tokenizer has no chat template. {remedy}")
    _check_length(model, place)
    for name, adapter in model.adapter_folders().items():
        check_adapter(name, Path(adapter), place, model.weights)


def rank(model: Model) -> int:
    """Returns vLLM's smallest `max_lora_rank` that is enough for every adapter of a model."""
    most = max(max_rank(json_object(Path(path) / ADAPTER[0])) for path in model.adapter_paths)
    return next(rank for rank in RANKS if rank >= most)


def _check_length(model: Model, place: Path) -> None:
    if model.max_model_len < 16:
        raise ConfError(f"{place}: max_model_len: expected at least 16 tokens, found {model.max_model_len}")
    text = text_config(json_object(place / "config.json"))
    most = text.get("max_position_embeddings")
    stretched = "factor" in (text.get("rope_parameters") or text.get("rope_scaling") or {})
    if isinstance(most, int) and model.max_model_len > most and not stretched:
        found = f"expected at most {most} tokens, found {model.max_model_len}"
        raise ConfError(f"{place}: max_model_len: {found}")


def marks_of(tokenizer: Any) -> re.Pattern[str]:
    """Compiles a pattern of the special tokens that a transformers tokenizer recognises in text."""
    marks = sorted({*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, marks)) or r"(?!)")


def escape_marks(marks: re.Pattern[str], content: str) -> str:
    """Inserts a space after the first character of each mark (special token), so that no text forges a turn.

    >>> escape_marks(re.compile("<.end.>"), "so <|end|> it")
    'so < |end|> it'
    """
    while found := marks.search(content):
        content = f"{content[: found.start() + 1]} {content[found.start() + 1 :]}"
    return content
