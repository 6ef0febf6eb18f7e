"""Pages, documents and questions are taken out of a store by their ids, and no byte of them is left."""

import io
import json
import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from chat_server import serving
from checkout import BENCH, ROOT, SUPPORT

sys.path.insert(0, str(BENCH / "drills"))
from forget import World, address, drill, holding, sound, word

from raypipe.api.cli.main import main
from raypipe.api.data import documents_store
from raypipe.api.indexes import open_docs
from raypipe.api.release import forget
from raypipe.api.session import Session, from_environment
from raypipe.core.arrow import id_texts
from raypipe.core.errors import ConfError, DataError
from raypipe.core.progress import Progress
from raypipe.evaluation.result_table import read_table
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.pipeline.ingest_folder import ingest_folder
from raypipe.runs.record import read, withdraw
from raypipe.runs.release import history, live, promote
from raypipe.runs.run_parts import RunFolder
from raypipe.store import Reading, Store, StoreError
from raypipe.store.files import Files
from raypipe.store.housekeeping import keep_only, rewrite_deleted

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Two pages, each cited by a question of its own, and a paper, with a run that is live."""
    return World(tmp_path_factory.mktemp("forget"), pages=2, papers=1)


@pytest.fixture
def copy(planted, tmp_path):
    """A copy of that world."""
    shutil.copytree(planted.folder, tmp_path / "w")
    for record in (tmp_path / "w/runs").rglob("run.json"):
        tree = json.loads(record.read_text())
        record.write_text(json.dumps({**tree, "store": str(tmp_path / "w/store")}))
    return World(tmp_path / "w", 2, 1, made=True)


def forgotten(world, *names, **options):
    session = Session(from_environment({"RAYPIPE_HOME": str(world.folder / "home")}))
    given = {"store": world.store, "dry_run": False, "reason": "the licence ended", "session": session}
    return forget(names, **{**given, "runs": [world.folder / "runs"], **options})


@pytest.mark.drill
def test_each_planted_word_is_in_no_place_after_its_source_is_forgotten(copy):
    lines = list(drill(copy, 3))
    assert all(map(sound, lines)), lines


@pytest.mark.drill
def test_what_rests_on_other_pages_stays_and_runs_compare_as_before(copy):
    store, runs = copy.store, copy.folder / "runs"
    answers, [replies] = store.count("answers"), [t for t in store_tables(store) if t.startswith("replies-")]
    said = store.count(replies)
    listed = forgotten(copy, address(0), dry_run=True).holdings
    assert {h.place for h in listed} >= {"sources", "answers", replies, f"release {live(store).id}"}
    assert not store.files.names("_tombstones") and live(store), "nothing is changed"
    done = forgotten(copy, address(0))
    assert {(h.place, h.rows) for h in done.holdings} == {(h.place, h.rows) for h in listed}
    assert (store.count("answers"), store.count(replies)) == (answers - 1, said - 1)
    assert holding(word(1), Path(store.uri)) and history(store) == ()
    rows = {r["id"]: r for r in read_table(runs / "answers/results.parquet").to_pylist()}
    assert sorted(r["answer"] is None for r in rows.values()) == [False, False, True]
    assert all(r["verdict"] for r in rows.values())
    assert "<html" in (runs / "answers/report.html").read_text()
    with pytest.raises(StoreError, match="at version"):
        promote(store, read(runs / "answers"), [])

    # The same file again: the page is refused, everything else is there, and nothing of it comes in.
    summary = ingest(store, [copy.folder / "data.jsonl"], "crag", Progress(io.StringIO(), silent=True))
    assert summary.reasons["forgotten"] == 1 and not summary.again
    [fault] = [f for f in store.scan("faults").to_pylist() if f["reason"] == "forgotten"]
    assert fault["detail"].endswith("refuses it: the licence ended")
    copy.run()
    assert holding(word(0), Path(store.uri)) == holding(word(0), runs) == []
    assert store.count(replies) == said, "one was asked again"
    assert forgotten(copy, address(0)).targets[0].name == address(0), "the same again"


def store_tables(store):
    return [n.removesuffix(".lance") for n in store.files.names("") if n.endswith(".lance")]


@pytest.mark.drill
def test_several_go_at_once_and_a_question_with_its_golds_answers_and_rows_of_runs(copy, capsys, monkeypatch):
    store, runs = copy.store, copy.folder / "runs"
    asked = next(q for q in store.scan("questions").to_pylist() if address(0) in str(q["citations"]))["id"]
    monkeypatch.setenv("RAYPIPE_HOME", str(copy.folder / "home"))
    words = ["forget", asked, address(1), "--store", store.uri, "--runs", str(runs)]
    assert main([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "questions: 1 rows are removed" in said and "nothing was removed" in said
    assert main([*words, "--yes"]) == 2 and "--reason 'licence ended'" in capsys.readouterr().err
    assert main([*words, "--yes", "--reason", "asked to"]) == 0
    assert f"question {asked} is forgotten; tombstone" in capsys.readouterr().out
    assert holding(asked, Path(store.uri)) == holding(asked, runs) == holding(word(1), Path(store.uri)) == []
    assert holding(word(0), Path(store.uri)), "its page stays: a question was named"


def test_a_document_goes_by_its_path_and_is_refused_by_name(tmp_path):
    docs, store = tmp_path / "docs", Store.create(str(tmp_path / "store"))
    docs.mkdir()
    kept = docs / "kept.txt"
    kept.write_text("The library opens at nine and closes at five.")
    (docs / "secret plan.txt").write_text(f"The plan of {word(0)} is to open at ten.")
    silent = Progress(io.StringIO(), silent=True)
    ingest_folder(store, docs, [], silent)
    session = Session(from_environment({"RAYPIPE_HOME": str(tmp_path / "home")}))
    [cited] = forget("secret%20plan.txt#page=2", store, dry_run=True, session=session).targets
    [done] = forget("secret plan.txt", store, False, "told in confidence", session=session).targets
    assert cited == done and done.kind == "document" and holding(word(0), Path(store.uri)) == []
    assert store.scan("documents")["title"].to_pylist() == ["kept"]
    (docs / "secret plan.txt").write_text("Another text at the same place.")
    kept.unlink()
    with pytest.raises(DataError, match=r"none of 1 files could be read:\n.*refuses it: told in confidence"):
        ingest_folder(store, docs, [], silent)


class DyingFiles(Files):
    """Files of a store whose process dies at one of its writes, as a kill does."""

    def __init__(self, uri, at):
        super().__init__(uri)
        self.left = at

    def write(self, name, content):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        super().write(name, content)


@pytest.mark.drill
def test_vectors_in_the_words_of_a_language_model_go_with_the_page(tmp_path):
    (tmp_path / "docs").mkdir()
    for name, text in {"falcon": "The Falcon flies for 31 minutes.", "owl": "The owl sleeps."}.items():
        (tmp_path / f"docs/{name}.txt").write_text(text)
    where = {"RAYPIPE_HOME": str(tmp_path / "home"), "RAYPIPE_CONF": str(ROOT / "conf")}
    with serving(lambda request, body: request.reply(f"It is number {len(str(body))}.")) as server:
        models = str(SUPPORT / "fake_models.yaml")
        session = Session(from_environment(where), models=models, llm=f"{server.url}#m")
        open_docs("contextual", tmp_path / "docs", session=session)
    store = Store.open(documents_store(tmp_path / "docs", session))
    [table] = [t for t in store_tables(store) if t.startswith("embeddings-")]
    [replies] = [t for t in store_tables(store) if t.startswith("replies-")]
    assert store.count(table) == store.count(replies) == 2
    forget("falcon.txt", store, False, "the licence ended", session=session)
    assert store.count(table) == store.count(replies) == 1
    assert store.scan(replies, ["questions"])["questions"].to_pylist() == [
        id_texts(store.scan("sources", ["id"])["id"])
    ]


@pytest.mark.drill
def test_a_forget_that_is_killed_at_any_step_is_finished_by_the_same_command(copy):
    store, deaths = copy.store, 0
    for at in range(2, 90, 11):
        dying = Store.open(store.uri)
        dying.files = DyingFiles(store.uri, at)
        try:
            done = forgotten(copy, address(0), store=dying)
            break
        except KeyboardInterrupt:
            deaths += 1
        if store.files.names("_forgetting"):
            unfinished = r"raypipe forget 'https://leak.example/quorz.*' --yes"
            with pytest.raises(StoreError, match=unfinished), store.lease("driver", "eval"):
                raise AssertionError("no other command works on such a store")
            with pytest.raises(StoreError, match=unfinished):
                forgotten(copy, address(1))
    assert deaths > 2 and done.finished
    assert holding(word(0), Path(store.uri)) == holding(word(0), copy.folder / "runs") == []
    assert history(store) == () and not store.files.names("_forgetting")


@pytest.mark.drill
def test_what_a_killed_eval_left_in_its_folder_goes_whole_and_other_evals_there_do_not(copy):
    store, runs = copy.store, copy.folder / "runs"
    for name, uri in (("killed", store.uri), ("others", str(copy.folder / "elsewhere"))):
        shutil.copytree(runs / "answers", runs / name)
        run = RunFolder(runs / name)
        table = pq.read_table(run.results)
        about = {**table.schema.metadata, b"run": b"0" * 32, b"store": uri.encode()}
        pq.write_table(table.replace_schema_metadata(about), run.results)
        withdraw(run.path)
    forgotten(copy, address(0))
    assert list((runs / "killed").iterdir()) == []
    assert {name.partition("/")[0] for name in holding(word(0), runs)} == {"others"}


@pytest.mark.drill
def test_replies_that_no_stored_answer_leads_to_go_too(copy):
    store = copy.store
    [replies] = [t for t in store_tables(store) if t.startswith("replies-")]
    store.forget("answers", "key", id_texts(store.scan("answers")["key"]))
    rewrite_deleted(store, "answers")  # now the store is as a killed eval leaves it
    keep_only(store, "answers", ())
    forgotten(copy, address(0))
    assert store.count(replies) == 0


def test_what_cannot_be_forgotten_is_said(copy):
    store = copy.store
    with pytest.raises(DataError, match=r"found nothing named 'https://nowhere.example/'"):
        forgotten(copy, "https://nowhere.example/", dry_run=True)
    with pytest.raises(ConfError, match=r"--reason 'licence ended'"):
        forgotten(copy, address(0), reason=" ")
    with pytest.raises(ConfError, match=r"expected the folder of a run"):
        forgotten(copy, address(0), runs=[copy.folder / "nowhere"])
    reading = Reading(store.files, "questions to fakes", {"questions": store.version("questions")})
    reading.begin()
    with pytest.raises(StoreError, match=r"an endpoint or `ask` over a recipe reads table questions"):
        forgotten(copy, address(0))
    reading.end()
    assert holding(word(0), Path(store.uri)) and not store.files.names("_tombstones")
