"""Examples, round by round: a model drafts, failures are shown, corrected lines become a bank."""

import json

import pytest
from checkout import SUPPORT

from raypipe.api.cli.main import main
from raypipe.contrib.crag.language.example_bank import ExampleBank
from raypipe.contrib.world.write import write
from raypipe.core.config import Where, build, read_yaml

MODELS = str(SUPPORT / "fake_models.yaml")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    write(folder, 8, pages=1, seed=4, page_chars=1000)
    return folder


def draft(world, out):
    where = ["--data", str(world), "--graph", str(world), "--out", str(out), "--models", MODELS]
    return main(["kg", "examples", "draft", "--model", "llama-3-8b", "--prompt", "db3/calls-movie", *where])


@pytest.mark.drill
@pytest.mark.slow
def test_drafts_are_run_and_what_failed_is_said_and_shown(world, tmp_path, capsys):
    assert draft(world, tmp_path / "drafts.jsonl") == 0
    drafts = [json.loads(x) for x in (tmp_path / "drafts.jsonl").read_text("utf-8").splitlines()]
    assert len(drafts) == 8 and not any(d["use"] for d in drafts)
    failed = [d for d in drafts if d["failed"]]
    shown = capsys.readouterr().out
    assert failed and f"{len(failed)} failed" in " ".join(shown.split()) and "8 drafts in" in shown
    assert all(d["query"][:20] in shown for d in failed)


def test_corrected_drafts_become_examples_with_places(tmp_path):
    lines = [
        {"query": "How long is Velora?", "calls": 'get_movie("velora")["length"]', "use": True},
        {
            "query": "is low tide or velora newer?",
            "calls": 'get_movie("low tide")["year"]\nget_movie("velora")["year"]',
            "rule": "most",
            "use": True,
        },
        {"query": "who?", "calls": "get_nothing(", "use": False},
    ]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, lines)))
    into = tmp_path / "bank.yaml"
    for _ in range(2):  # a second round adds to the first
        made = ["kg", "examples", "import", str(tmp_path / "d.jsonl"), "--domain", "movie"]
        assert main([*made, "--into", str(into)]) == 0
    bank = build(ExampleBank, read_yaml(into), Where(str(into)))
    assert [g.calls for g in bank.examples[:2]] == [
        'get_movie({movie})["length"]',
        'get_movie({movie:a})["year"]\nget_movie({movie:b})["year"]',
    ]
    assert bank.examples[1].questions == ("is {movie:a} or {movie:b} newer?",) and len(bank.examples) == 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"query": "who?", "calls": "get_nothing(", "use": true}', ":1: expected calls that are a program"),
        ('{"query": "who?", "calls": "None", "rule": "guess", "use": true}', "rule: expected one of"),
        ('{"query": "who?", "calls": "None", "use": false}', 'marked "use": true, found none'),
        ("[]", ":1: expected a JSON object"),
        ("{", ":1: expected a JSON object"),
    ],
)
def test_a_draft_that_cannot_be_an_example_is_refused(tmp_path, capsys, line, said):
    (tmp_path / "d.jsonl").write_text(line)
    into = ["--into", str(tmp_path / "bank.yaml")]
    assert main(["kg", "examples", "import", str(tmp_path / "d.jsonl"), "--domain", "open", *into]) == 3
    assert said in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "bank.yaml").exists()
