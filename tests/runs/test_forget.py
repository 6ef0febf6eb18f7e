"""A page, a document or a question is taken out, and no byte of it is left."""

import io
import json
import shutil

import lance
import pyarrow.parquet as pq
import pytest
from leftbytes import files_with
from reruns import FAKES, Bench

from raypipe.api.cli.main import main
from raypipe.api.forget import forget
from raypipe.api.session import Session, from_environment
from raypipe.core.errors import ConfError, DataError
from raypipe.core.plain import json_lines
from raypipe.evaluation.report.progress import Progress
from raypipe.evaluation.report.report import RunFolder
from raypipe.evaluation.result_table import read_table
from raypipe.runs.manifest import read, withdraw
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.pipeline.ingest_folder import ingest_folder
from raypipe.runs.release import history, live, promote, releases
from raypipe.store import Reading, Store, StoreError
from raypipe.store.files import Files
from raypipe.store.layout import CAPTURED
from raypipe.store.memo.disk import memo_tables
from raypipe.store.segments import read_segments, write_segment

pytestmark = pytest.mark.slow

MARKER = "Quorzimandel"
LLM = FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n").replace(
    "  - decide: {prefer: [extract]}",
    "  - generate: {model: scripted, prompt: crag/vanilla, into: plain, max_tokens: 50}\n"
    "  - generate: {model: scripted, prompt: crag/rag, into: llm, max_tokens: 50, context_tokens: 400}\n"
    "  - decide: {prefer: [llm, extract]}",
)
URL = "https://leak.example/quorzimandel-page"


SHARED = "This very sentence of ten words stands on both pages."


def poisoned(bench):
    """Two of the invented questions; the first cites a page that has the marker in what answers it. A
    sentence of that page answers the second question, too, from a page of its own."""
    lines = bench.lines()[:2]
    for line in lines:
        line["search_results"] = line["search_results"][:3]
    first = lines[0]
    said = f"<html><title>{MARKER} file</title><body><p>{first['query']} {MARKER} is the answer that the "
    said += f"secret file of {MARKER} gives to it, as every page of it says.</p>"
    said += f"<p>{lines[1]['query']} {SHARED} The assistant abstained, its label says.</p></body></html>"
    lines[1]["search_results"] = lines[1]["search_results"][:1]
    lines[1]["search_results"][0] |= {
        "page_result": f"<html><title>Shared</title><body><p>{lines[1]['query']} {SHARED}</p></body></html>",
        "page_url": "https://shared.example/page",
    }  # fmt: skip
    first["search_results"][0] |= {
        "page_url": URL, "page_name": f"{MARKER} file", "page_result": said,
        "page_snippet": f"{first['query']} It is {MARKER}.",
    }  # fmt: skip
    return bench.data(lines)


@pytest.fixture(scope="module")
def told(world, tmp_path_factory):
    """A store in which two recipes answered from the page, and the first run is live."""
    bench = Bench(tmp_path_factory.mktemp("forget"), world)
    data = poisoned(bench)
    bench.run(LLM, data=data, out="runs/one")
    store = Store.open(str(bench.folder / "store"))
    promote(store, read(bench.folder / "runs/one"), [])
    bench.run(LLM.replace("child_chars: 200", "child_chars: 180"), data=data, out="runs/two")
    return bench


@pytest.fixture
def copy(told, tmp_path):
    """A copy of that store with its runs."""
    shutil.copytree(told.folder, tmp_path / "b")
    for name in ("runs/one", "runs/two"):
        file = tmp_path / "b" / name / "manifest.json"
        tree = json.loads(file.read_text())
        file.write_text(json.dumps({**tree, "store": str(tmp_path / "b/store")}))
    return Bench(tmp_path / "b", told.world)


def session(bench):
    return Session(from_environment({"RAYPIPE_HOME": str(bench.folder / "home")}))


def forgotten(bench, name, **options):
    given = {"dry_run": False, "reason": "the licence ended", "runs": [bench.folder / "runs"]}
    given |= {"store": bench.folder / "store", "session": session(bench)}
    return forget(name, **{**given, **options})


