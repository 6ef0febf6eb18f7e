"""Questions to a folder of documents: read and indexed by themselves, and only what changed."""

import argparse
import asyncio
import json
import shutil
import socket
from pathlib import Path

import pytest
from chat_server import serving
from checkout import ROOT, SUPPORT
from http_app import ask as asked_over_http
from http_app import served

from raypipe.api.cli.main import main, parser
from raypipe.api.cli.serve import _print
from raypipe.api.data import documents_store, ingest_documents
from raypipe.api.experiments import sweep
from raypipe.api.indexes import ServedDocs, open_docs
from raypipe.api.plans import plan
from raypipe.api.questions import ask
from raypipe.api.run import evaluate
from raypipe.api.session import Session, from_environment
from raypipe.core.errors import ConfError, DataError
from raypipe.evaluation.evaluate import evaluate as evaluated
from raypipe.evaluation.options import EvalOptions
from raypipe.models.hosts import EndpointAddress
from raypipe.models.kit import LocalKit
from raypipe.serving.answerer import Answerer
from raypipe.steps.prompts import CHARS_PER_TOKEN
from raypipe.store import Store
from raypipe.store.housekeeping import tables

pytestmark = pytest.mark.slow

FAKES = str(SUPPORT / "fake_models.yaml")
QUESTION = "where are repairs of the falcon done?"
TEXTS = {
    "falcon.txt": "The Falcon X2 flies for 31 minutes.\n\nRepairs of the Falcon are done in Rotterdam.\n",
    "inside/contact.md": "# Contact\n\nThe office of support is in Utrecht.\n",
}


@pytest.fixture
def docs(tmp_path):
    """A folder with two documents."""
    for name, text in TEXTS.items():
        file = tmp_path / "docs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "docs"


@pytest.fixture
def broken(docs):
    """A file in it that cannot be read: a process of its own tries."""
    (docs / "broken.pdf").write_text("%PDF-1.4 nothing")


@pytest.fixture
def session(tmp_path):
    def made(**more):
        where = {"RAYPIPE_CONF": str(ROOT / "conf"), "RAYPIPE_HOME": str(tmp_path / "home")}
        return Session(from_environment(where), models=FAKES, **more)

    return made


def versions(docs, session):
    """The tables of the folder's store, with the version of each."""
    store = Store.open(documents_store(docs, session))
    return {t: store.version(t) for t in ("sources", "documents")} | {
        t: store.count(t) for t in tables(store) if t.startswith(("texts-", "passages-", "vectors-"))
    }


def test_a_question_reads_the_folder_once_and_then_what_changed(docs, broken, session, capsys):
    found = ask("rag", QUESTION, session=session(progress=True), docs=docs).result
    assert found.passages[0].url == "falcon.txt" and "Rotterdam" in found.passages[0].text
    assert "not read: docs/broken.pdf" in capsys.readouterr().err
    first = versions(docs, session())
    ask("rag", QUESTION, session=session(progress=True), docs=docs)
    [said] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("not read")]
    store = documents_store(docs, session())
    assert said == f"not read: 1 in all; `raypipe inspect --faults --store {store}` lists them"
    assert versions(docs, session()) == first
    (docs / "falcon.txt").write_text("Repairs of the Falcon are done in Delft.\n")
    (docs / "inside/contact.md").unlink()
    again = ask("rag", QUESTION, session=session(), docs=docs).result
    assert [p.url for p in again.passages] == ["falcon.txt"] and "Delft" in again.passages[0].text


def test_of_an_emptied_folder_nothing_is_quoted_until_it_holds_a_document_again(docs, broken, session):
    store = ask("rag", QUESTION, session=session(), docs=docs) and documents_store(docs, session())
    for name in ("falcon.txt", "inside/contact.md"):
        (docs / name).unlink()
    for gone in ("its 2 earlier ones are no longer searched", "none of 1 files could be read$"):
        with pytest.raises(DataError, match=gone):
            ask("rag", QUESTION, session=session(), docs=docs)
        left = Store.open(store)
        assert all(left.count(t) == 0 for t in ("documents", "sources", "layouts"))
    (docs / "again.txt").write_text("Repairs of the Falcon are done in Delft.")
    found = ask("rag", QUESTION, session=session(), docs=docs).result
    assert [p.url for p in found.passages] == ["again.txt"]


