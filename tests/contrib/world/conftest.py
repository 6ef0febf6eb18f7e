from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raypipe.contrib.world import write as synth
from raypipe.contrib.world.world.world import World, build_world
from raypipe.core.textfile import json_lines


@pytest.fixture(scope="session")
def world() -> World:
    return build_world(1)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, synth.SynthSummary]:
    """120 questions with 20 pages of 2,000 characters."""
    folder = tmp_path_factory.mktemp("synth") / "small"
    return folder, synth.write(folder, 120, pages=20, seed=1, page_chars=2_000)


def load(folder: Path) -> list[dict[str, Any]]:
    return [line for p in sorted(folder.glob("*.jsonl")) for line in json_lines(p.read_bytes())]


@pytest.fixture(scope="session", name="load")
def loader() -> Any:
    """Reads the lines of a folder."""
    return load


@pytest.fixture(scope="session")
def rows(small: tuple[Path, synth.SynthSummary]) -> list[dict[str, Any]]:
    return load(small[0])
