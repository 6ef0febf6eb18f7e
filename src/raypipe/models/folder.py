"""A model's folder: its place, the identity of its contents, and the files that may be read.

Only the files in `READ` are ever shown to a model library, through a folder of links to them, and the same
files make the identity of a local folder. So pickled weights and remote code cannot be reached, whatever a
library prefers. Knows nothing of torch.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path

from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.protocols import Model

WEIGHTS = "model*.safetensors"
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
)
READ = (WEIGHTS, "model.safetensors.index.json", "config.json", *TOKENIZER)
# generation_config.json: vLLM takes from it which tokens end a reply.
GENERATOR = (*READ, "chat_template.jinja", "tokenizer.model", "generation_config.json")
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")


def matching(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    """The files of a folder whose names fit one of the patterns, by name."""
    return sorted(p for p in folder.iterdir() if any(fnmatch(p.name, pattern) for pattern in patterns))


@lru_cache(maxsize=4096)
def _sha256(path: str, size: int, mtime_ns: int) -> str:
    """Of one file; `size` and `mtime_ns` make the key, so a file is read again only when it was changed."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _read(kind: str) -> tuple[str, ...]:
    """The files that are read for a kind of model."""
    return {"tokenizer": TOKENIZER, "generator": GENERATOR, "adapter": ADAPTER}.get(kind, READ)


def size(folder: Path, kind: str) -> int:
    """Bytes of the files that are read for this kind of model."""
    return sum(path.stat().st_size for path in matching(folder, _read(kind)))


def identity(folder: Path, kind: str) -> str:
    """`sha256:...` over names and contents of the files that are read for this kind of model."""
    h = hashlib.sha256()
    for path in matching(folder, _read(kind)):
        stat = path.stat()
        h.update(f"{path.name}\0{_sha256(str(path.resolve()), stat.st_size, stat.st_mtime_ns)}\n".encode())
    return f"sha256:{h.hexdigest()}"


def snapshot(hub: Path, repo: str, revision: str) -> Path:
    """The folder in the hub's cache for a commit of a repository."""
    return hub / f"models--{repo.replace('/', '--')}" / "snapshots" / revision


def download_command(repo: str, revision: str) -> str:
    """The command that downloads the files that are read, and no others."""
    wanted = " ".join(f"--include '{p}'" for p in ("*.json", "*.txt", "*.model", WEIGHTS))
    return f"hf download {repo} --revision {revision} {wanted}"


def convert_command(folder: Path, repo: str, revision: str) -> str:
    """The command for a repository that has only pickles."""
    fetch = f"hf download {repo} pytorch_model.bin --revision {revision} && " if repo else ""
    return f"{fetch}python -m raypipe.models.convert {folder}"


def require(model: Model) -> Path:
    """The model's folder, checked. Raises ModelMissing with the command that gets it; ConfError for a folder
    that is not what its identity says, or that asks for code of its own."""
    folder = Path(model.path)
    if not folder.is_dir():
        if model.repo:
            get = f"Get it with: {download_command(model.repo, model.revision)}"
        else:
            get = "Put the folder there, or correct the entry in models.yaml"
        raise ModelMissing(
            f"model {model.name!r}: expected its files in {folder}, found no such folder. {get}"
        )
    _refuse_code(model.name, folder)
    _require_files(model, folder)
    # A worker may see another folder under the same path than the process that resolved the recipe.
    if not model.repo and not model.weights.startswith(found := identity(folder, model.kind)):
        raise ConfError(
            f"model {model.name!r}: {folder} is not what the recipe was resolved with: expected "
            f"{model.weights}, found {found}. Make the folder the same on every machine, or start again"
        )
    return folder


def _require_files(model: Model, folder: Path) -> None:
    if not (folder / "tokenizer.json").is_file():
        raise ConfError(
            f"model {model.name!r}: {folder} has no tokenizer.json. Save the tokenizer in its fast form: "
            f"AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    if model.kind == "tokenizer":
        return
    if not (folder / "config.json").is_file():
        raise ConfError(f"model {model.name!r}: {folder} has no config.json, so it is no model folder")
    if matching(folder, (WEIGHTS,)):
        return
    pickles = ", ".join(p.name for p in matching(folder, PICKLES))
    found = (
        f"pickled weights only ({pickles}), which can run code when they are opened" if pickles else "none"
    )
    raise ModelMissing(
        f"model {model.name!r}: expected weights in {folder}/model.safetensors, found {found}. If there are "
        f"only pickles, convert them once, with an unpickler that admits tensors alone: "
        f"{convert_command(folder, '' if pickles else model.repo, model.revision)}"
    )


def _refuse_code(name: str, folder: Path) -> None:
    for file in ("config.json", "tokenizer_config.json"):
        path = folder / file
        if not path.is_file():
            continue
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as e:
            raise ConfError(f"model {name!r}: {path} is not valid JSON: {e}. Fetch the folder again") from e
        if not isinstance(tree, dict):
            raise ConfError(f"model {name!r}: {path} is no JSON object. Fetch the folder again")
        if "auto_map" in tree:
            raise ConfError(
                f"model {name!r}: {path} asks for code of its own (auto_map: {tree['auto_map']}), which is "
                f"never run. Use a model whose class is in transformers"
            )


@contextmanager
def opened(model: Model) -> Iterator[str]:
    """A folder with links to the files that may be read, and nothing else, while a library loads them."""
    folder = require(model)
    with tempfile.TemporaryDirectory(prefix="raypipe-model-") as view:
        for path in matching(folder, READ):
            (Path(view) / path.name).symlink_to(path.resolve())
        yield view


def weight_names(folder: Path) -> set[str]:
    """The names of the tensors that the folder holds, from the files' headers."""
    from safetensors import safe_open

    names: set[str] = set()
    for path in matching(folder, (WEIGHTS,)):
        with safe_open(str(path), framework="numpy") as f:
            names.update(f.keys())
    return names
