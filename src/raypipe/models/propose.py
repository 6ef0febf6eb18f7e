"""An entry of models.yaml for a repository: its kind, loader, length, pooling, dtype and memory.

What cannot be loaded is refused here, with the file that says so: pickles alone, code of its own, a head with
several outputs. FlagEmbedding loads the BGE family, sentence-transformers all other embedders and
cross-encoders, vLLM language models. Reads `repo.ModelRepo` and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from raypipe.core.errors import ConfError, ModelMissing
from raypipe.models import folder
from raypipe.models.repo import ModelRepo
from raypipe.models.weight_files import BYTES, GIB, per_token

DTYPES = ("float32", "float16", "bfloat16")
LONGEST = 32_768  # tokens of context that an entry proposes at most: keys and values take memory by the token


@dataclass(frozen=True, slots=True)
class Proposal:
    entry: Mapping[str, Any]  # fields of models.yaml, in order
    bytes: int | None  # of the files that are read; None: not known
    memory_gib: float | None  # of its weights, once loaded; None: not known
    context_gib: float | None  # keys and values of one reply of full length; None: not a language model


def propose(repo: ModelRepo, kind: str = "") -> Proposal:
    """The entry of a repository. `kind` decides where its files leave it open. Raises ConfError and
    ModelMissing."""
    _refuse(repo)
    config = repo.tree("config.json")
    found = kind or _kind(repo, config)
    place = {"repo": repo.name, "revision": repo.revision} if repo.revision else {"path": repo.name}
    if found == "tokenizer":
        return Proposal({"kind": found, "loader": "tokens", **place}, _bytes(repo, found), None, None)
    entry: dict[str, Any] = {"kind": found}
    if found == "embedder":
        entry |= {"loader": _embedding_loader(repo), **place, "dim": _dim(repo, config)}
        if entry["loader"] != "sentence-transformers":
            entry["pooling"] = _pooling(repo)
        entry["max_tokens"] = _max_tokens(repo, config)
    elif found == "reranker":
        bge = _is_bge(repo) and not repo.modules
        entry |= {"loader": "flagembedding-reranker" if bge else "cross-encoder", **place}
        entry["max_tokens"] = min(512, _max_tokens(repo, config)) if bge else _max_tokens(repo, config)
    else:
        length = int(_text_config(config).get("max_position_embeddings") or 4096)
        dtype = config.get("dtype") or config.get("torch_dtype")
        entry |= {"loader": "vllm", **place, "dtype": dtype if dtype in DTYPES else "bfloat16"}
        entry["max_model_len"] = min(length, LONGEST)
    return _sized(repo, config, entry)


def _refuse(repo: ModelRepo) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        if "auto_map" in repo.tree(name):
            raise ConfError(
                f"{repo.name}: {name} asks for code of its own (auto_map), which is never run. Use a model "
                f"whose class is in transformers"
            )
    for module in repo.modules:
        if not str(module.get("type", "")).startswith("sentence_transformers."):
            raise ConfError(
                f"{repo.name}: modules.json asks for code of its own ({module.get('type')}), which is never "
                f"run"
            )
    if not repo.tree("config.json"):
        raise ConfError(f"{repo.name}: expected config.json, found none: it is no model of transformers")
    if "tokenizer.json" not in repo.files:
        raise ConfError(
            f"{repo.name}: expected tokenizer.json, found none. Save its tokenizer in the fast form, with "
            f"AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER), and add the folder"
        )
    if any(fnmatch(name, folder.WEIGHTS) for name in repo.files):
        return
    pickles = sorted(n for n in repo.files if any(fnmatch(n, p) for p in folder.PICKLES))
    found = f"pickles alone ({', '.join(pickles[:3])}), which can run code when opened" if pickles else "none"
    raise ModelMissing(
        f"{repo.name}: expected weights as model*.safetensors, found {found}. Download it, convert it once "
        f"with `python -m raypipe.models.convert FOLDER`, and add the folder"
    )


def _kind(repo: ModelRepo, config: Mapping[str, Any]) -> str:
    heads = [str(a) for a in config.get("architectures") or []]
    if any(h.endswith("ForSequenceClassification") for h in heads):
        labels = len(config.get("id2label") or {}) or int(config.get("num_labels") or 2)
        if labels != 1:
            raise ConfError(f"{repo.name}: a reranker has one output, this one has {labels}: a classifier")
        return "reranker"
    if any("LogitScore" in str(m.get("type")) for m in repo.modules):
        return "reranker"
    if repo.modules:
        return "embedder"
    if any(h.endswith(("ForCausalLM", "ForConditionalGeneration")) for h in heads):
        return "generator"
    if _is_bge(repo):
        return "embedder"
    raise ConfError(
        f"{repo.name}: its files do not say what it is ({', '.join(heads) or 'no architecture'}). Say --kind "
        f"embedder, reranker or generator"
    )


def _is_bge(repo: ModelRepo) -> bool:
    return repo.name.replace("\\", "/").rsplit("/", 1)[-1].lower().startswith("bge-")


def _embedding_loader(repo: ModelRepo) -> str:
    """FlagEmbedding's classes where its encoders of the BGE family are meant, else the folder's own."""
    plain = repo.tree("config.json").get("model_type") in ("bert", "xlm-roberta")
    if not (_is_bge(repo) and plain and _pooling(repo) in ("cls", "mean")):
        return "sentence-transformers"
    return "bge-m3" if "bge-m3" in repo.name.lower() else "flagembedding"


def _module(repo: ModelRepo, kind: str) -> dict[str, Any]:
    paths = [m.get("path", "") for m in repo.modules if str(m.get("type", "")).rsplit(".", 1)[-1] == kind]
    return repo.tree(f"{paths[-1]}/config.json") if paths else {}


def _pooling(repo: ModelRepo) -> str:
    """The name of the one way in which token vectors are pooled; "": several, or another."""
    found = folder.poolings(_module(repo, "Pooling"))
    return found[0] if len(found) == 1 else ""


def _dim(repo: ModelRepo, config: Mapping[str, Any]) -> int:
    pooled = _module(repo, "Pooling")
    dim = _module(repo, "Dense").get("out_features")
    dim = dim or (pooled.get("word_embedding_dimension") or pooled.get("embedding_dimension") or 0) * max(
        1, len(folder.poolings(pooled))
    )
    dim = dim or _text_config(config).get("hidden_size") or 0
    if not dim:
        raise ConfError(
            f"{repo.name}: its files do not say how long its vectors are. Write the entry by hand"
        )
    return int(dim)


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def _max_tokens(repo: ModelRepo, config: Mapping[str, Any]) -> int:
    """The length that a sentence-transformers model says, else what positions and tokenizer allow."""
    if own := repo.tree("sentence_bert_config.json").get("max_seq_length"):
        return int(own)
    places = int(_text_config(config).get("max_position_embeddings") or 512)
    if "roberta" in str(config.get("model_type")):  # it counts positions from the padding id on
        places -= int(config.get("pad_token_id") or 1) + 1
    limit = repo.tree("tokenizer_config.json").get("model_max_length")
    return min(places, int(limit)) if isinstance(limit, int | float) and limit < 1e9 else places


def _bytes(repo: ModelRepo, kind: str) -> int | None:
    sizes = [size for name, size in repo.files.items() if folder.is_read(name, kind)]
    return None if any(size < 0 for size in sizes) else sum(sizes)


def _sized(repo: ModelRepo, config: Mapping[str, Any], entry: dict[str, Any]) -> Proposal:
    weights = [size for name, size in repo.files.items() if fnmatch(name, folder.WEIGHTS)]
    stored = None if any(size < 0 for size in weights) else sum(weights)
    dtype = str(entry.get("dtype", "float32"))
    memory = repo.parameters * BYTES[dtype] if repo.parameters else stored
    if config.get("quantization_config"):
        memory = stored
    elif not repo.parameters and stored is not None:
        was = str(config.get("dtype") or config.get("torch_dtype") or dtype)
        memory = stored * BYTES[dtype] // BYTES.get(was, BYTES[dtype])
    context = None
    if entry["kind"] == "generator" and "num_attention_heads" in _text_config(config):
        context = per_token(dict(_text_config(config)), dtype) * entry["max_model_len"] / GIB
    return Proposal(entry, _bytes(repo, entry["kind"]), None if memory is None else memory / GIB, context)
