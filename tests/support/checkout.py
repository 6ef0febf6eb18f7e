"""Folders of this checkout that tests read."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "raypipe"
BENCH = ROOT / "bench"
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
