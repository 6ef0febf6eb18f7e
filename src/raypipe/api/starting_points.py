"""Data to start with, and the files of a new project. The data are invented ones, such as the demo's, and the
official files of CRAG and QASPER."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from raypipe.api.results import Result
from raypipe.api.session import Session
from raypipe.core.errors import ConfError
from raypipe.core.plugins import Registry
from raypipe.core.progress import Progress, ProgressTask
from raypipe.core.textfile import require_writable
from raypipe.readers.formats import marked

DEMO = {"questions": 20, "pages": 50, "seed": 1, "page_chars": 2000}


DATASETS: Registry[Callable[..., Any]] = Registry("datasets", {}, "a function that writes a data set")
"""Name -> function that writes an invented data set. Its arguments are (folder, questions, pages=, seed=,
page_chars=, progress=). It calls `progress` with the number of finished questions and their total."""


def demo_data(session: Session | None = None, scratch: Path | None = None) -> Path:
    """Writes the invented data of the demo under $RAYPIPE_HOME, unless they exist there. Returns their
    folder. If `scratch` is a folder, missing data are written into a folder in `scratch` instead."""
    session = session or Session()
    name = "-".join(["demo", *(str(v) for v in DEMO.values())])
    folder = session.settings.home / "data" / name
    if marked(folder) is None:
        folder = folder if scratch is None else scratch / name
        with session.shown() as progress:
            task = progress.task("wrote", "questions", DEMO["questions"])
            DATASETS["synth"](folder, **DEMO, progress=lambda done, total: task.reach(done))
    return folder


def download_crag(
    folder: str | Path,
    task: Literal["1", "3"],
    version: Literal["v4", "v5"] = "v4",
    session: Session | None = None,
) -> list[Path]:
    """Downloads the official CRAG files of a task, and returns their paths.

    Task 1 has 5 pages per question (0.7 GB), task 3 has 50 (7.7 GB). v5 adds the label `popularity`; most
    published results are about v4. The next call continues a broken download. Raises DataError if the disk is
    full, if the download fails, or if a file's digest differs from the published digest.
    """
    from raypipe.readers import download  # an HTTP client

    with (session or Session()).shown() as progress:
        return download.crag(task, Path(folder), _megabytes(progress), version)


def download_qasper(folder: str | Path, session: Session | None = None) -> list[Path]:
    """Downloads and unpacks QASPER v0.3 (15 MB, CC BY 4.0). Returns the paths of its three files of
    questions: train, dev and test. Raises DataError as `download_crag` does."""
    from raypipe.readers import download  # an HTTP client

    with (session or Session()).shown() as progress:
        return download.qasper(Path(folder), _megabytes(progress))


def _megabytes(progress: Progress) -> Callable[[str, int, int], None]:
    tasks: dict[str, ProgressTask] = {}

    def show(name: str, done: int, size: int) -> None:
        if name not in tasks:
            tasks[name] = progress.task("fetched", f"MB of {name}", size >> 20)
        tasks[name].reach(done >> 20)

    return show


RECIPE = "mine"  # name of a new project's recipe, cluster file and folder of prompts

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
"""File of a project -> the file of conf that it copies."""

SERVER = """endpoints:              # servers of models; key_env: NAME is the environment variable with a key
  my-server: {url: "http://127.0.0.1:8001/v1"}
"""
"""Lines that a project's cluster file adds to the shipped one."""

SCHEMA_LINE = "# yaml-language-server:"  # begins a line that names a schema file, which a project lacks


@dataclass(frozen=True, slots=True, repr=False)
class ProjectResult(Result):
    """Files that were written. Each file is a row."""

    folder: str
    files: tuple[str, ...]  # relative to the folder

    def rows(self) -> list[Mapping[str, Any]]:
        return [{"file": file} for file in self.files]


def start_project(folder: str | Path, session: Session | None = None) -> ProjectResult:
    """Writes a recipe, its prompt, a models file, a cluster file, a step and its test into a folder. Raises
    ConfError, and writes nothing, if one of the files exists or if the folder cannot be written."""
    session = session or Session()
    root = Path(session.settings.place(str(folder), "DIR"))
    require_writable(root, "DIR")
    texts = {}
    for name, shipped in FILES.items():
        lines = session.settings.conf.file(shipped).read_text(encoding="utf-8").splitlines(keepends=True)
        texts[name] = "".join(line for line in lines if not line.startswith(SCHEMA_LINE))
    texts[f"conf/clusters/{RECIPE}.yaml"] += SERVER
    if there := [name for name in FILES if os.path.lexists(root / name)]:
        has = f"{root} has {', '.join(there)} already. Nothing was written"
        raise ConfError(f"DIR: {has}. Name another folder, or move what is there")
    for name, text in texts.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    return ProjectResult(str(root), tuple(FILES))
