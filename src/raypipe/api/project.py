"""A project of one's own: the files that it begins with, in a folder that may be there already."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from raypipe.api.results import Result
from raypipe.api.session import Session
from raypipe.core.errors import ConfError
from raypipe.metrics.textfile import require_writable

RECIPE = "mine"
"""Name of the recipe, the cluster file and the folder of prompts."""

FILES: Mapping[str, str] = MappingProxyType(
    {
        "README.md": "project/README.md",
        f"conf/recipes/{RECIPE}.yaml": "project/recipe.yaml",
        f"conf/prompts/{RECIPE}/answer.yaml": "prompts/rag/answer.yaml",
        "conf/models.yaml": "project/models.yaml",
        f"conf/clusters/{RECIPE}.yaml": "clusters/laptop.yaml",
        "mysteps.py": "project/mysteps.py",
        "test_mysteps.py": "project/test_mysteps.py",
    }
)
"""File of a project -> the file of conf that it is a copy of."""

SERVER = """endpoints:              # servers of models; key_env: NAME is the environment variable with a key
  my-server: {url: "http://127.0.0.1:8001/v1"}
"""
"""What a project's cluster file has besides the shipped one."""

SCHEMA_LINE = "# yaml-language-server:"  # names a file that a project does not have


@dataclass(frozen=True, slots=True)
class ProjectResult(Result):
    """The files that were written; a row for each."""

    SCHEMA = "file"
    TITLE = "{0.folder}: {1} files"
    folder: str
    files: tuple[str, ...]  # relative to the folder

    def rows(self) -> list[Mapping[str, Any]]:
        return [{"file": file} for file in self.files]


def start_project(folder: str | Path, session: Session | None = None) -> ProjectResult:
    """Writes a recipe, its prompt, a models file, a cluster file, a step and its test into a folder.

    Raises ConfError, and writes nothing, where one of the files is there already or the folder cannot be
    written.
    """
    session = session or Session()
    root = Path(session.settings.place(str(folder), "DIR"))
    require_writable(root, "DIR")
    texts = {}
    for name, shipped in FILES.items():
        lines = session.settings.conf.file(shipped).read_text(encoding="utf-8").splitlines(keepends=True)
        texts[name] = "".join(line for line in lines if not line.startswith(SCHEMA_LINE))
    texts[f"conf/clusters/{RECIPE}.yaml"] += SERVER
    if there := [name for name in FILES if os.path.lexists(root / name)]:
        raise ConfError(
            f"DIR: {root} has {', '.join(there)} already. Nothing was written: files are never "
            f"replaced. Name another folder, or move what is there"
        )
    for name, text in texts.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    return ProjectResult(str(root), tuple(FILES))