def test_the_closest_stands_under_i_do_not_know_and_other_files_under_an_answer(docs, session, capsys):
    for year, value in ((2023, 28), (2025, 34)):
        rows = f"| Hotel | at most 140 EUR a night |\n| Per diem | {value} EUR a day |"
        said = f"# Travel policy {year}\n\n{rows}\n"
        (docs / f"travel-{year}.md").write_text(said)
    asking = "How much is the per diem of the travel policy?"
    sure = ask("rag", asking, session=session(sets=("extract.threshold=0",)), docs=docs)
    assert sure.result.question.answer == "Per diem: 34 EUR a day"
    _print(sure, verbose=False)
    assert "Other files say: 28 EUR a day (travel-2023.md" in capsys.readouterr().out
    unsure = ask("rag", asking, session=session(sets=("extract.threshold=1",)), docs=docs)
    _print(unsure, verbose=False)
    said = " ".join(capsys.readouterr().out.split())
    assert unsure.result.question.outcome == "abstained" and "Other files" not in said
    assert "closest: travel-2025.md" in said and "Per diem | 34 EUR a day" in said


def test_prompts_about_short_documents_are_planned_as_short_as_they_are(docs, session):
    found = plan("contextual", session=session(llm="llama-3-8b"), docs=docs).plan
    [step] = [s for s in found.steps if s.step == "embed_contextual"]
    chunks = step.expected[1] / 2
    assert 0 < step.cost.tokens[0] < step.cost.tokens[1] < chunks * 3000 / CHARS_PER_TOKEN


@pytest.fixture
def asked(tmp_path):
    """A file with a question about the folder, and its answer."""
    (tmp_path / "asked.csv").write_text(f"question,answer\n{QUESTION},Rotterdam\n")
    return tmp_path / "asked.csv"


def test_questions_about_a_folder_are_planned_with_its_indexing_and_nothing_is_written(docs, asked, session):
    def parsed(**more):
        return plan("rag", asked, session=session(), docs=docs, **more).plan.steps[0].max_calls

    assert parsed() == 2 and not Path(documents_store(docs, session())).exists()
    points = sweep("rag", "rerank.top=5,6", asked, session=session(), docs=docs, dry_run=True)
    assert points.to_pandas()["point"].tolist() == [p.point for p in points.plans]
    assert not Path(documents_store(docs, session())).exists()
    ask("rag", QUESTION, session=session(), docs=docs)
    assert parsed() == 0
    (docs / "falcon.txt").write_text("Repairs of the Falcon are done in Delft.\n")
    assert parsed() == 1


def test_an_eval_reads_the_folder_first_as_a_question_does(docs, asked, session, bench):
    file, own = str(SUPPORT / "fakes.yaml"), documents_store(docs, session())
    ingest_documents(docs, str(bench.folder / "store"), session())
    evaluated(bench.pipeline(), [asked], bench.folder / "first", EvalOptions("rows"))
    done = evaluate(file, asked, bench.folder / "store", bench.folder / "run", session(), docs)
    assert done.to_pandas()["verdict"].tolist() == ["right"] and done.evaluation.reused == 1
    assert not Path(own).exists()


@pytest.mark.parametrize("call", [plan, evaluate, sweep, ask])
def test_a_missing_folder_and_an_unknown_option_are_named(call, docs, asked, session):
    words = {"sweep": ["rerank.top=5"], "ask": [QUESTION]}.get(call.__name__, [asked])
    given = {"data": asked} if call is sweep else {}
    with pytest.raises(ConfError, match=f"found nothing at {docs.parent}/doc$"):
        call("rag", *words, **given, docs=docs.parent / "doc", session=session())
    if call is not ask:
        with pytest.raises(ConfError, match="unknown option 'dosc'; did you mean 'docs'"):
            call("rag", *words, **given, dosc=docs, session=session())


COMMANDS = {"eval": (), "dry": ("--dry-run",), "sweep": ("--set", "rerank.top=5,6"), "plan": ()}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_report_is_never_written_among_the_documents(docs, asked, capsys, monkeypatch, name):
    monkeypatch.setenv("RAYPIPE_HOME", str(docs.parent / "home"))
    words = ["eval" if name == "dry" else name, "rag", "--data", str(asked), *COMMANDS[name]]
    if name != "plan":
        assert main([*words, "--docs", str(docs), "--out", str(docs / "run")]) == 2
        assert "expected a folder outside of --docs" in capsys.readouterr().err
    assert main([*words, "--docs", str(docs.parent / "doc")]) == 2
    assert f"found nothing at {docs.parent}/doc" in capsys.readouterr().err
    assert not (docs.parent / "home/stores").exists()


def test_a_run_among_the_documents_is_left_out_and_counted(docs, session, ran, capsys):
    shutil.copytree(ran.folder / "out", docs / "runs/ten")
    found = ask("rag", QUESTION, session=session(progress=True), docs=docs).result
    assert {p.url for p in found.passages} <= set(TEXTS)
    assert "not read: docs/runs/ten: run: a folder with the report of an eval" in capsys.readouterr().err


def test_a_recipe_that_searches_nothing_is_refused_over_a_folder(docs, session):
    with pytest.raises(ConfError, match="long-context reads only the pages of its question"):
        ask("long-context", QUESTION, session=session(), docs=docs)
    assert not Path(documents_store(docs, session())).exists()


