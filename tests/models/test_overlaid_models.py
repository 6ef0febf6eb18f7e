"""`--models FILE`: its entries are laid over the shipped ones; the entry of docs/models.md works as it is."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from chat_server import serving
from checkout import ROOT

from raypipe.api.cli.main import main
from raypipe.api.session import Session, from_environment
from raypipe.core.conf import Conf
from raypipe.core.errors import ConfError

CONF = Conf((ROOT / "conf",))
SETTINGS = replace(from_environment(), conf=CONF)
PAGE = (ROOT / "docs/models.md").read_text(encoding="utf-8")
FORMATS = (ROOT / "docs/formats.md").read_text(encoding="utf-8")


def laid_over(tmp_path, text):
    (tmp_path / "own.yaml").write_text(text)
    return Session(SETTINGS, models=str(tmp_path / "own.yaml")).catalog()


def test_entries_of_a_models_file_are_laid_over_the_shipped_ones_and_replace_them_whole(tmp_path):
    shipped = Session(SETTINGS).catalog()
    found = laid_over(tmp_path, "minilm-tokens: {kind: tokenizer, loader: whitespace}\n")
    assert found.entries.keys() == shipped.entries.keys()
    assert found.model("minilm-tokens").weights == "whitespace@1"
    assert found.entries["minilm-tokens"].package == "", "nothing of the shipped entry stays"
    assert found.model("all-MiniLM-L6-v2") == shipped.model("all-MiniLM-L6-v2")


def test_an_entrys_relative_path_starts_from_the_file_that_it_stands_in(tmp_path):
    found = laid_over(tmp_path, "mine: {kind: tokenizer, loader: tokens, path: folder}\n")
    with pytest.raises(Exception, match=rf"{tmp_path}/own.yaml: mine: no folder {tmp_path}/folder"):
        found.model("mine")
    with pytest.raises(ConfError, match=rf"{ROOT}/conf/models.yaml: paraphrase-MiniLM-L12-v2"):
        found.model("paraphrase-MiniLM-L12-v2")


def test_a_name_that_no_file_has_is_refused_with_the_files_that_were_read(tmp_path):
    found = laid_over(tmp_path, "mine: {kind: tokenizer, loader: whitespace}\n")
    with pytest.raises(ConfError, match=r"own.yaml, .*conf/models.yaml: no model named 'mein'; did you mean"):
        found.model("mein")


def test_a_remote_models_tokenizer_that_falls_back_to_that_model_is_its_own(tmp_path):
    remote = (
        "kind: generator, loader: openai, endpoint: a, model: m, max_model_len: 99, tokenizer: llama-2-tokens"
    )
    found = laid_over(tmp_path, f"llama-3-8b: {{{remote}}}\n")
    assert found.model("llama-3-8b").weights.startswith(
        "openai:openai@a:m+hf-internal-testing/llama-tokenizer@"
    )


def test_the_remote_model_of_the_page_answers_through_the_command_of_the_page(tmp_path, monkeypatch, capsys):
    part = PAGE.split("`--models FILE` lays the entries")[1]
    models, endpoints = re.findall(r"^```yaml\n(.*?)^```", part, re.DOTALL | re.MULTILINE)[:2]
    command = shlex.split(re.search(r"^raypipe (ask .*)$", part, re.MULTILINE)[1])
    asked = []

    def reply(request, body):
        asked.append((request.headers["Authorization"], body["model"]))
        request.reply("Ada Lovelace")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))
    monkeypatch.setenv("OURS_API_KEY", "the-key")
    with serving(reply) as server:
        Path("models.yaml").write_text(models)
        laptop = (ROOT / "conf/clusters/laptop.yaml").read_text()
        Path("mine.yaml").write_text(laptop + endpoints.replace("https://llm.example.org/v1", server.url))
        page = re.search(r'^    (\{"interaction_id".*)$', FORMATS, re.MULTILINE)[1]
        Path("page.jsonl").write_text(page)
        assert main(command) == 0
    # A chat with the body of the step that asks it before work, then the question's.
    assert asked == 2 * [("Bearer the-key", "meta-llama/Meta-Llama-3-8B-Instruct")]
    assert "Ada Lovelace   [answered]" in capsys.readouterr().out
