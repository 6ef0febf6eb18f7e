"""`raypipe questions`: a served model writes questions about documents; what cannot be used is not kept."""

import json
import re
import signal
import subprocess
import sys

import jsonschema
import pytest
from chat_server import serving
from outputs import schemas

from raypipe import readers
from raypipe.api.cli.main import main
from raypipe.core import arrow
from raypipe.readers import ReadCounts
from raypipe.store import Store
from raypipe.text.page_parser import fold

pytestmark = pytest.mark.slow

TOWNS = ("Tarn", "Halden", "Vesk", "Orland", "Tamar", "Brin", "Solna", "Kirk", "Lund", "Moss", "Nord", "Pell")


def document(n, town):
    text = (
        f"The lighthouse of {town} was built in {1850 + n} by the mason Ann {town}sen and her two sons, "
        "who had come from the north. It stands on a rock before the harbour. Its keepers were "
        f"Ole {town}by, Per {town}by and Kai Dahl, who lived there until the light was run by itself. The "
        "tower has nine floors, and the lamp at its top is seen from far away on clear nights."
    )
    return {"id": f"d{n}", "title": f"Lighthouses: {town}", "text": text}


def answer(question, passages):
    town = next((t for t in TOWNS if t in question), "")
    at = re.search(rf"of {town} was built in (\d+) by the mason (Ann \w+).*?were (.*?), who lived", passages)
    if not at or "painted" in question:
        return "I don't know."
    if question.startswith("Who kept"):
        return at[3].replace(" and ", ", ")
    return {"Who built": f"{at[2]} did.", "Is the lig": town}.get(question[:10], at[2])


def reply(messages):
    """A model that reads passages by a pattern."""
    system, user = messages[0]["content"], messages[-1]["content"]
    if system == user:
        return "ready"
    if "as few words" in system:
        return answer(user.split("Question: ")[1].strip(), user.split("Question: ")[0])
    found = re.findall(r"of (\w+) was built in (\d+) by the mason (Ann \w+).*?were (.*?), who lived", user)
    town, year, mason, keepers = found[0]
    if "single fact" in system:
        quote = "a quote of its own" if town == "Tarn" else f"in {year} by the mason {mason}"
        asked = f"Who built the lighthouse of {town}?"
        return json.dumps({"question": asked, "answer": mason, "quotes": [quote]})
    if "list of two" in system:
        asked, names = f"Who kept the lighthouse of {town}?", re.split(", | and ", keepers)
        return json.dumps({"question": asked, "answer": names, "quotes": [f"Its keepers were {keepers}"]})
    if "compares" in system:
        other = found[1]
        asked = f"Is the lighthouse of {town} older, or that of {other[0]}?"
        quotes = [f"{x[0]} was built in {x[1]}" for x in found[:2]]
        return json.dumps({"question": asked, "answer": town, "quotes": quotes})
    if "does not answer" in system:
        return json.dumps({"question": f"Who painted the lighthouse of {town}?"})
    return json.dumps({"question": ""})


@pytest.fixture
def made(tmp_path, capsys, monkeypatch):
    """Runs the command over twelve documents: exit code, stdout, stderr."""
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    rows = (json.dumps(document(n, town)) for n, town in enumerate(TOWNS))
    (tmp_path / "docs.jsonl").write_text("\n".join(rows))

    def run(server, *words):
        words = [str(w) for w in words]
        store, out = str(tmp_path / "s"), str(tmp_path / "q.jsonl")
        llm = ("--llm", f"{server.url}#reader") if server else ()
        code = main(["questions", *words, *llm, "--store", store, "--out", out])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def server():
    with serving(lambda request, body: request.reply(reply(body["messages"]))) as found:
        yield found


def test_questions_are_made_checked_written_and_read_again(made, server, tmp_path):
    code, out, err = made(server, tmp_path / "docs.jsonl", "--n", 6, "--json")
    assert code == 0, err
    tree = json.loads(out)
    jsonschema.validate(tree, dict(schemas())["questions"], cls=jsonschema.Draft202012Validator)
    assert tree["questions"] == 6 and tree["computed"] <= tree["plan"]["max_calls"]
    lines = [json.loads(line) for line in (tmp_path / "q.jsonl").read_text().splitlines()]
    assert {"fact", "list"} <= {q["question_type"] for q in lines}
    texts = {
        s.id: fold(s.content) for s in arrow.source.records(Store.open(str(tmp_path / "s")).scan("sources"))
    }
    for q in lines:
        assert q["made_by"] == "reader" and q["review"] == ""
        for e in q["evidence"]:
            assert texts[e["source"]][e["start"] : e["end"]] == e["quote"], "the span is exact"
    lines[0]["review"], lines[1]["review"] = "drop", "keep"
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, lines)))
    counts = ReadCounts()
    rows = list(readers.open([tmp_path / "q.jsonl"], "rows", counts))
    assert len(rows) == 5 and rows[0].question.citations is None
    assert rows[0].gold.labels == {
        "question_type": lines[1]["question_type"],
        "made_by": "reader",
        "review": "keep",
    }
    assert (counts.dropped_rows, counts.made_questions, counts.unreviewed_questions) == (1, 5, 4)


