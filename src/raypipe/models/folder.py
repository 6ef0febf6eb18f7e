"""A model's folder: its place, the files that may be read, and the identity of their contents.

A library loads a model through `opened`: a folder of links to the files in `READ` and to the modules of a
sentence-transformers model. So the library cannot reach pickled weights or remote code. A local folder's
identity covers the files that the kind of model reads (`files_read`). This module needs no torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import tempfile
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.protocols import Model

WEIGHTS = "model*.safetensors"
_TOKENIZER = """tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.txt
    vocab.json merges.txt sentencepiece.bpe.model"""
TOKENIZER = tuple(_TOKENIZER.split())
SENTENCE = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json")
MODULE = ("config.json", "model.safetensors")
"""Files of sentence-transformers' models: SENTENCE in the model's folder, MODULE in each module's folder."""
MODULE_WEIGHTS = "*_*/model.safetensors"  # sentence-transformers names its modules 1_Pooling, 2_Dense, ...
SENTENCE_LOADERS = frozenset({"sentence-transformers", "instructor", "cross-encoder"})
READ = (WEIGHTS, "model.safetensors.index.json", "config.json", *TOKENIZER)
# vLLM reads from generation_config.json which tokens end a reply.
GENERATOR = (*READ, "chat_template.jinja", "tokenizer.model", "generation_config.json")
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
OLDER_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Ending of a tensor's name in old BERT files -> the ending today."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")


def matching(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted(p for p in folder.iterdir() if any(fnmatch(p.name, pattern) for pattern in patterns))


@lru_cache(maxsize=4096)
def _sha256(path: str, size: int, mtime_ns: int) -> str:
    """Hashes a file. The cache key has `size` and `mtime_ns`, so only a changed file is read again."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _read(kind: str) -> tuple[str, ...]:
    return {"tokenizer": TOKENIZER, "generator": GENERATOR, "adapter": ADAPTER}.get(kind, READ)


def is_read(name: str, kind: str) -> bool:
    """Returns whether a loader of this kind of model reads a repository's file of this name."""
    if kind in ("embedder", "reranker") and "/" in name:
        return name.rsplit("/", 1)[-1] in MODULE
    more = SENTENCE if kind in ("embedder", "reranker") else ()
    return any(fnmatch(name, pattern) for pattern in (*_read(kind), *more))


def files_read(folder: Path, kind: str, loader: str = "") -> list[Path]:
    """Returns the files of a folder that a kind of model reads, sorted by path. A loader of
    sentence-transformers also reads the files of the model's modules."""
    found = matching(folder, _read(kind))
    if loader in SENTENCE_LOADERS:
        found += matching(folder, SENTENCE)
        for module in modules(folder):
            if (inside := folder / module).is_dir() and module:
                found += matching(inside, MODULE)
    return sorted(set(found))


def modules(folder: Path) -> list[str]:
    """Returns the folders of a sentence-transformers model's modules; "" is the model's own folder. Returns
    [] without modules.json. Raises ConfError for a module with its own code, or outside `folder`."""
    path = folder / "modules.json"
    return module_folders(json_object(path, list), str(folder)) if path.is_file() else []


def module_folders(listed: Sequence[Any], folder: str) -> list[str]:
    """Returns the module folders listed in the parsed content of a modules.json. Raises as `modules`."""
    found = []
    for module in listed:
        kind, path = (str(module.get(k, "")) if isinstance(module, dict) else "" for k in ("type", "path"))
        if not kind.startswith("sentence_transformers."):
            raise ConfError(f"{folder}/modules.json asks for code of its own ({kind}), which is never run")
        if path.startswith("/") or ".." in Path(path).parts:
            raise ConfError(f"{folder}/modules.json: expected folders inside it, found {path!r}")
        found.append(path)
    return found


def poolings(config: Mapping[str, Any]) -> list[str]:
    """Returns the ways in which a module pools token vectors: cls, mean, max, ...

    >>> poolings({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}), poolings({})
    (['mean'], [])
    """
    long = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "last"}
    chosen = [name for name, value in config.items() if name.startswith("pooling_mode_") and value]
    if isinstance(named := config.get("pooling_mode"), str):
        chosen = [named]
    return [long.get(mode, mode) for mode in (name.removeprefix("pooling_mode_") for name in chosen)]


def size(folder: Path, kind: str, loader: str = "") -> int:
    return sum(path.stat().st_size for path in files_read(folder, kind, loader))


def identity(folder: Path, kind: str, loader: str = "") -> str:
    """Returns `sha256:...` over names and contents of the files that are read for a kind of model."""
    h = hashlib.sha256()
    for path in files_read(folder, kind, loader):
        stat, name = path.stat(), path.relative_to(folder).as_posix()
        h.update(f"{name}\0{_sha256(str(path.resolve()), stat.st_size, stat.st_mtime_ns)}\n".encode())
    return f"sha256:{h.hexdigest()}"


