"""A dry run refuses what the eval would refuse, before Ray starts: models and judges that are not here."""

import pytest
from checkout import ROOT, SUPPORT

from raypipe.api.cli.main import main
from raypipe.store import Store

FAKES = SUPPORT / "fakes.yaml"
ABSENT = {"hash-embedder": "absent-embedder", "overlap-reranker": "absent-reranker"}
COMMIT = "0" * 40
ABSENT_REPO = f"repo: a/b, revision: '{COMMIT}'"
MODELS = f"""
absent-embedder: {{kind: embedder, loader: flagembedding, dim: 8, pooling: cls, {ABSENT_REPO}}}
absent-reranker: {{kind: reranker, loader: flagembedding-reranker, {ABSENT_REPO}}}
absent-judge: {{kind: generator, loader: vllm, {ABSENT_REPO}}}
"""


@pytest.fixture
def refused(world, tmp_path, capsys, monkeypatch):
    """The message of an eval that ends with exit code 4, dry or not, and has neither read nor written."""
    conf = ROOT / "conf"
    monkeypatch.setenv("RAYPIPE_CONF", str(conf))
    models = tmp_path / "models.yaml"
    models.write_text((conf / "models.yaml").read_text() + MODELS)

    def run(recipe, *more):
        args = ["eval", str(recipe), "--models", str(models), "--data", str(world), *more]
        args += ["--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")]
        assert main([*args, "--dry-run"]) == 4
        said = capsys.readouterr()
        assert said.out == ""
        assert main(args) == 4 and capsys.readouterr().err == said.err, "the eval says the same"
        assert not (tmp_path / "out").exists()
        if (tmp_path / "store").exists():
            assert Store.open(str(tmp_path / "store")).count("questions") == 0
        return said.err

    return run


@pytest.mark.parametrize("name", ABSENT)
@pytest.mark.slow
def test_a_model_that_is_not_here_is_exit_code_4_with_the_way_to_get_it(refused, tmp_path, name):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(FAKES.read_text().replace(name, ABSENT[name]))
    said = refused(recipe)
    assert f"model '{ABSENT[name]}'" in said and f"Get it with: hf download a/b --revision {COMMIT}" in said


@pytest.mark.slow
def test_a_judge_that_is_not_here_is_exit_code_4(refused):
    said = refused(FAKES, "--judge", "absent-judge")
    assert "model 'absent-judge'" in said and "Get it with: hf download" in said


@pytest.mark.slow
def test_a_judge_that_the_models_file_does_not_have_is_exit_code_4(refused):
    said = refused(FAKES, "--judge", "absent-judg")
    assert "--judge absent-judg: " in said and "did you mean 'absent-judge'?" in said
