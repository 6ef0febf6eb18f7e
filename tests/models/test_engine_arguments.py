"""Arguments of an engine are checked against vLLM's own list, and reach the engine and the identity."""

from dataclasses import replace

import pytest

from raypipe.core.digests import model_identity
from raypipe.core.errors import ConfError
from raypipe.models import catalog, vllm_terms
from raypipe.models.hosts import EngineLimits

ENTRY = {"kind": "generator", "loader": "vllm", "repo": "a/b", "revision": "0" * 40, "max_model_len": 64}


def model(tmp_path, **more):
    return catalog.read({"m": {**ENTRY, **more}}, tmp_path / "models.yaml", tmp_path).model("m")


def test_what_an_entry_says_is_identity_and_what_a_cluster_says_is_not(tmp_path):
    plain, told = model(tmp_path), model(tmp_path, engine={"block_size": 32})
    assert model_identity(plain) != model_identity(told)
    assert model_identity(told) == model_identity(model(tmp_path, engine={"block_size": 32}))
    limits = EngineLimits(engine={"block_size": 16, "disable_log_stats": False})
    given = vllm_terms.arguments(told, limits)
    assert given["block_size"] == 32, "the entry, which replies rest on, comes last"
    assert given["disable_log_stats"] is False and given["enable_prefix_caching"] is True
    assert vllm_terms.arguments(plain, replace(limits, engine={}))["disable_log_stats"] is True


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"blok_size": 16}, "vLLM has no argument 'blok_size'; did you mean 'block_size'"),
        ({"max_model_len": 99}, "raypipe sets max_model_len"),
        ({"trust_remote_code": True}, "raypipe sets trust_remote_code"),
    ],
)
def test_a_name_that_vllm_does_not_have_or_that_raypipe_sets_is_refused(given, message):
    pytest.importorskip("vllm", reason="vLLM is not installed: make setup has it")
    with pytest.raises(ConfError, match=message):
        vllm_terms.require_arguments(given, "here")


def test_every_name_that_raypipe_sets_itself_is_one_of_vllms():
    pytest.importorskip("vllm", reason="vLLM is not installed: make setup has it")
    assert (
        vllm_terms._known_arguments() >= vllm_terms.OWN_ARGUMENTS
        and "block_size" in vllm_terms._known_arguments()
    )


def test_arguments_stand_with_loader_vllm_alone(tmp_path):
    fields = {"kind": "generator", "loader": "scripted", "engine": {"block_size": 1}}
    with pytest.raises(ConfError, match="engine: expected only with loader vllm"):
        catalog.read({"m": fields}, tmp_path / "models.yaml", tmp_path)