def snapshot(hub: Path, repo: str, revision: str) -> Path:
    return hub / f"models--{repo.replace('/', '--')}" / "snapshots" / revision


def download_command(repo: str, revision: str) -> str:
    """Returns the command that downloads a repository's weights, and its other files with endings (.json,
    .txt, ...) that some kind of model reads."""
    names = (*GENERATOR, *SENTENCE, *MODULE)
    endings = sorted({f"*{Path(name).suffix}" for name in names if not name.endswith(".safetensors")})
    wanted = " ".join(f"--include '{p}'" for p in (*endings, WEIGHTS, MODULE_WEIGHTS))
    return f"hf download {repo} --revision {revision} {wanted}"


def convert_command(folder: Path, repo: str, revision: str) -> str:
    """Returns the command that fetches and converts a repository that has only pickles."""
    wanted = "--include pytorch_model.bin --include '*_*/pytorch_model.bin'"  # of the model and its modules
    fetch = f"hf download {repo} --revision {revision} {wanted} && " if repo else ""
    return f"{fetch}python -m raypipe.models.convert {folder}"


def model_error(model: Model, problem: str) -> ConfError:
    return ConfError(f"model {model.name!r}: {problem}")


def require(model: Model) -> Path:
    """Returns a model's folder after checks. Raises ModelMissing, with a remedy, if the folder or its weights
    are missing. Raises ConfError if config.json or tokenizer.json is missing, or if the files ask for code of
    their own, or differ from the model's entry or identity."""
    folder = Path(model.path)
    if not folder.is_dir():
        get = "Put the folder there, or correct the entry in models.yaml"
        if model.repo:
            get = f"Get it with: {download_command(model.repo, model.revision)}"
        raise ModelMissing(f"model {model.name!r}: expected files in {folder}, found no such folder. {get}")
    names = {path.name for path in folder.iterdir() if path.is_file()}  # a link may lead nowhere
    require_loadable(f"model {model.name!r}: {folder}", names, lambda name: json_or_empty(folder / name))
    if model.kind != "tokenizer":
        if not (folder / "config.json").is_file():
            raise model_error(model, f"{folder} has no config.json: it is no model's folder")
        inside = modules(folder) if model.loader in SENTENCE_LOADERS else []
        for module in ["", *(m for m in inside if m.endswith("_Dense"))]:
            _require_weights(model, folder, folder / module)
    _require_shape(model, folder)
    if model.repo:
        _require_bytes(model, folder)
    # On a worker the same path may be another folder than where the recipe was resolved.
    found = "" if model.repo else identity(folder, model.kind, model.loader)
    if not model.weights.startswith(found):
        changed = f"is not what the recipe was resolved with: expected {model.weights}, found {found}"
        raise model_error(model, f"{folder} {changed}. Use the same folder everywhere, or start again")
    return folder


def require_loadable(where: str, files: Container[str], tree: Callable[[str], Mapping[str, Any]]) -> None:
    """Raises ConfError for a model that asks for code of its own, or has no tokenizer.json. `tree` returns
    the object in a JSON file; {} if there is no such file."""
    for name in ("config.json", "tokenizer_config.json"):
        if "auto_map" in tree(name):
            own = f"{name} asks for code of its own (auto_map), which is never run"
            raise ConfError(f"{where}: {own}. Use a model whose class is in transformers")
    if "tokenizer.json" not in files:
        save = "AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER)"
        raise ConfError(f"{where}: expected tokenizer.json, found none. Save it in its fast form: {save}")


def _require_bytes(model: Model, folder: Path) -> None:
    """Raises ConfError if a file in a hub snapshot was edited or truncated. The hub's cache names each file
    by its hash: SHA-256, or Git's SHA-1 for small files. Notes in the folder `.raypipe` of the model's cache
    record size and time of checked files, so only changed files are hashed again."""
    for path in files_read(folder, model.kind, model.loader):
        file = path.resolve()
        if file.parent.name != "blobs" or not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", file.name):
            continue  # a copy without links, whose expected hash is unknown
        stat, note = file.stat(), file.parent.parent / ".raypipe" / file.name
        written = f"{stat.st_size} {stat.st_mtime_ns}"
        if note.is_file() and note.read_text() == written:
            continue
        if len(file.name) == 64:
            found = _sha256(str(file), stat.st_size, stat.st_mtime_ns)
        else:
            found = hashlib.sha1(b"blob %d\0" % stat.st_size + file.read_bytes()).hexdigest()
        if found != file.name:
            changed = f"is not what the hub has at {model.revision}: expected contents of digest {file.name}"
            again = f"Remove {file}, then: {download_command(model.repo, model.revision)}"
            raise model_error(model, f"{path} {changed}, found {found}. {again}")
        with suppress(OSError):  # in a read-only cache each process checks again
            note.parent.mkdir(exist_ok=True)
            note.write_text(written)


