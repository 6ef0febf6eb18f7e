"""Pools of examples whose explanations a model writes: what is raised, and what is counted."""

import json

import pytest
from chat_server import serving

from raypipe.api.cli.main import main
from raypipe.api.made_data import ExamplePoolResult, _explanations
from raypipe.core.errors import DataError, Unavailable
from raypipe.core.llm import Generated
from raypipe.core.records import Fault

SAID = Generated("Section 4 names it.", "stop", 5, 0, 5)
LONG = Fault("generate", "too_large", "9000 tokens, room for 4096", transient=False)
DOWN = Fault("generate", "connection", "nobody answers", transient=True)


@pytest.mark.drill
@pytest.mark.slow  # it tries again before it gives up
def test_a_server_that_is_down_is_said_and_no_pool_is_written(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text('{"question": "Which corpus?", "answer": "SQuAD"}\n')
    out = tmp_path / "pool.jsonl"
    command = ["examples", str(tmp_path / "rows.jsonl"), "--out", str(out), "--explain", "llama-3-8b"]
    assert main([*command, "--llm", "http://127.0.0.1:9/v1#none"]) == Unavailable.exit_code
    assert "No pool was written" in " ".join(capsys.readouterr().err.split()) and not out.exists()


def test_one_fault_of_the_moment_stops_and_some_final_ones_are_counted():
    with pytest.raises(Unavailable, match=r"expected 2 explanations, found connection"):
        _explanations([SAID, DOWN], "m")
    with pytest.raises(DataError, match=r"expected 2 explanations, found none, first too_large"):
        _explanations([LONG, LONG], "m")
    assert _explanations([SAID, LONG], "m") == ["Section 4 names it.", ""]


def test_the_count_of_examples_without_an_explanation_is_said(tmp_path):
    made = ExamplePoolResult(tmp_path / "p.jsonl", 5, 1, 3, 2)
    assert "3 with an explanation, 2 without one" in made.title
    assert json.loads(json.dumps(made.to_dict()))["unexplained"] == 2


def test_explanations_that_a_model_writes_stand_in_the_pool(tmp_path):
    lines = [{"question": "Which corpus?", "answer": "SQuAD"}, {"question": "Which year?", "answer": "2016"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    out, asked = tmp_path / "pool.jsonl", []

    def reply(request, body):
        asked.append(body["messages"][-1]["content"])
        request.reply("<think>SQuAD?</think>Section 4 names it.")

    with serving(reply) as server:
        command = ["examples", str(tmp_path / "rows.jsonl"), "--out", str(out), "--explain", "llama-3-8b"]
        assert main([*command, "--llm", f"{server.url}#any"]) == 0
    assert len(asked) == 2 and any("Which corpus?" in x and "SQuAD" in x for x in asked)
    pool = [json.loads(x) for x in out.read_text().splitlines()]
    assert [(p["question"], p["explanation"]) for p in pool] == [
        ("Which corpus?", "Section 4 names it."),
        ("Which year?", "Section 4 names it."),
    ]