def test_a_folder_of_files_is_read_first(made, server, tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    for n, town in enumerate(TOWNS[1:5]):
        (folder / f"{town}.txt").write_text(document(n, town)["text"])
    (folder / "menu.txt").write_text("home | about | 1 2 3")
    code, out, err = made(server, folder, "--n", 2, "--json")
    tree = json.loads(out)
    assert code == 0 and tree["questions"] == 2 and tree["plan"]["unreadable"] == 1, err
    assert tree["first"][0]["evidence"][0]["document"].endswith(".txt")


def test_the_same_questions_again_ask_for_nothing_and_more_of_them_only_for_more(made, server, tmp_path):
    made(server, tmp_path / "docs.jsonl", "--n", 3, "--json")
    first = (tmp_path / "q.jsonl").read_text()
    _, out, _ = made(server, "--n", 3, "--json")
    assert json.loads(out)["computed"] == 0 and (tmp_path / "q.jsonl").read_text() == first
    _, out, _ = made(server, "--n", 5, "--json")
    again = json.loads(out)
    assert again["cached"] > 0 and (tmp_path / "q.jsonl").read_text().startswith(first)


@pytest.mark.drill
def test_a_run_that_is_killed_goes_on_where_it_was(made, server, tmp_path):
    running, asked = [], server.asked
    words = ["questions", tmp_path / "docs.jsonl", "--n", 12, "--llm", f"{server.url}#reader"]
    words += ["--store", tmp_path / "s", "--out", tmp_path / "q.jsonl", "--json"]

    def kills(request, body):
        if len(server.paths) >= 18:  # one to see that it answers, twelve questions written, some checked
            running[0].kill()
        asked(request, body)

    server.asked = kills
    running.append(subprocess.Popen([sys.executable, "-m", "raypipe", *map(str, words)]))
    assert running[0].wait() == -signal.SIGKILL and not (tmp_path / "q.jsonl").exists()
    server.asked = asked
    code, out, err = made(server, "--n", 12, "--json")
    again = json.loads(out)
    assert code == 0 and again["plan"]["cached"] == 12 and again["cached"] >= 12, err


def test_a_dry_run_says_the_number_of_calls_and_makes_none(made, server, tmp_path):
    code, out, _ = made(server, tmp_path / "docs.jsonl", "--n", 5, "--dry-run")
    assert code == 0 and re.search(r"at most \d+ calls of reader: 10 questions", out)
    assert not server.paths and not (tmp_path / "q.jsonl").exists()


@pytest.mark.drill
def test_what_the_rules_or_the_second_ask_refuse_is_counted(made, server, tmp_path):
    _, out, _ = made(server, tmp_path / "docs.jsonl", "--n", 12, "--json")
    tree = json.loads(out)
    assert tree["questions"] + sum(tree["rejected"].values()) == tree["written"] == 12
    assert tree["rejected"]["declined"] >= 1
    said = json.loads((tmp_path / "q.jsonl").read_text().splitlines()[0])
    assert "Tarn?" not in said["question"] or said["question_type"] != "fact", "its quote is not in the text"


def test_without_a_model_or_documents_it_says_what_was_expected(made, server, tmp_path):
    code, _, err = made(None, tmp_path / "docs.jsonl")
    assert code == 2 and "--llm" in err
    (tmp_path / "none.jsonl").write_text('{"id": "1", "text": "too short"}')
    code, _, err = made(server, tmp_path / "none.jsonl")
    assert code == 3 and "found none in 1 documents" in err


def test_a_server_that_is_down_is_exit_code_69_and_keeps_no_file(made, tmp_path):
    with serving(lambda request, body: request.reply("x")) as gone:
        pass
    code, _, err = made(gone, tmp_path / "docs.jsonl", "--n", 2)
    assert code == 69 and "nothing answers" in err and not (tmp_path / "q.jsonl").exists()
