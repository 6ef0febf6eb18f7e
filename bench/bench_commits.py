"""Measures rows of two commits by turns, for `raypipe bench --against`: a process for each turn.

The files of the other commit are unpacked into a temporary folder. Both commits run with the packages of this
environment.
"""

from __future__ import annotations

import compileall
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from raypipe.api.bench import CommitReport, RowChange, Spread
from raypipe.core.environment import commit_of
from raypipe.core.errors import ConfError

PAIRS = 3  # turns of each commit: each is itself a median of a row's own turns


def run(
    root: Path, names: Sequence[str], commit: str, quick: bool, say: Callable[[RowChange], None]
) -> CommitReport:
    """Compares the rows of the checkout at `root` with those of a commit. Raises ConfError for no commit."""
    before = _git(root, commit, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}").decode().strip()
    with tempfile.TemporaryDirectory(prefix="raypipe-bench-") as scratch:
        other = Path(scratch)
        with tarfile.open(fileobj=io.BytesIO(_git(root, commit, "archive", before))) as tar:
            tar.extractall(other, filter="data")
        compileall.compile_dir(other / "src", quiet=2)  # else a first turn would compile what it imports
        results = []
        for name in names:
            results.append(_row(root, other, name, quick))
            say(results[-1])
    day, now = time.strftime("%Y-%m-%d"), commit_of(root)
    lines = (
        f"{day}, commit {now[:12]} against {before[:12]}, by turns: {1 if quick else PAIRS} of each.",
        "",
        "| row | seconds before | now | before / now (lowest - highest) |",
        "|---|---|---|---|",
        *map(_line, results),
    )
    return CommitReport(day, now, before, quick, tuple(results), lines)


def _git(root: Path, commit: str, *words: str) -> bytes:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True)
    if done.returncode:
        why = done.stderr.decode().strip()
        raise ConfError(f"--against: expected a commit of {root}, found {commit!r} {why}".rstrip())
    return done.stdout


def _row(root: Path, other: Path, name: str, quick: bool) -> RowChange:
    if not (other / "bench" / "rows" / f"{name}.py").is_file():
        return RowChange(name, "", "the other commit has no such row")
    turns: list[tuple[Any, Any]] = []
    for pair in range(1 if quick else PAIRS):
        order = (other, root) if pair % 2 == 0 else (root, other)
        came = {tree: _measured(tree, name, quick) for tree in order}
        turns.append((came[other], came[root]))
        if why := next((r["not_measured"] for r in turns[-1] if r["not_measured"]), ""):
            return RowChange(name, turns[-1][1]["by"], why)
    seconds = [(a["seconds"]["median"], b["seconds"]["median"]) for a, b in turns]
    before, now = (Spread.of([pair[i] for pair in seconds]) for i in (0, 1))
    return RowChange(name, turns[0][1]["by"], "", before, now, Spread.of([a / b for a, b in seconds]))


def _measured(tree: Path, name: str, quick: bool) -> dict[str, Any]:
    """Returns a row as the code of a tree measures it."""
    command = [sys.executable, "-m", "raypipe", "bench", name, "--json", *["--quick"] * quick]
    env = {**os.environ, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    try:
        result: dict[str, Any] = json.loads(done.stdout)["results"][0]
    except (ValueError, LookupError):
        return {"not_measured": f"exit code {done.returncode}: {done.stderr.strip()[-200:]}", "by": ""}
    return result


def _line(r: RowChange) -> str:
    if r.ratio is None or r.before is None or r.now is None:
        return f"| `{r.name}` | | | {r.not_measured} |"
    ratio = f"{r.ratio.median:.2f} ({r.ratio.low:.2f} - {r.ratio.high:.2f}), {r.by}"
    return f"| `{r.name}` | {r.before.median:.3g} | {r.now.median:.3g} | {ratio} |"