def test_no_byte_of_a_page_is_left_and_everything_else_is_as_before(copy):
    store, runs = Store.open(str(copy.folder / "store")), copy.folder / "runs"
    assert len(files_with(MARKER, store.uri, runs)) > 10
    listed = forgotten(copy, URL, dry_run=True)
    assert {"table", "memo", "answers", "release", "run", "note"} <= {h.kind for h in listed.holdings}
    others = [r for r in store.scan("answers").to_pylist() if MARKER.lower() not in str(r).lower()]
    memos = rows_of_memos(store)
    [release] = releases(store)
    assert not store.files.names("_tombstones") and release.id in history(store), "nothing is changed"

    done = forgotten(copy, URL)
    assert done.holdings and not done.dry_run
    assert files_with(MARKER, store.uri, runs) == []
    left = store.scan("answers").to_pylist()
    assert len(left) == len(others) == 2 and sorted(map(str, left)) == sorted(map(str, others))
    assert all(SHARED in str(r["replies"]) for r in left), "they quote a sentence of it from another page"
    kept = {h.name: h.does for h in listed.holdings if h.kind == "kept"}
    assert any("runs of 8 words, too, and stays" in does for does in kept.values()), kept
    replies = {text: key for table, key, text in memos if text is not None}
    assert {t for _, _, t in rows_of_memos(store)} >= {t for t in replies if SHARED in t and MARKER not in t}
    assert memos - rows_of_memos(store) and rows_of_memos(store) < memos
    now = live(store)
    assert now.after == release.id and history(store) == (now.id,) and now.score == release.score
    _, spec = now.opened(store)
    assert {p.table: p.version for p in spec.pinned()}.items() <= now.tables.items()
    assert promote(store, read(runs / "two"), []).tables
    rows = {r["id"]: r for r in read_table(runs / "one/results.parquet").to_pylist()}
    assert sorted(r["answer"] is None for r in rows.values()) == [False, True]
    assert all(r["verdict"] for r in rows.values()), "the run can be compared as before"
    assert "<html" in (runs / "one/report.html").read_text()

    # The same file again: the page is refused, everything else is there, and nothing of it comes in.
    summary = ingest(store, [copy.folder / "data.jsonl"], "crag", Progress(io.StringIO(), silent=True))
    assert summary.reasons["forgotten"] == 1 and not summary.again
    [fault] = [f for f in store.scan("faults").to_pylist() if f["reason"] == "forgotten"]
    assert fault["detail"].endswith("refuses it: the licence ended")
    assert files_with(MARKER, store.uri) == []
    _, plan = copy.run(LLM, data=copy.folder / "data.jsonl", out="again")
    assert files_with(MARKER, store.uri, copy.folder / "again") == []
    assert plan["generate:llm"].rows == 2 and plan["generate:llm"].max_calls == 1, "one is answered again"
    assert plan["generate:plain"].max_calls == 0, "a reply to a prompt that shows no page stays"
    with pytest.raises(DataError, match=r"found no such thing as"):
        forgotten(copy, URL)


def test_what_a_killed_eval_left_in_its_folder_goes_whole_and_other_evals_there_do_not(copy):
    store, runs = Store.open(str(copy.folder / "store")), copy.folder / "runs"
    for name, uri in (("killed", store.uri), ("others", str(copy.folder / "elsewhere"))):
        shutil.copytree(runs / "two", runs / name)
        run = RunFolder(runs / name)
        table = pq.read_table(run.results)
        about = {**table.schema.metadata, b"run": b"0" * 32, b"store": uri.encode()}
        pq.write_table(table.replace_schema_metadata(about), run.results)
        withdraw(run.path)
    shutil.copyfile(runs / "killed/results.parquet", runs / "one/results.parquet")  # an older raypipe's
    listed = {h.name: h.does for h in forgotten(copy, URL, dry_run=True).holdings if h.kind == "run"}
    assert [name for name, does in listed.items() if "killed eval" in does] == [
        str(runs / "killed"), str(runs / "one"),
    ]  # fmt: skip
    forgotten(copy, URL)
    assert list((runs / "killed").iterdir()) == list((runs / "one").iterdir()) == []
    assert {name.partition("/")[0] for name in files_with(MARKER, store.uri, runs)} == {"others"}


def test_a_separator_of_lines_in_a_text_cuts_no_line_of_what_stays(copy):
    store, runs = Store.open(str(copy.folder / "store")), copy.folder / "runs"
    asked = [f"what is\u2028new, and\x85what {said}?" for said in ("else", MARKER)]
    lines = [{"format": 1, "answer_id": str(n) * 36, "query": q} for n, q in enumerate(asked)]
    name = write_segment(store.files, CAPTURED, lines, 1e9)
    notes = runs / "one/notes.jsonl"
    notes.write_text("".join(json.dumps({"q": q}, ensure_ascii=False) + "\n" for q in asked))
    forgotten(copy, URL)
    assert list(read_segments(store.files, CAPTURED, [name])) == lines[:1]
    assert json_lines(notes.read_text()) == [{"q": asked[0]}]
    assert files_with(MARKER, store.uri, runs) == []


def rows_of_memos(store):
    """Table, key and reply (None: a number) of each cached value."""
    found = set()
    for table in memo_tables(store):
        columns = ["key", "text"] if table.startswith("replies-") else ["key"]
        found |= {(table, row["key"], row.get("text")) for row in store.scan(table, columns).to_pylist()}
    return found


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


def test_a_forget_that_is_killed_at_any_step_is_finished_by_the_same_command(copy):
    store, runs = Store.open(str(copy.folder / "store")), copy.folder / "runs"
    expected = live(store).id
    deaths = 0
    for at in range(2, 80, 6):
        dying = Store.open(store.uri)
        dying.files = DyingFiles(store.uri, at)
        try:
            done = forgotten(copy, URL, store=dying)
            break
        except KeyboardInterrupt:
            deaths += 1
        if store.files.names("_forgetting"):
            unfinished = r"raypipe forget 'https://leak.example/quorz.*' --yes"
            with pytest.raises(StoreError, match=unfinished), store.lease("driver", "eval"):
                raise AssertionError("no other command works on such a store")
    assert deaths > 2 and done.finished
    assert files_with(MARKER, store.uri, runs) == []
    assert live(store).after == expected and not store.files.names("_forgetting")