def test_an_evidence_line_that_stands_within_another_is_printed_once(docs, session, capsys):
    text = "Repairs of the Falcon are done in Rotterdam. Call before you come."
    (docs / "falcon.txt").write_text(text)
    with serving(lambda request, body: request.reply("Repairs are done in Rotterdam.")) as server:
        found = ask("rag", QUESTION, session=session(llm=f"{server.url}#m"), docs=docs)
    assert len(found.result.evidence) > 1
    _print(found, verbose=False)
    assert capsys.readouterr().out.count("are done in Rotterdam. Call") == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_language_model_answers_from_the_folder_with_a_quote_and_its_file(docs, session, host):
    if ":" in host and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    with serving(lambda request, body: request.reply("Repairs are done in Rotterdam."), host=host) as server:
        found = ask("rag", QUESTION, session=session(llm=f"{server.url}#m"), docs=docs).result
    assert (found.question.answer, found.question.origin) == ("Repairs are done in Rotterdam.", "llm")
    assert (found.evidence[0].quote, found.evidence[0].url) == (
        "Repairs of the Falcon are done in Rotterdam.",
        "falcon.txt",
    )


def test_over_http_a_folder_answers_with_and_without_a_language_model(docs, session):
    (docs / "page.html").write_text(
        "<title>Falcon X2</title><h2>Repairs</h2><p>Repairs of the Falcon are done in Delft.</p>"
    )
    (docs / "falcon.txt").unlink()
    with serving(lambda request, body: request.reply("Repairs are done in Delft.")) as server:
        for llm in (f"{server.url}#m", None):
            here = session(llm=llm)
            store, recipe = open_docs("rag", docs, session=here), here.recipe("rag")
            kit = LocalKit(None, "transformers", endpoints={"llm": EndpointAddress(server.url)})
            app = served(Answerer(recipe, kit, store.uri))
            said = asked_over_http(app, {"query": QUESTION, "include": ["replies", "hits"]}).json()
            assert said["replies"]["llm"]["label"] == ("answered" if llm else "skipped")
            assert said["hits"][0]["url"] == "page.html"
            if llm:
                [cited, *_] = said["citations"]
                assert said["answer"] == "Repairs are done in Delft."
                assert (cited["url"], cited["section"]) == ("page.html", "Repairs")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["rag", "x?", "--docs", "nowhere"], 2, "--docs: expected a folder"),
        (["rag", "x?", "--docs", "docs", "--pages", "p.jsonl"], 2, "without --pages"),
        (["live", "x?", "--docs", "docs"], 2, "the name of a recipe"),
        (["rag", "x?", "--docs", "docs/broken.pdf"], 3, "could be read"),
        (["rag", "x?", "--docs", "empty"], 3, "found no files"),
    ],
)
def test_what_cannot_be_asked_about_is_refused(
    words, code, said, docs, broken, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    (tmp_path / "empty").mkdir()
    assert main(["ask", *words, "--models", FAKES]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["model", "port"])
def test_an_endpoint_that_cannot_start_indexes_nothing_first(wrong, docs, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["--llm", "http://127.0.0.1:9/v1#m"] if wrong == "model" else ["--port", str(port)]
        code = main(["serve", "rag", "--docs", str(docs), "--models", FAKES, *words])
    err = capsys.readouterr().err
    says, expected = ("127.0.0.1:9", 69) if wrong == "model" else ("cannot listen there", 2)
    assert code == expected and says in err
    assert not (tmp_path / "home" / "stores").exists()


def test_every_command_that_takes_a_store_takes_a_folder_in_its_place(
    docs, broken, tmp_path, monkeypatch, capsys
):
    def flags(made):
        if subs := [a for a in made._actions if isinstance(a, argparse._SubParsersAction)]:
            return [f for sub in subs[0].choices.values() for f in flags(sub)]
        return [(made.prog, set(made._option_string_actions))]

    stores = {prog: found for prog, found in flags(parser()) if "--store" in found}
    # The store of a run is where it was; with `--store` it is found where it is now.
    assert {prog for prog, found in stores.items() if "--docs" not in found} == {"raypipe promote"}

    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    assert main(["eval", "rag", "--until", "answer", "--docs", str(docs), "--models", FAKES]) == 3, (
        "there are no questions"
    )
    assert "checked 3/3 files" in capsys.readouterr().err, "what runs a recipe reads the folder first"
    assert main(["inspect", "--faults", "--docs", str(docs)]) == 0
    assert "broken.pdf" in capsys.readouterr().out
    (docs / "falcon.txt").write_text("Repairs of the Falcon are done in Delft.\n")
    (tmp_path / "faq.jsonl").write_text('{"query": "where?", "answer": "Delft"}\n')
    planned = ["plan", "rag", "--docs", str(docs), "--models", FAKES, "--data", str(tmp_path / "faq.jsonl")]
    [place] = (tmp_path / "home/stores").iterdir()
    stored = sorted((f.relative_to(place), f.stat().st_mtime_ns) for f in place.rglob("*") if f.is_file())
    assert main(planned) == 0
    assert "1 changed" in capsys.readouterr().err, "a plan looks at the files"
    now = sorted((f.relative_to(place), f.stat().st_mtime_ns) for f in place.rglob("*") if f.is_file())
    assert now == stored, "a plan stores nothing"
    assert main(["eval", "rag", "--until", "answer", "--docs", str(docs), "--models", FAKES]) == 3
    assert "1 changed" in capsys.readouterr().err.splitlines()


def test_a_plan_of_a_folder_without_questions_is_one_of_what_changed_in_it(
    docs, broken, session, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    planned = ["plan", "rag", "--docs", str(docs), "--models", FAKES, "--json"]

    def calls() -> dict[str, float]:
        assert main(planned) == 0
        return {s["step"]: s["max_calls"] for s in json.loads(capsys.readouterr().out)["steps"]}

    assert calls()["parse"] == 2, "of three files one is broken"
    assert not (tmp_path / "home" / "stores").exists(), "a plan writes nothing"
    open_docs("rag", docs, session=session())
    capsys.readouterr()
    assert calls() == {"parse": 0, "tokenize": 0, "split": 0, "embed": 0}
    (docs / "falcon.txt").write_text("Repairs of the Falcon are done in Delft.\n")
    assert calls()["embed"] == 1


def test_a_plan_of_a_folder_leaves_out_what_went_and_refuses_one_without_a_document(docs, session):
    open_docs("rag", docs, session=session())
    (docs / "falcon.txt").write_text("Repairs of the Falcon are done in Delft.\n")
    (docs / "inside/contact.md").unlink()
    for sets in ((), ("split.child_chars=300",)):  # what went is nothing to split again, either
        steps = plan("rag", docs=docs, session=session(sets=sets)).plan.steps
        assert {s.step: (s.rows, s.max_calls) for s in steps if s.step != "tokenize"} == {
            "parse": (1, 1),
            "split": (1, 1),
            "embed": (1, 1),
        }
    (docs / "falcon.txt").unlink()
    with pytest.raises(DataError, match="expected txt, md, html"):
        plan("rag", docs=docs, session=session())


def test_passages_to_embed_are_counted_once_where_a_language_model_writes_for_each(docs, session, capsys):
    with serving(lambda request, body: request.reply("It is in a manual.")) as server:
        open_docs("contextual", docs, session=session(llm=f"{server.url}#m", progress=True))
    assert "about 2 passages to embed" in capsys.readouterr().err


def test_a_served_folder_answers_from_the_old_text_until_the_new_one_is_embedded(docs, session):
    """Texts in the tables that an endpoint opens, and an answer from those that it opened before."""
    (docs / "inside/contact.md").write_text("---\nteam: hr\n---\nThe office of support is in Utrecht.\n")
    folder = ServedDocs("rag", str(docs), None, session())
    uri, recipe, quoted = folder.open(), session().recipe("rag"), list[str]()

    before = Answerer(recipe, LocalKit(None, "transformers"), uri)
    asyncio.run(before.check())

    def reopen():
        quoted.append(" ".join(Store.open(uri).scan(recipe.texts_table)["text"].to_pylist()))

    def texts():
        folder.read_again(reopen)
        found = list(quoted)
        quoted.clear()
        return found

    (docs / "falcon.txt").write_text("Repairs of the Falcon are done in Delft.\n")
    (docs / "new.txt").write_text("Repairs of the Eagle are done in Breda.\n")
    [both] = texts()
    assert "Delft" in both and "Breda" in both and "Rotterdam" not in both, "in one step"
    said = asked_over_http(served(before), {"query": QUESTION}).json()["citations"]
    assert "Rotterdam" in said[0]["quote"], "of the tables before"
    (docs / "falcon.txt").write_text("Repairs of the Falcon are done in Gouda.\n")
    (docs / "new.txt").unlink()
    first, last = texts()
    assert "Breda" not in first and "Gouda" in last, "what was removed goes before anything is embedded"
    (docs / "inside/contact.md").write_text("---\nteam: board\n---\nThe office of support is in Utrecht.\n")
    assert len(texts()) == 2, "nor does a filter of fields wait"
    for name in ("falcon.txt", "inside/contact.md"):
        (docs / name).unlink()
    with pytest.raises(DataError, match="found no files"):
        folder.read_again(lambda: quoted.append("opened"))
    assert quoted == ["opened"]
