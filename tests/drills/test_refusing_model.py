"""A language model behind a server that refuses chats, by the real commands: no score is another step's."""

import json

import pytest
from chat_server import serving

from raypipe.api.cli.main import main
from raypipe.evaluation.result_table import each
from raypipe.runs.record import read

pytestmark = [pytest.mark.slow, pytest.mark.ray]

SAID = "Unsupported parameter: max_tokens. Use max_completion_tokens"
FAKES = "tests/support/fake_models.yaml"


class Chats:
    """A server that refuses every chat, or those with certain texts."""

    def __init__(self):
        self.refuses = lambda text: True

    def __call__(self, request, body):
        if self.refuses(body["messages"][-1]["content"]):
            request.send(json.dumps({"error": {"message": SAID}}), 400)
        else:
            request.reply("yes")


@pytest.fixture
def command(capsys, world, tmp_path, pytestconfig):
    """Runs a command: its exit code and what it printed."""
    out = tmp_path / "out"

    def run(*words):
        code = main([*map(str, words)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    def evaluate(url):
        fakes = pytestconfig.rootpath / FAKES
        where = ("--data", world, "--store", tmp_path / "store", "--out", out, "--models", fakes)
        return run("eval", "rag", *where, "--llm", f"{url}#m")

    return evaluate, lambda *more: run("inspect", out, *more)


@pytest.mark.drill
def test_an_eval_whose_language_model_refuses_every_chat_ends_with_6_and_the_next_one_asks_again(
    command, local_ray, tmp_path
):
    evaluate, look = command
    chats = Chats()
    with serving(chats) as server:
        server.lists = json.dumps({"data": [{"id": "m"}]})
        code, said = evaluate(server.url)
        assert code == 6 and "generate:llm got no reply for 6 of 6 rows" in said and SAID in said
        assert "6 rows failed in generate:llm: refused; tried again" in said and "6 not scored" in said
        code, faults = look("--faults", "--json")
        tree = json.loads(faults)
        assert {(x["transient"], x["recovered"]) for x in tree["faults"]} == {(True, False)}
        _, story = look(tree["faults"][0]["id"])
        assert f"generate:llm, refused: {server.url}: status 400" in story and "it replied: refused" in story
        chats.refuses = lambda text: False
        code, said = evaluate(server.url)
        assert code == 0 and read(tmp_path / "out").answered_by["llm"] == 6, said


@pytest.mark.drill
def test_answers_of_a_later_step_are_named_and_a_model_that_refuses_most_chats_ends_the_run_with_6(
    command, local_ray, world, tmp_path
):
    evaluate, look = command
    lines = [json.loads(line) for line in next(world.glob("questions*.jsonl")).read_text().splitlines()]
    refused = [line["query"] for line in lines[:4]]
    chats = Chats()
    chats.refuses = lambda text: any(query in text for query in refused)
    with serving(chats) as server:
        server.lists = json.dumps({"data": [{"id": "m"}]})
        code, said = evaluate(server.url)
        assert code == 6 and "generate:llm got no reply for 4 of 6 rows" in said
        page = (tmp_path / "out/report.html").read_text()
        assert "Answered by: " in page and page.count(SAID) == 1, "the rows are packed"
        replies = [r for row in each(tmp_path / "out/results.parquet") for r in row["replies"]]
        assert sum(r["step"] == "llm" and SAID in (r["fault"] or "") for r in replies) == 4
        assert "answered by another step" in said and said.count(SAID) == 1
        again, rest = evaluate(server.url)
        assert again == 6 and "0 new, 6 reused" in rest, "what is stored is looked at, too"
        _, faults = look("--faults")
        assert faults.count("generate:llm, refused; answered by another step") == 4
        story = look(lines[0]["interaction_id"])[1]
        assert SAID in story and "extract" in story and "not known" not in story.split("extract")[-1]
