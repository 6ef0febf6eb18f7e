"""What a model's repository says about it: its commit, files, licence, and configuration.

Read from a hub's API over HTTP, or from a folder. Nothing is downloaded but small JSON files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from raypipe.core.errors import ConfError, ModelMissing, Unavailable

HUB = "https://huggingface.co"
TIMEOUT_S = 20.0
SHOWN = 200  # characters of a hub's answer in a message
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
SMALL = (
    "config.json",
    "tokenizer_config.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
)
"""Files that are read, where they are there; and the config.json of each module that modules.json names."""


@dataclass(frozen=True, slots=True)
class ModelRepo:
    """A repository of a model at one commit, or a folder."""

    name: str  # ORG/NAME, or the folder's path
    revision: str  # 40 hex digits; "": a folder
    files: Mapping[str, int]  # name -> bytes; -1 where the hub does not say
    trees: Mapping[str, Any]  # name -> content of a small JSON file
    licence: str = ""  # as the repository says it; "": it says nothing
    gated: bool = False  # whether its owner admits who may download it
    parameters: int = 0  # numbers in its weights, where the hub says; 0: it does not

    def tree(self, name: str) -> dict[str, Any]:
        """The object in a small JSON file; {} where there is none."""
        found = self.trees.get(name)
        return found if isinstance(found, dict) else {}

    @property
    def modules(self) -> list[dict[str, Any]]:
        """The modules of a sentence-transformers model, in order; [] where it is none."""
        found = self.trees.get("modules.json")
        return [m for m in found if isinstance(m, dict)] if isinstance(found, list) else []


def from_folder(path: Path) -> ModelRepo:
    if not path.is_dir():
        raise ModelMissing(f"{path}: expected a model's folder, found none")
    files = {p.relative_to(path).as_posix(): p.stat().st_size for p in sorted(path.rglob("*")) if p.is_file()}

    def read(name: str) -> bytes:
        return (path / name).read_bytes()

    return ModelRepo(str(path), "", files, _small(files, read, str(path)))


def from_hub(name: str, revision: str | None, hub: str = HUB, token: str = "") -> ModelRepo:
    """What a hub says of ORG/NAME at a commit, branch or tag; None: its main branch.

    Raises ConfError for a name that is none or is not there, ModelMissing for one whose owner has to let this
    reader in, Unavailable for a hub that cannot be reached."""
    if not _NAME.fullmatch(name):
        raise ConfError(f"{name}: expected ORG/NAME of a hub, a folder, or URL#MODEL of a server")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(timeout=TIMEOUT_S, headers=headers, follow_redirects=True) as client:
        route = f"{hub}/api/models/{name}" + (f"/revision/{revision}" if revision else "")
        tree = _json(_get(client, f"{route}?blobs=true", name, hub), route)
        commit = str(tree.get("sha", ""))
        if not re.fullmatch("[0-9a-f]{40}", commit):
            raise ConfError(f"{route}: expected sha, the commit, found {commit!r}. Is {hub} a model hub?")
        files = {str(s["rfilename"]): int(s.get("size") or -1) for s in tree.get("siblings") or []}

        def read(file: str) -> bytes:
            return _get(client, f"{hub}/{name}/resolve/{commit}/{file}", name, hub).content

        trees = _small(files, read, f"{hub}/{name}")
    card = tree.get("cardData") or {}
    tags = [t.removeprefix("license:") for t in tree.get("tags") or [] if str(t).startswith("license:")]
    return ModelRepo(
        name, commit, files, trees, str(card.get("license") or next(iter(tags), "")), bool(tree.get("gated")),
        int((tree.get("safetensors") or {}).get("total") or 0),
    )  # fmt: skip


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
        raise Unavailable(
            f"{hub} cannot be reached ({type(e).__name__}). Where it can be, run this there and copy the "
            f"entry; or give a folder that has the model; another hub: the environment variable HF_ENDPOINT"
        ) from e
    if response.status_code in (401, 403):
        raise ModelMissing(
            f"{name}: {hub} refuses it (status {response.status_code}): the name is wrong, or its owner has "
            f"to let you in. Accept its licence at {hub}/{name}, and put a token into the environment "
            f"variable HF_TOKEN"
        )
    if response.status_code == 404:
        raise ConfError(f"{name}: {hub} has no such model or revision")
    if response.status_code != 200:
        raise Unavailable(f"{url}: status {response.status_code}: {response.text[:SHOWN]!r}")
    return response


def _json(response: httpx.Response, route: str) -> dict[str, Any]:
    tree = _parsed(response.content, route)
    if not isinstance(tree, dict):
        raise ConfError(f"{route}: expected a JSON object, found {type(tree).__name__}")
    return tree