def _require_weights(model: Model, folder: Path, inside: Path) -> None:
    """Raises ModelMissing if `inside`, the model's folder or a module's, has no safetensors."""
    if inside.is_dir() and matching(inside, (WEIGHTS,)):
        return
    pickles = ", ".join(p.name for p in matching(inside, PICKLES)) if inside.is_dir() else ""
    found = f"pickled weights only ({pickles}), which can run code" if pickles else "none"
    convert = convert_command(folder, "" if pickles else model.repo, model.revision)
    expected = f"model {model.name!r}: expected {inside}/model.safetensors, found {found}"
    raise ModelMissing(f"{expected}. If there are only pickles, convert them once: {convert}")


def _require_shape(model: Model, folder: Path) -> None:
    """Raises ConfError if an embedder's folder and entry disagree on dim or pooling, or if the folder has a
    prompt for queries or passages and the entry has no instruction. A loader of sentence-transformers reads
    dim and prompts itself, so only the pooling is checked."""
    if model.kind != "embedder":
        return
    found = pooling_of(folder)
    other = "or use loader sentence-transformers"
    if model.pooling and found and found != [model.pooling]:
        unlike = f"pooling is {model.pooling} in models.yaml, but its folder pools by {' and '.join(found)}"
        raise model_error(model, f"{unlike}. Correct the entry, {other}")
    if model.loader in SENTENCE_LOADERS:
        return
    prompts = json_or_empty(folder / "config_sentence_transformers.json").get("prompts") or {}
    given = {"query": model.query_instruction, "passage": model.passage_instruction}
    for name, role in (("query", "query"), ("document", "passage"), ("passage", "passage")):
        if prompts.get(name) and not given[role]:
            lacks = f"its folder puts {prompts[name]!r} before a {role}, but its entry nothing"
            raise model_error(model, f"{lacks}. Add {role}_instruction to the entry, {other}")
    width = json_object(folder / "config.json").get("hidden_size")
    if isinstance(width, int):
        require_dim(model, width)


def require_dim(model: Model, dim: int | None) -> None:
    """Raises ConfError if a folder gives vectors of another dim than the entry states."""
    if dim != model.dim:
        unlike = f"dim is {model.dim} in models.yaml, but its folder gives {dim}"
        raise model_error(model, f"{unlike}. Correct the entry, or use a folder of that model")


def pooling_of(folder: Path) -> list[str]:
    """Returns the ways in which a sentence-transformers model pools, as `poolings`; [] if unknown."""
    pooled = next((folder / p / "config.json" for p in modules(folder) if p.endswith("_Pooling")), None)
    return poolings(json_or_empty(pooled)) if pooled is not None else []


def json_object(path: Path, kind: type = dict) -> Any:
    """Reads a JSON file whose value must be of type `kind`: dict or list. Raises ModelMissing for a missing
    file, and ConfError for other content."""
    if not path.is_file():
        raise ModelMissing(f"{path.parent}: expected {path.name}, found none. Fetch the folder again")
    try:
        tree = json.loads(path.read_bytes())
    except ValueError as e:
        raise ConfError(f"{path}: not valid JSON: {e}. Fetch the folder again") from e
    if not isinstance(tree, kind):
        wanted = "object" if kind is dict else "array"
        found = f"expected a JSON {wanted}, found {type(tree).__name__}"
        raise ConfError(f"{path}: {found}. Fetch the folder again")
    return tree


def json_or_empty(path: Path) -> dict[str, Any]:
    """Reads a JSON object; returns {} if there is no file. Raises ConfError for other content."""
    tree: dict[str, Any] = json_object(path) if path.is_file() else {}
    return tree


def package_folder(package: str) -> Path | None:
    """Returns the folder of an installed Python package without importing it; None: not installed."""
    spec = importlib.util.find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the part of a config.json about text, for a multimodal model; else all of it."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


# While transformers loads a model it replaces `PreTrainedModel.tie_weights` in the whole process and restores
# it afterwards. If two threads load together, the replacement stays and models loaded later have untied
# embeddings. So only one thread loads at a time; it may open a second model while it loads the first.
_LOADING = threading.RLock()


@contextmanager
def opened(model: Model) -> Iterator[str]:
    """Yields a temporary folder that holds only links to the files that a library may read."""
    folder = require(model)
    with _LOADING, tempfile.TemporaryDirectory(prefix="raypipe-model-") as view:
        for path in files_read(folder, "", model.loader):
            link = Path(view) / path.relative_to(folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
        yield view