def test_an_answer_that_says_the_same_and_rests_on_none_of_it_stays_and_is_named(copy):
    store, other = Store.open(str(copy.folder / "store")), copy.lines()[1]["interaction_id"]
    said = {"answer": f"'{MARKER} it is, as every one knows'"}
    lance.dataset(store.table_uri("answers")).update(said, where=f"id = '{other}'")
    listed = forgotten(copy, URL, dry_run=True).holdings
    kept = [h for h in listed if (h.kind, h.name) == ("kept", "answers")]
    [named] = [h for h in kept if "rest on none of it" in h.does]
    assert named.rows == 2 and named.does.endswith(f"of questions {other}")
    [going] = [h for h in listed if h.kind == "answers"]
    assert going.rows == 2, "those of the other question, in both runs"


def test_a_question_goes_with_its_golds_answers_and_rows_of_runs(copy, capsys, monkeypatch):
    store, runs = Store.open(str(copy.folder / "store")), copy.folder / "runs"
    first, second = copy.lines()[:2]
    id, text = first["interaction_id"], first["query"]
    monkeypatch.setenv("RAYPIPE_HOME", str(copy.folder / "home"))
    words = ["forget", id, "--store", store.uri, "--runs", str(runs)]
    assert main([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "table questions: 1 rows" in said and f"question {id}: " in said and "nothing was removed" in said
    assert files_with(id, store.uri, runs)
    assert main([*words, "--yes"]) == 2 and "--reason 'licence ended'" in capsys.readouterr().err
    assert main([*words, "--yes", "--reason", "asked to"]) == 0
    assert f"question {id} is forgotten; tombstone" in capsys.readouterr().out
    assert files_with(id, store.uri, runs) == []
    left = files_with(text, store.uri, runs)
    assert {name.partition("-")[0].partition(".")[0] for name in left} <= {"sources", "texts"}, left
    assert store.scan("questions")["id"].to_pylist() == [second["interaction_id"]]
    summary = ingest(store, [copy.folder / "data.jsonl"], "crag", Progress(io.StringIO(), silent=True))
    assert summary.reasons["forgotten"] == 1 and store.count("questions") == 1


def test_a_document_of_a_folder_goes_by_its_path_and_is_refused_by_name(tmp_path):
    docs, store = tmp_path / "docs", Store.create(str(tmp_path / "store"))
    docs.mkdir()
    (docs / "kept.txt").write_text("The library opens at nine and closes at five.")
    (docs / "secret plan.txt").write_text(
        f"The plan of {MARKER} is to open at ten in the morning of each day."
    )
    silent = Progress(io.StringIO(), silent=True)
    ingest_folder(store, docs, [], silent)
    session = Session(from_environment({"RAYPIPE_HOME": str(tmp_path / "home")}))
    cited = forget("secret%20plan.txt#page=2", store, dry_run=True, session=session)
    done = forget("secret plan.txt", store, False, "told in confidence", session=session)
    assert cited.name == done.name and done.target == "document" and files_with(MARKER, store.uri) == []
    assert store.scan("documents")["title"].to_pylist() == ["kept"]
    (docs / "secret plan.txt").write_text("Another text at the same place.")
    (docs / "kept.txt").unlink()
    with pytest.raises(DataError, match=r"none of 1 files could be read:\n.*refuses it: told in confidence"):
        ingest_folder(store, docs, [], silent)
    (docs / "kept.txt").write_text("The library opens at nine and closes at five.")
    ingest_folder(store, docs, [], silent)
    [fault] = [f for f in store.scan("faults").to_pylist() if f["reason"] == "forgotten"]
    assert "told in confidence" in fault["detail"] and store.count("documents") == 1


def test_what_cannot_be_forgotten_is_said(copy):
    store = Store.open(str(copy.folder / "store"))
    with pytest.raises(DataError, match=r"found no such thing as 'https://nowhere.example/'"):
        forgotten(copy, "https://nowhere.example/", dry_run=True)
    with pytest.raises(ConfError, match=r"--reason 'licence ended'"):
        forgotten(copy, URL, reason=" ")
    with pytest.raises(ConfError, match=r"expected the folder of a run"):
        forgotten(copy, URL, runs=[copy.folder / "nowhere"])
    reading = Reading(store.files, "questions to fakes", {"questions": store.version("questions")})
    reading.begin()
    with pytest.raises(StoreError, match=r"an endpoint or `ask` over a recipe reads table questions"):
        forgotten(copy, URL)
    reading.end()
    assert files_with(MARKER, store.uri) and not store.files.names("_tombstones")
