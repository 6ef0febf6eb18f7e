"""What conftest.py holds tests to: their markers, and that finding them costs little."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from checkout import ROOT, TESTS

STARTS = """
import os
from pathlib import Path

import pytest


@pytest.fixture
def ray():
    # What every Ray leaves that this process or one below it starts.
    Path(os.environ["RAY_TMPDIR"], "ray", f"session_{os.urandom(4).hex()}").mkdir(parents=True)


def test_without_marker(ray): ...


@pytest.mark.ray
def test_with_marker(ray): ...


def test_of_an_engine():
    Path(os.environ["TMPDIR"], "vllm_dist_1").touch()
"""
IMPORTS = """
import sys

sys.modules["torch"] = sys


def test_nothing(): ...
"""


def ran(folder, text):
    """What pytest says about a module of tests beside a copy of conftest.py."""
    shutil.copy(TESTS / "conftest.py", folder)
    (folder / "test_some.py").write_text(text)
    config = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *config, str(folder)]
    env = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    shutil.rmtree(re.search(r"logs of what tests start: (\S+)", done.stdout)[1])
    return done.stdout + done.stderr


@pytest.mark.slow
def test_an_unmarked_test_that_starts_a_ray_or_an_engine_fails(tmp_path):
    said = ran(tmp_path, STARTS)
    assert "3 passed, 2 errors" in said
    assert "::test_without_marker - Failed: it starts what the marker `ray`" in said
    assert "::test_of_an_engine - Failed: it starts what the marker `engine`" in said


@pytest.mark.slow
def test_a_module_of_tests_that_imports_a_heavy_library_is_refused(tmp_path):
    assert "a test module imports torch: import it where it is used" in ran(tmp_path, IMPORTS)
