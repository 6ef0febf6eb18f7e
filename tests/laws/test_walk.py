"""The walks of a value: the files whose functions are handed it, in the order in which they first are.

A file counts where a call of one of its functions has the value among its arguments, whole or inside a
record, a list or a mapping. `python tests/laws/test_walk.py` prints the walks whose lengths are in
docs/architecture.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

SUPPORT = Path(__file__).parents[1] / "support"
SRC = Path(__file__).parents[2] / "src" / "raypipe"
DEPTH = 6  # of records in records

RECIPE = ["--models", str(SUPPORT / "fake_models.yaml")]
LINE = {
    "interaction_id": "q",
    "query": "who wrote zyxwv?",
    "query_time": "03/05/2024, 23:18:31 PT",
    "answer": "Ada",
    "search_results": [
        {
            "page_name": "a",
            "page_url": "http://a",
            "page_snippet": "b",
            "page_last_modified": "",
            "page_result": "<p>Ada wrote vwxyz in 1843.</p>",
        }
    ],
}


def holds(value: Any, mark: str, depth: int = 0) -> bool:
    """Whether a value is, or has in it, a text or number with a mark."""
    if isinstance(value, str | int | float):
        return mark in str(value)
    if depth > DEPTH:
        return False
    inner: Any = ()
    if isinstance(value, list | tuple):
        inner = value
    elif type(value) is dict:
        inner = value.values()
    elif isinstance(value, argparse.Namespace):
        inner = vars(value).values()
    elif dataclasses.is_dataclass(value) and type(value).__name__ != "Settings":
        inner = (getattr(value, f.name, None) for f in dataclasses.fields(value))
    return any(holds(x, mark, depth + 1) for x in inner)


@contextlib.contextmanager
def walked(mark: str, until: str = "") -> Iterator[dict[str, str]]:
    """File -> the first function of it that is handed what bears the mark, in a block; no more once a call
    is in the file `until`."""
    files: dict[str, str] = {}

    def see(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(SRC)) or until in files:
            return
        file = str(Path(code.co_filename).relative_to(SRC))
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        if file not in files and any(
            holds(frame.f_locals.get(name), mark) for name in code.co_varnames[:count]
        ):
            files[file] = code.co_name

    sys.setprofile(see)
    try:
        yield files
    finally:
        sys.setprofile(None)


def ask(folder: Path, *more: str) -> None:
    """Asks a question about the page of a file, in this process."""
    from raypipe.api.cli.main import main

    pages = folder / "asked.jsonl"
    pages.write_text(json.dumps(LINE) + "\n")
    given = ["ask", str(SUPPORT / "fakes.yaml"), LINE["query"], "--pages", str(pages), *RECIPE, *more]
    assert main(list(map(str, given))) == 0


def walk_of_a_setting(folder: Path) -> dict[str, str]:
    """From `--set` to the step that it changes."""
    with walked("407", until="steps/split.py") as files:
        ask(folder, "--set", "split.child_chars=407")
    return files


def walk_of_a_question(folder: Path) -> dict[str, str]:
    with walked("zyxwv") as files:
        ask(folder)
    return files


def walk_of_a_page(folder: Path) -> dict[str, str]:
    with walked("vwxyz") as files:
        ask(folder)
    return files


def walk_of_a_request(folder: Path) -> dict[str, str]:
    """Through an endpoint, with pages of its own."""
    from http_app import ask as post
    from http_app import served

    from raypipe.api.session import load_recipe
    from raypipe.models.kit import LocalKit
    from raypipe.serving.answerer import Answerer

    recipe = load_recipe(str(SUPPORT / "fakes.yaml"), RECIPE[1])
    app = served(Answerer(recipe, LocalKit(None, "transformers"), str(folder / "none")))
    with walked("zyxwv") as files:
        reply = post(app, {"query": LINE["query"], "documents": LINE["search_results"]})
    assert reply.status_code == 200, reply.text
    return files


WALKS: Mapping[str, Callable[[Path], dict[str, str]]] = {
    "a setting": walk_of_a_setting,
    "a question": walk_of_a_question,
    "a page": walk_of_a_page,
    "a request": walk_of_a_request,
}


def test_a_setting_passes_at_most_twelve_files_on_its_way_to_its_step():
    """In a process of its own: what other tests left in this one may end the profile."""
    env = {**os.environ, "PYTHONPATH": str(SRC.parent)}
    done = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    walk = done.stdout.partition("a setting: ")[2].partition("a question: ")[0]
    assert "  steps/split.py " in walk and walk.count("\n") - 1 <= 12, walk


if __name__ == "__main__":
    import tempfile

    sys.path.insert(0, str(SUPPORT))
    for name, walk in WALKS.items():
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
            files = walk(Path(folder))
        print(f"{name}: {len(files)} files")
        for file, function in files.items():
            print(f"  {file} {function}")
