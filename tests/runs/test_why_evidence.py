"""`raypipe inspect` and changes as people read them: evidence, prompts, replies, and differences."""

import json
import re

import pytest
from reruns import FAKES, Bench

from raypipe.api.cli.main import main
from raypipe.core import arrow
from raypipe.core.records import Question
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.report.plans import print_changes
from raypipe.runs.changes import changes
from raypipe.runs.pipeline.ingest_folder import ingest_folder
from raypipe.runs.record import read
from raypipe.store import Store, put

pytestmark = pytest.mark.slow

PROMPT = """
      prompt:
        system: |
          You are a helpful assistant.
          Answer in one sentence.
        user: |
          {{ context }}

          Question: {{ text }}
        variables: [context, text]
"""
GENERATE = f"""
  - generate:
      model: scripted
      into: web
      max_tokens: 40
      context_chars: 9000{PROMPT}
  - decide: {{prefer: [web]}}
"""
ASKING = FAKES[: FAKES.index("\n  - extract")] + GENERATE
SURE = FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n")


def told(capsys, bench, run, row):
    capsys.readouterr()
    code = main(["inspect", str(bench.folder / run), row])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_why_shows_evidence_prompt_and_reply_and_a_prompts_edit_as_a_diff(bench, capsys):
    bench.run(ASKING, out="one")
    bench.run(ASKING.replace("one sentence", "five words"), out="two")
    line = bench.lines()[0]
    code, out, _ = told(capsys, bench, "two", line["interaction_id"])
    assert code == 0 and out.splitlines()[1] == line["query"]
    assert (
        "\ngenerate:web asked its model:\n  system: You are a helpful assistant.\n    Answer in five words.\n"
        in out
    )
    assert f"\n    Question: {line['query']}\n  it replied: " in out
    assert re.search(r"\.\.\. [\d,]+ characters, which --json has \.\.\.", out), "a long context is cut"
    [shown] = re.findall(r"^reply web: answered: (.*)$", out, re.MULTILINE)
    assert f"  it replied: {shown}\n" in out
    urls = {p["page_url"] for p in line["search_results"]}
    assert urls >= set(re.findall(r"^evidence: .* (http\S+)$", out, re.MULTILINE)) != set()
    assert (
        "  generate:web.prompt.system changed:\n  - Answer in one sentence.\n  + Answer in five words.\n"
        in out
    )
    assert main(["inspect", str(bench.folder / "two"), line["interaction_id"], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    [chat] = next(s["chats"] for s in found["steps"] if s["step"] == "generate:web")
    assert [m["role"] for m in chat["messages"]] == ["system", "user"] and chat["reply"].startswith(shown[:9])
    assert found["evidence"] and all(e["quote"] == text_at(bench, e) for e in found["evidence"])


def text_at(bench, evidence):
    """What the stored text has where a quote stands."""
    table = next(t for t in read(bench.folder / "two").tables if t.startswith("texts-"))
    store = Store.open(str(bench.folder / "store"))
    [text] = store.rows(table, "source", [evidence["source"]], ["text"])["text"].to_pylist()
    return text[slice(*evidence["span"])]


def test_why_names_the_file_of_evidence_that_no_citation_names(tmp_path, capsys):
    bench = Bench(tmp_path, tmp_path)
    pipe = bench.pipeline(SURE)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "pump.txt").write_text("The pump has a warranty of two years. It weighs six kilos.")
    ingest_folder(pipe.store, tmp_path / "docs", (), pipe.progress)
    put(pipe.store, "questions", arrow.question.table([Question("q", "how long is the pump's warranty?")]))
    evaluate(pipe, [], tmp_path / "out", EvalOptions())
    _, out, _ = told(capsys, bench, "out", "q")
    assert re.search(r"^evidence: .* pump.txt$", out, re.MULTILINE)


def test_why_takes_the_beginning_of_an_id_and_lists_those_that_share_it(bench, capsys):
    lines = bench.lines()
    lines[0]["interaction_id"], lines[1]["interaction_id"] = "twin-one", "twin-two"
    bench.run(SURE, data=bench.data(lines), out="one")
    code, out, _ = told(capsys, bench, "one", "twin-o")
    assert code == 0 and out.startswith("twin-one: answered by this run\n")
    code, out, err = told(capsys, bench, "one", "twin-")
    assert code == 3 and not out and "2 questions of run" in err
    assert "begin with 'twin-': twin-one, twin-two" in err
    code, _, err = told(capsys, bench, "one", "")
    assert code == 3 and "has no question ''" in err


@pytest.mark.drill
def test_changes_name_models_and_show_the_lines_of_a_prompt_once(bench, capsys):
    from raypipe.api.cli.command import console

    def said(before, after):
        store = Store.open(str(bench.folder / "store"))
        found = changes(store, *(read(bench.folder / name) for name in (before, after)))
        print_changes(console(), found)
        return capsys.readouterr().out

    bench.run(SURE, out="one")
    bench.run(
        SURE.replace("dense: {model: hash-", "dense: {model: other-").replace(
            "embed: {model: hash-", "embed: {model: other-"
        ),
        out="two",
    )
    out = said("one", "two")
    assert re.search(r"^  dense\.model was hash-embedder, is other-embedder$", out, re.MULTILINE), out
    bench.run(ASKING, out="three")
    last = "Question: {{ text }}\n"
    bench.run(ASKING.replace(last, f"{last}          Name the newsletter.\n"), out="four")
    out = said("three", "four")
    assert out.count("\n  generate:web.prompt.user changed:\n  + Name the newsletter.\n") == 1
    assert "  first changed step: generate:web, because generate:web.prompt changed\n" in out
