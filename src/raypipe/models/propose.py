"""Proposal of a models.yaml entry for a repository: its kind, loader, length, pooling, dtype and memory.

A repository is read from a hub's API over HTTP, or from a folder; only small JSON files are downloaded. A
repository with only pickles, code of its own, or a head with several outputs is refused. The proposed loader
is FlagEmbedding for the BGE family, sentence-transformers for all other embedders and cross-encoders, and
vLLM for language models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx

from raypipe.core.connections import open_client, why_failed
from raypipe.core.errors import ConfError, ModelMissing, Unavailable
from raypipe.models import folder
from raypipe.models.folder import text_config
from raypipe.models.hosts import shown
from raypipe.models.weight_files import BYTES, GIB, per_token

HUB = "https://huggingface.co"
TIMEOUT_S = 20.0
DTYPES = ("float32", "float16", "bfloat16")
LONGEST = 32_768  # most tokens of context in a proposed entry: keys and values take memory per token
_NAME = re.compile(r"\A[\w.-]+/[\w.-]+")
SMALL = ("config.json", "tokenizer_config.json", *folder.SENTENCE)
"""Files to read if they exist, in addition to the config.json of each module in modules.json."""


@dataclass(frozen=True, slots=True)
class ModelRepo:
    """A model's repository at one commit, or its folder."""

    name: str  # ORG/NAME, or the folder's path
    revision: str  # 40 hex digits; "": a folder
    files: Mapping[str, int]  # name -> bytes; -1: the hub does not tell
    trees: Mapping[str, Any]  # name -> parsed content of a small JSON file
    licence: str = ""  # as the repository states it; "": not stated
    gated: bool = False  # True: its owner must admit each reader
    parameters: int = 0  # numbers in its weights; 0: the hub does not tell

    def tree(self, name: str) -> dict[str, Any]:
        """Returns the JSON object in the small file `name`; {} if there is no such object."""
        tree = self.trees.get(name)
        return tree if isinstance(tree, dict) else {}

    @property
    def modules(self) -> list[dict[str, Any]]:
        """Modules of a sentence-transformers model, in order; [] for other models."""
        listed = self.trees.get("modules.json")
        return [m for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []


def from_folder(path: Path) -> ModelRepo:
    if not path.is_dir():
        raise ModelMissing(f"{path}: expected a model's folder, found none")
    files = {p.relative_to(path).as_posix(): p.stat().st_size for p in sorted(path.rglob("*")) if p.is_file()}
    return ModelRepo(str(path), "", files, _small(files, lambda name: (path / name).read_bytes(), str(path)))


def from_hub(name: str, revision: str | None, hub: str = HUB, token: str = "") -> ModelRepo:
    """Reads the repository `name` (ORG/NAME) from a hub. `revision` is a commit, branch or tag; None means
    the main branch. Raises ConfError for an invalid or unknown name, ModelMissing if the hub refuses this
    reader, and Unavailable if the hub fails."""
    if not _NAME.fullmatch(name):
        raise ConfError(f"{name}: expected ORG/NAME of a hub, a folder, or URL#MODEL of a server")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with open_client(httpx.Client, timeout=TIMEOUT_S, headers=headers, follow_redirects=True) as client:
        route = f"{hub}/api/models/{name}" + (f"/revision/{revision}" if revision else "")
        tree = _parsed(_get(client, f"{route}?blobs=true", name, hub).content, route)
        commit = str(tree.get("sha", "")) if isinstance(tree, dict) else ""
        if not re.fullmatch("[0-9a-f]{40}", commit):
            raise ConfError(f"{route}: expected sha, the commit, found {commit!r}. Is {hub} a model hub?")
        files = {str(s["rfilename"]): int(s.get("size") or -1) for s in tree.get("siblings") or []}

        def read(file: str) -> bytes:
            return _get(client, f"{hub}/{name}/resolve/{commit}/{file}", name, hub).content

        trees = _small(files, read, f"{hub}/{name}")
    card = tree.get("cardData") or {}
    tags = [t.removeprefix("license:") for t in tree.get("tags") or [] if str(t).startswith("license:")]
    return ModelRepo(
        name,
        commit,
        files,
        trees,
        str(card.get("license") or next(iter(tags), "")),
        bool(tree.get("gated")),
        int((tree.get("safetensors") or {}).get("total") or 0),
    )


def _small(files: Mapping[str, int], read: Callable[[str], bytes], where: str) -> dict[str, Any]:
    trees = {name: _parsed(read(name), f"{where}: {name}") for name in SMALL if name in files}
    modules = trees.get("modules.json")
    for module in modules if isinstance(modules, list) else []:
        inside = f"{module.get('path', '')}/config.json" if isinstance(module, dict) else ""
        if inside in files and inside not in trees:
            trees[inside] = _parsed(read(inside), f"{where}: {inside}")
    return trees


def _parsed(content: bytes, where: str) -> Any:
    try:
        return json.loads(content)
    except ValueError as e:
        raise ConfError(f"{where} is not valid JSON: {e}") from e


def _get(client: httpx.Client, url: str, name: str, hub: str) -> httpx.Response:
    try:
        response = client.get(url)
    except httpx.HTTPError as e:
        instead = "Run this elsewhere and copy the entry, give a folder that has the model"
        advice = f"{instead}, or name another hub in HF_ENDPOINT"
        raise Unavailable(f"{hub} cannot be reached: {why_failed(e, url)}. {advice}") from e
    if response.status_code in (401, 403):
        refuses = f"{name}: {hub} refuses it (status {response.status_code})"
        licence = f"Check the name, accept its licence at {hub}/{name}"
        raise ModelMissing(f"{refuses}. {licence}, and put a token into the environment variable HF_TOKEN")
    if response.status_code == 404:
        raise ConfError(f"{name}: {hub} has no such model or revision")
    if response.status_code != 200:
        token = client.headers.get("Authorization", "").removeprefix("Bearer ")
        raise Unavailable(f"{url}: status {response.status_code}: {shown(response.text, token)}")
    return response


@dataclass(frozen=True, slots=True)
class Proposal:
    entry: Mapping[str, Any]  # fields of models.yaml, in order
    bytes: int | None  # size of the files that are read; None: not known
    memory_gib: float | None  # GiB of the loaded weights; None: not known
    context_gib: float | None  # GiB of keys and values of one chat of full length; None: not known


def propose(repo: ModelRepo, kind: str = "") -> Proposal:
    """Proposes an entry for a repository. If `kind` is "", the files decide the kind. Raises ConfError or
    ModelMissing for a model that cannot be loaded."""
    _refuse(repo)
    config = repo.tree("config.json")
    found = kind or _kind(repo, config)
    place = {"repo": repo.name, "revision": repo.revision} if repo.revision else {"path": repo.name}
    if found == "tokenizer":
        return Proposal({"kind": found, "loader": "tokens", **place}, _bytes(repo, found), None, None)
    entry: dict[str, Any] = {"kind": found}
    if found == "embedder":
        pooled = _module(repo, "Pooling")
        ways = folder.poolings(pooled)
        # FlagEmbedding's classes for encoders of the BGE family, else sentence-transformers.
        plain = config.get("model_type") in ("bert", "xlm-roberta") and ways in (["cls"], ["mean"])
        own = "bge-m3" if "bge-m3" in repo.name.lower() else "flagembedding"
        flag = plain and _is_bge(repo)
        width = pooled.get("word_embedding_dimension") or pooled.get("embedding_dimension") or 0
        dim = _module(repo, "Dense").get("out_features") or width * max(1, len(ways))
        dim = int(dim or text_config(config).get("hidden_size") or 0)
        if not dim:
            raise ConfError(f"{repo.name}: its files do not state dim. Write the entry by hand")
        entry |= {"loader": own if flag else "sentence-transformers", **place, "dim": dim}
        if flag:
            entry["pooling"] = ways[0]
        entry["max_tokens"] = _max_tokens(repo, config)
    elif found == "reranker":
        bge = _is_bge(repo) and not repo.modules
        entry |= {"loader": "flagembedding-reranker" if bge else "cross-encoder", **place}
        entry["max_tokens"] = min(512, _max_tokens(repo, config)) if bge else _max_tokens(repo, config)
    else:
        length = int(text_config(config).get("max_position_embeddings") or 4096)
        dtype = config.get("dtype") or config.get("torch_dtype")
        entry |= {"loader": "vllm", **place, "dtype": dtype if dtype in DTYPES else "bfloat16"}
        entry["max_model_len"] = min(length, LONGEST)
    return _sized(repo, config, entry)


def _refuse(repo: ModelRepo) -> None:
    if not repo.tree("config.json"):
        raise ConfError(f"{repo.name}: expected config.json, found none: it is not a model of transformers")
    folder.require_loadable(repo.name, repo.files, repo.tree)
    folder.module_folders(repo.modules, repo.name)
    if any(fnmatch(name, folder.WEIGHTS) for name in repo.files):
        return
    pickles = sorted(n for n in repo.files if any(fnmatch(n, p) for p in folder.PICKLES))
    found = f"only pickles ({', '.join(pickles[:3])}), which can run code" if pickles else "none"
    convert = "convert it with `python -m raypipe.models.convert FOLDER`, and add the folder"
    expected = f"{repo.name}: expected model*.safetensors, found {found}"
    raise ModelMissing(f"{expected}. Download the repository, {convert}")


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
    unknown = f"its files do not state its kind ({', '.join(heads) or 'no architecture'})"
    raise ConfError(f"{repo.name}: {unknown}. Give --kind embedder, reranker or generator")


def _is_bge(repo: ModelRepo) -> bool:
    return repo.name.replace("\\", "/").rsplit("/", 1)[-1].lower().startswith("bge-")


def _module(repo: ModelRepo, kind: str) -> dict[str, Any]:
    paths = [m.get("path", "") for m in repo.modules if str(m.get("type", "")).rsplit(".", 1)[-1] == kind]
    return repo.tree(f"{paths[-1]}/config.json") if paths else {}


def _max_tokens(repo: ModelRepo, config: Mapping[str, Any]) -> int:
    """Returns max_seq_length of a sentence-transformers model, else the lowest limit that the files state."""
    if own := repo.tree("sentence_bert_config.json").get("max_seq_length"):
        return int(own)
    places = int(text_config(config).get("max_position_embeddings") or 512)
    if "roberta" in str(config.get("model_type")):  # positions start after the padding id
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
    if entry["kind"] == "generator" and "num_attention_heads" in text_config(config):
        context = per_token(dict(text_config(config)), dtype) * entry["max_model_len"] / GIB
    return Proposal(entry, _bytes(repo, entry["kind"]), None if memory is None else memory / GIB, context)
