"""Defects put back one by one, each of which its test must catch.

    python bench/drills/defects.py

Works on a copy of this checkout. There the tests of known_defects.yaml must first pass. Then each defect is
put into its file, its test must fail, and the file is restored. A test that cannot start has caught nothing.
Prints a line for each defect, and at the end how many were caught; exit code 1 unless all were.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Defect:
    """An entry of known_defects.yaml, which explains its fields."""

    what: str
    file: str
    old: str
    new: str
    test: str


DEFECTS = tuple(
    Defect(**d) for d in yaml.safe_load(Path(__file__).with_name("known_defects.yaml").read_text())
)
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "out", "dist", "__pycache__", ".*_cache", ".hypothesis")
TIMEOUT_S = 300.0  # of a test: the slowest takes 17 s on two cores that other work shares
FAILED = 1  # pytest's status when tests ran and some failed; others mean that it could not start


def edited(root: Path, defect: Defect) -> str | None:
    """The file with the defect in it; None where its text does not stand once."""
    text = (root / defect.file).read_text(encoding="utf-8")
    return text.replace(defect.old, defect.new) if text.count(defect.old) == 1 else None


def run_tests(root: Path, tests: Sequence[str]) -> tuple[int | None, str]:
    """Exit code and output of some tests of a copy; None: they did not end in time."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env = {**own, "PYTHONPATH": str(root / "src")}
    try:
        run = subprocess.run(
            command, cwd=root, env=env, timeout=TIMEOUT_S * len(tests), capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return run.returncode, run.stdout + run.stderr


def outcome(root: Path, defect: Defect) -> str:
    """Runs the test of a defect in a copy that has it: caught, or why not."""
    if (text := edited(root, defect)) is None:
        return "no longer applies"
    file, kept = root / defect.file, root / "kept"
    file.replace(kept)  # with its time: so byte code of the edited file is never taken for that of this one
    try:
        file.write_text(text, encoding="utf-8")
        code, printed = run_tests(root, [defect.test])
    finally:
        kept.replace(file)
    if code is None:
        return f"no end within {TIMEOUT_S:g} s"
    if code == FAILED and f"\nFAILED {defect.test}" in printed:
        return "caught"
    return "not caught" if code == 0 else f"the test could not run: {printed.strip()[-2000:]}"


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--only", type=int, nargs="+", metavar="N", help="numbers of defects, from 1")
    args.add_argument("--list", action="store_true", help="list the defects and run nothing")
    args.add_argument("--json", action="store_true", help="print JSON lines")
    given = args.parse_args()
    numbers = given.only or range(1, len(DEFECTS) + 1)
    if wrong := [n for n in numbers if not 1 <= n <= len(DEFECTS)]:
        args.error(f"--only {wrong[0]}: expected numbers from 1 to {len(DEFECTS)}")
    chosen = {n: DEFECTS[n - 1] for n in numbers}

    def shown(tree: Mapping[str, object], line: str) -> None:
        print(json.dumps(tree) if given.json else line, flush=True)

    if given.list:
        for n, defect in chosen.items():
            shown({"number": n, **asdict(defect)}, f"{n:3}  {defect.file}: {defect.what}")
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="raypipe-defects-") as folder:
        root = Path(shutil.copytree(ROOT, Path(folder) / "copy", ignore=LEFT_OUT))
        tests = list(dict.fromkeys(defect.test for defect in chosen.values()))
        print(f"{len(tests)} tests without a defect", file=sys.stderr)
        code, printed = run_tests(root, tests)
        if code != 0:
            print(f"expected the tests to pass without a defect, found:\n{printed[-4000:]}", file=sys.stderr)
            return 1
        start, caught = time.monotonic(), 0
        for done, (n, defect) in enumerate(chosen.items(), start=1):
            since = time.monotonic()
            found = outcome(root, defect)
            caught += found == "caught"
            now = time.monotonic()
            seconds, left = round(now - since, 1), round((now - start) / done * (len(chosen) - done))
            tree = {
                "number": n,
                "what": defect.what,
                "test": defect.test,
                "outcome": found,
                "seconds": seconds,
            }
            shown(tree, f"{n:3}  {found}  {seconds:5.1f} s  {defect.file}: {defect.what}")
            print(f"{done}/{len(chosen)}, {timedelta(seconds=left)} to go", file=sys.stderr)
    seconds = round(time.monotonic() - began, 1)
    total = {"caught": caught, "of": len(chosen), "seconds": seconds}
    shown(total, f"{caught} of {len(chosen)} caught in {timedelta(seconds=round(seconds))}")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
