"""docs/ray-data.md: its blocks run in order, and print what it shows."""

import os
import re
import subprocess
import sys

import pytest
from checkout import ROOT

PAGE = (ROOT / "docs/ray-data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|text)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.ray
def test_the_page_runs_and_prints_what_it_shows(world, tmp_path):
    script = "\n".join(text for kind, text in BLOCKS if kind == "python")
    (tmp_path / "page.py").write_text(script)
    (tmp_path / "world").symlink_to(world)
    env = {**os.environ, "RAYPIPE_HOME": str(tmp_path / "home"), "RAYPIPE_CONF": str(ROOT / "conf")}
    env |= {"PYTHONPATH": str(ROOT / "src"), "RAY_ADDRESS": "local"}
    env.pop("RAYPIPE_STORE", None)
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "".join(text for kind, text in BLOCKS if kind == "text")
